"""A toy model of four images with three captions each, and learners that train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import END, Vocabulary
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import make_decoder
from captioner.processes import Processes
from captioner.training.batches import Batch, Corpus, EpochPlan
from captioner.training.learner import Learner
from captioner.training.recipe import Recipe
from captioner.training.settings import BatchConfig, DataConfig

L, D = 4, 6
CAPTIONS = (
    ("a dog runs", "a small dog runs over grass", "dog"),
    ("a cat sleeps", "the cat", "a cat sleeps on the grass"),
    ("a horse", "a horse eats grass", "the horse eats"),
    ("the bird", "a small bird sleeps", "a bird on a horse eats the grass"),
)
IMAGES = tuple(
    CaptionedImage(f"{number}.jpg", Path("x.jpg"), number, "train", captions, None)
    for number, captions in enumerate(CAPTIONS)
)
VOCABULARY = Vocabulary.build((words for image in IMAGES for words in image.tokenized()), 1)
CORPUS = Corpus.build(IMAGES, VOCABULARY)


class SimpleEncoder(nn.Module):
    """As much of an encoder as learning asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, D)
        self.dimensions = D

    def upper(self, blocks: int) -> nn.Module:
        return self.trunk


def make_learner(
    mode: str = "soft",
    *,
    attention: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
    dropout: float = 0.0,
    scale: float = 3.0,
    kind: torch.dtype = torch.float64,
    **sections: Any,
) -> Learner:
    """Return a learner of a small decoder with lively weights; `sections` are those of an recipe."""
    torch.manual_seed(0)
    settings = Recipe(
        data=(DataConfig("nowhere"),),
        decoder=DecoderConfig(**{"embedding": 5, "hidden": 7, "regions": 6, "dropout": dropout, **(decoder or {})}),
        attention=AttentionConfig(mode, width=5, **(attention or {})),
        **sections,
    )
    module = make_decoder(settings.decoder, settings.attention, len(VOCABULARY), D, (2, 2)).to(kind)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)  # lively: otherwise every word is about as probable as any other
    encoder = SimpleEncoder()
    return Learner(settings, module, encoder, Processes(), "cpu")  # type: ignore[arg-type]


def make_batch(index: int = 0, sampled: int = 0) -> Batch:
    """A batch of all four images: with their three captions each, or to be sampled."""
    return EpochPlan(CORPUS, BatchConfig(4 * (sampled or 3), 3), 5, index, captions=sampled)[0]


def some_regions(seed: int = 1, kind: torch.dtype = torch.float64) -> Tensor:
    """Return regions of the four images."""
    return torch.randn(4, L, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(kind)


def snapshot(learner: Learner) -> dict[str, Tensor]:
    """Return a copy of the decoder's weights."""
    return {name: value.clone() for name, value in learner.decoder.state_dict().items()}


def unpadded(ids: Sequence[int]) -> list[int]:
    """Return a caption's ids up to its end."""
    return list(ids[: list(ids).index(END) + 1])
