from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from helpers.photo_folders import ROOT, write_photo_folder
from helpers.toy_training import make_quick, write_toy_data

from captioner.datasets.dataset import CaptionDataset, load_dataset
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder

# The programs that tests start take the package from this folder, and what the tests share, wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(
    os.pathsep
)
# No test cuts the power, and disks are slow.
os.fsync = lambda descriptor: None
# A shell's background jobs ignore interrupts, and so would the programs that tests start in order to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let what draws from torch's own generator draw the same in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    torch.manual_seed(1)


@pytest.fixture(scope="session")
def lite0() -> Encoder:
    """The smallest real encoder at a toy size: a grid of 2 x 2 regions."""
    return load_encoder(EncoderConfig("efficientnet-lite0", size=64))


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
