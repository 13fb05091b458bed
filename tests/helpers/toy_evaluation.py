"""Two toy models and a data set of small photographs with references, for evaluations from end to end."""

from __future__ import annotations

import json
from pathlib import Path

from captioner.model.encoders.encoder import Encoder
from helpers.toy_captioner import save_toy, write_images

COUNT = 16  # images of the test split
SUBJECTS, VERBS = ("a dog", "A man's dog", "the café", "two cats"), ("runs", "sits on the red boat", "is, naïve.")


def make_home(home: Path, encoder: Encoder) -> Path:
    """Write two models, "one" and "two", and a data set, "data", with a test split of 16 images."""
    for seed, name in enumerate(("one/best", "two")):
        save_toy(home / name, encoder, seed)
    paths = write_images(home / "data", COUNT + 2)
    with (home / "data" / "metadata.jsonl").open("w") as lines:
        for number, path in enumerate(paths):
            for reference in range(2 + number % 2):
                words = f"{SUBJECTS[(number + reference) % 4]} {VERBS[(number * reference) % 3]}"
                split = "test" if number < COUNT else "train"
                lines.write(json.dumps({"file_name": path.name, "text": words, "split": split}) + "\n")
    return home


def write_some(path: Path, texts: dict[str, str] | None = None, **changes: str) -> Path:
    """Write results of all images."""
    texts = (texts or {f"{number:04d}.jpg": "a dog runs" for number in range(COUNT)}) | changes
    path.write_text(json.dumps([{"image_id": name, "caption": text} for name, text in texts.items()]))
    return path
