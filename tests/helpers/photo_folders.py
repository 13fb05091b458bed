"""The example photographs, and folders of small photographs that tests make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "data" / "examples"
EXPERIMENTS = ROOT / "experiments"


def write_photo_folder(folder: Path, count: int, size: tuple[int, int] = (48, 40)) -> Path:
    """Make a data set of `count` different small JPEGs in one's own format."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    with (folder / "metadata.jsonl").open("w") as lines:
        for number in range(count):
            coarse = noise.integers(0, 256, (5, 6, 3), dtype=np.uint8)
            name = f"{number:04d}.jpg"
            Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(folder / name, quality=90)
            text = f"picture number {number}"
            lines.write(json.dumps({"file_name": name, "text": text, "split": "train"}) + "\n")
    return folder
