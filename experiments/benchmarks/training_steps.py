"""What benchmarks of training time: a step on batches as long as Flickr8k's, and the work that it cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import Decoder
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.losses import cross_entropy, doubly_stochastic_penalty, word_losses
from captioner.model.randomness import Randomness
from captioner.training.settings import LossConfig

CAPTIONS_PER_IMAGE = 5
POOL = 50  # batches whose images are sorted by length together


@dataclass(frozen=True)
class Case:
    """L regions of D features, V words, and what is compared: the paper's decoder with a gate, or the recipe."""

    regions: int
    width: int
    words: int
    gate: str | None  # None for training as it is by default, which has no counterpart in the textbook

    @property
    def smoothing(self) -> float:
        """The share of each target that is spread over all words."""
        return 0.0 if self.gate else LossConfig.smoothing

    def decoder(self) -> LSTMDecoder:
        """Return a decoder with random weights."""
        paper = {"regions": 0, "normalise": False, "embedding": 512, "tied": False, "gate": self.gate, "dropout": 0.0}
        config = DecoderConfig(**paper) if self.gate else DecoderConfig()  # type: ignore[arg-type]
        torch.manual_seed(0)
        return LSTMDecoder(config, AttentionConfig(), self.words, self.width, (1, self.regions))

    def batches(self, count: int, captions: int) -> Iterator[Batch]:
        """Yield so many batches of so many captions, evenly spaced in a pool that is sorted by length."""
        images = captions // CAPTIONS_PER_IMAGE
        generator = torch.Generator().manual_seed(0)
        pool = sorted(sample_lengths(POOL * images))
        for place in range(count):
            first = (2 * place + 1) * POOL // (2 * count) * images
            lengths = torch.tensor(pool[first : first + images]).unsqueeze(-1)  # (B, N, 1)
            ids = torch.randint(UNKNOWN, self.words, (*lengths.shape[:2], int(lengths.max()) + 2), generator=generator)
            position = torch.arange(ids.shape[2])  # (T + 1,), the words of a caption being those from 1 to its length
            ids[:, :, 0] = START
            ids[position == lengths + 1] = END
            ids[position > lengths + 1] = PAD
            yield Batch(torch.randn(images, self.regions, self.width, generator=generator), ids)


def sample_lengths(images: int) -> list[list[int]]:
    """Return the words of the five captions of each image, the longest first, drawn to be like Flickr8k's.

    There the mean is 10.8 and the standard deviation 3.8; this distribution's percentiles are within a word of its own.
    """
    words = np.random.default_rng(0).gamma(8.08, 1.337, (images, CAPTIONS_PER_IMAGE))
    return [sorted(lengths, reverse=True) for lengths in np.rint(words).clip(3, 30).astype(int).tolist()]


@dataclass(frozen=True)
class Batch:
    """B images with N captions each."""

    regions: Tensor  # (B, L, D)
    caption_ids: Tensor  # (B, N, T + 1)

    @property
    def mask(self) -> Tensor:
        """Where there is a word to predict, (B, N, T)."""
        return self.caption_ids[:, :, 1:] != PAD

    def first(self, words: int) -> Batch:
        """Return the batch with no more than so many words of each caption."""
        return Batch(self.regions, self.caption_ids[:, :, : words + 1])

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return regions (C, L, D), a copy for each caption, caption ids (C, T + 1) and mask (C, T)."""
        regions = self.regions.repeat_interleave(CAPTIONS_PER_IMAGE, dim=0)
        return regions, self.caption_ids.flatten(0, 1), self.mask.flatten(0, 1)


def our_loss(decoder: Decoder, batch: Batch, smoothing: float) -> Tensor:
    """Return the loss that the textbook has too, the paper's equation 14."""
    mask = batch.mask  # (B, N, T)
    outputs = decoder(batch.regions, batch.caption_ids, Randomness([0], len(mask)), mask)
    targets = batch.caption_ids[:, :, 1:][mask]  # (W,)
    losses, _ = word_losses(outputs.logits, targets, smoothing)
    words = cross_entropy(losses, mask[..., 0].numel(), reduction="sum")
    return words + doubly_stochastic_penalty(outputs.alpha, mask, reduction="sum")


def multiply_adds(decoder: LSTMDecoder, batch: Batch) -> int:
    """Return the multiply-adds in matrix products that a step on the batch cannot do without.

    They are those of the captions' words, without padding, and of the regions, once for all captions of an image. A
    product forward has two backward, for its two factors, but one where a factor is the regions as they come, which
    need no gradient. The decoder's attention is soft and additive, its output deep.
    """
    config, width = decoder.config, decoder.attention.config.width
    images, cells, features = batch.regions.shape
    words = int(batch.mask.sum())
    embedding, hidden, context = config.embedding, config.hidden, config.regions or features
    gate = {"none": 0, "scalar": 1, "vector": context}[config.gate]
    lstm = 4 * hidden * (embedding + context + hidden)
    output = embedding * (hidden + context + decoder.output.out_features)
    energies = cells * width  # v . tanh(...)
    of_words = words * (lstm + output + energies + hidden * (gate + width))
    of_regions = images * (cells * context * width + 2 * context * hidden) + words * cells * context
    if config.regions:
        return 3 * (of_words + of_regions) + 2 * images * cells * features * context
    return 3 * of_words + 2 * of_regions


def time_step(module: nn.Module, loss: Callable[[], Tensor]) -> float:
    """Return the seconds that a loss and its gradients take."""
    module.zero_grad(set_to_none=True)
    started = time.perf_counter()
    loss().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started
