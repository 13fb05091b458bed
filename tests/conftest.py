from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_training import make_quick, write_toy_data

from captioner.datasets.dataset import CaptionDataset, load_dataset
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder

EXAMPLES = Path(__file__).parent.parent / "data" / "examples"

# A shell's background jobs ignore interrupts, and so would the programs that tests start in order to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def lite0() -> Encoder:
    """The smallest real encoder at a toy size: a grid of 2 x 2 regions."""
    return load_encoder(EncoderConfig("efficientnet-lite0", size=64))


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


@pytest.fixture
def photos(tmp_path: Path) -> CaptionDataset:
    """Forty small photographs with a caption each."""
    return load_dataset(write_photo_folder(tmp_path / "photos", 40))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy data set to train on."""
    return write_toy_data(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training without what takes long and is tested elsewhere."""
    make_quick(monkeypatch)
