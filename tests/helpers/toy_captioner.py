"""A tiny model with a real encoder and a decoder that has learnt nothing, but says something else of each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioning.captioner import Captioner
from captioner.datasets.vocabulary import END, SPECIALS, Vocabulary
from captioner.model.checkpoint import Checkpoint, save_checkpoint
from captioner.model.config import AttentionConfig, DecoderConfig, EncoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.encoders.encoder import Encoder

WORDS = ("a", "dog", "cat", "runs", "on", "the", "beach", "naïve", "café", "man", "'s", "red", "boat", "two")
VOCABULARY = Vocabulary((*SPECIALS, *WORDS))


LSTM = DecoderConfig(embedding=8, hidden=12, regions=6)
TRANSFORMER = DecoderConfig(8, 12, 6, True, "none", False, layers=2, kind="transformer", heads=3, feed_forward=16,
                            positions="learned")  # fmt: skip


def make_toy(
    encoder: Encoder, seed: int = 0, config: DecoderConfig = LSTM, attention: AttentionConfig | None = None
) -> Checkpoint:
    """A model of 4 regions and 18 words."""
    score = "scaled-dot" if config.kind == "transformer" else "additive"
    attention = attention or AttentionConfig(score=score, width=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = make_decoder(config, attention, len(VOCABULARY), encoder.dimensions, encoder.grid)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4)  # lively: otherwise every word is about as probable as any other
        decoder.output.bias[END] = 3.0  # short
    return Checkpoint(
        EncoderConfig("efficientnet-lite0", size=64),
        encoder.identity(),
        attention,
        config,
        VOCABULARY,
        decoder.state_dict(),
    )


def save_toy(folder: Path, encoder: Encoder, seed: int = 0) -> Path:
    """Save the model, and return its folder."""
    save_checkpoint(folder, make_toy(encoder, seed))
    return folder


def use_toys(models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this process find and load `models` by their names."""
    monkeypatch.setattr("captioner.captioning.captioner.load", lambda folder, **_: models[str(folder)])
    for command in ("caption", "overlay"):
        monkeypatch.setattr(f"captioner.commands.{command}.find_model", lambda name=None: Path(name or "0"))
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests run in this process too


def write_images(folder: Path, count: int, size: tuple[int, int] = (40, 32)) -> list[Path]:
    """Make `count` small JPEGs, no two alike."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    paths = [folder / f"{number:04d}.jpg" for number in range(count)]
    for path in paths:
        coarse = noise.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=85)
    return paths
