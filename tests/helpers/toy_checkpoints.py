"""Toy models and training states to save and load."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from captioner.datasets.vocabulary import SPECIALS, Vocabulary
from captioner.model.checkpoint import Checkpoint, TrainingState
from captioner.model.config import AttentionConfig, DecoderConfig, EncoderConfig
from captioner.model.decoder import make_decoder

VOCABULARY = Vocabulary((*SPECIALS, "a", "dog", "naïve", "犬", "'s", "n't", "x-ray"))  # V = 11
IDENTITY = {
    "encoder": "efficientnet-lite0",
    "layer": "stride32",
    "weights": "0123456789abcdef",
    "grid": [2, 2],
    "dimensions": 6,
    "preprocessing": {"size": 64, "mean": [0.498, 0.498, 0.498], "resize": None},
}


def make_checkpoint(seed: int = 0, mode: str = "soft", tied: bool = True, **changes: Any) -> Checkpoint:
    """A toy model with random weights."""
    torch.manual_seed(seed)
    attention, config = AttentionConfig(mode, width=5), DecoderConfig(embedding=4, hidden=3, regions=5, tied=tied)
    content = {
        "encoder": EncoderConfig("efficientnet-lite0", size=64),
        "encoder_identity": IDENTITY,
        "attention": attention,
        "decoder": config,
        "vocabulary": VOCABULARY,
        "weights": make_decoder(config, attention, len(VOCABULARY), 6, (2, 2)).state_dict(),
        "metrics": {"bleu4": 0.1 + 0.2, "loss": 1e-300},
        "settings": {"name": "toy", "optimiser": {"rate": 4e-4, "steps": None}, "seeds": [1, 2]},
        "progress": {"epoch": 3, "step": 10**15},
    }
    return Checkpoint(**{**content, **changes})


def make_training(seed: int = 0) -> TrainingState:
    generator = torch.Generator().manual_seed(seed)
    moment = torch.randn(3, 4, generator=generator)
    tensors = {"first": moment, "view": moment[1:], "transposed": moment.t(), "random": generator.get_state()}
    return TrainingState(tensors, {"rate": 0.1 + 0.2, "best": -math.inf, "order": [3, 1, 2], "seed": seed})


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
