"""Captions as word ids in flat arrays, and image-major batches of like lengths, the same for the same seed and epoch.

A batch has the same number of captions of each of its images, each image's in the order of their lengths, and images of
like lengths are put together: so there are no empty rows, and little is read beyond the end of a caption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import PAD, Vocabulary
from captioner.training.settings import BatchConfig

Indices = NDArray[np.int64]
# What a seed is used for beside the run's number: streams that never meet.
ORDER, DRAWS = 0, 1


@dataclass(frozen=True)
class Corpus:
    """The captions of I images as word ids, markers included, in arrays that stay small for a million captions."""

    images: tuple[CaptionedImage, ...]
    ids: NDArray[np.int32]  # of all captions end to end
    starts: Indices  # (captions + 1,), where each caption starts in `ids`
    captions: Indices  # (I + 1,), the first caption of each image

    @classmethod
    def build(cls, images: Iterable[CaptionedImage], vocabulary: Vocabulary) -> Corpus:
        """Encode all captions of the images."""
        kept = tuple(images)
        encoded = [[vocabulary.encode(words) for words in image.tokenized()] for image in kept]
        lengths = [len(ids) for captions in encoded for ids in captions]
        flat = (word for captions in encoded for ids in captions for word in ids)
        return cls(
            kept,
            np.fromiter(flat, np.int32, sum(lengths)),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.concatenate([[0], np.cumsum([len(captions) for captions in encoded])]).astype(np.int64),
        )

    def lengths(self) -> Indices:
        """Return the length of each caption, markers included."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Batch:
    """B images with N captions each, of one seed: what a step of training reads, whoever reads which part of it."""

    images: Indices  # (B,), places in the corpus
    caption_ids: Indices  # (B, N, T + 1), padded
    mask: NDArray[np.bool_]  # (B, N, T): where there is a word to predict
    mirrored: NDArray[np.bool_]  # (B,): images that are seen flipped
    seed: tuple[int, ...]  # of all random numbers of the step
    references: Indices | None = None  # (B, 1, T + 1), a caption each to learn beside sampled ones

    @property
    def taught(self) -> Indices:
        """The captions (B, N, T + 1) that are learned word by word."""
        return self.caption_ids if self.references is None else self.references

    @property
    def caption_count(self) -> int:
        """The captions in it."""
        return int(self.caption_ids.shape[0] * self.caption_ids.shape[1])


class EpochPlan:
    """The batches of one epoch, made when they are asked for; `epoch` and `seed` decide everything about them."""

    def __init__(
        self,
        corpus: Corpus,
        config: BatchConfig,
        seed: int,
        epoch: int,
        *,
        captions: int = 0,
        least_captions: int = 1,
        references: bool = False,
    ) -> None:
        """Cut the corpus into items and batches.

        With `captions` above 0 an item is an image without its captions, which stands for so many sampled ones, if it
        has at least `least_captions` to compare them with; with `references` it has one of its own beside them.
        """
        self.corpus, self.config, self.epoch = corpus, config, epoch
        self.seed = (seed, epoch)
        order = np.random.default_rng([*self.seed, ORDER])
        sampled = captions > 0
        if sampled:
            items = _whole_images(corpus, captions, least_captions)
        else:
            items = _cut_items(corpus, config.captions_per_image, order)
        self.batches = _cut_batches(corpus, items, config, order, sampled)
        self.sampled = captions
        self.mirrored = order.random(len(corpus.images)) < (0.5 if config.flips else 0.0)
        # Drawn last, so that all else is the same with and without them.
        self.references = _draw_references(corpus, order) if references else None

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        items = self.batches[index]
        images = np.array([image for image, _ in items])
        if self.sampled:
            ids = np.zeros((len(items), self.sampled, 1), np.int64)  # to be sampled
        else:
            ids = _pad([[self._caption(caption) for caption in captions] for _, captions in items])
        references = None
        if self.references is not None:
            references = _pad([[self._caption(caption)] for caption in self.references[images].tolist()])
        seed = (*self.seed, index, DRAWS)
        return Batch(images, ids, ids[:, :, 1:] != PAD, self.mirrored[images], seed, references)

    def _caption(self, caption: int) -> NDArray[np.int32]:
        return self.corpus.ids[self.corpus.starts[caption] : self.corpus.starts[caption + 1]]


Item = tuple[int, tuple[int, ...]]  # an image and some of its captions, the longest first


def _cut_items(corpus: Corpus, largest: int, order: np.random.Generator) -> list[Item]:
    """Return each image with its captions, in parts where there are more than `largest`."""
    lengths = corpus.lengths()
    items: list[Item] = []
    for image in range(len(corpus.images)):
        captions = np.arange(corpus.captions[image], corpus.captions[image + 1])
        parts = -(-len(captions) // largest)
        if parts > 1:
            order.shuffle(captions)
        for part in np.array_split(captions, parts):
            items.append((image, tuple(sorted(part.tolist(), key=lambda caption: (-lengths[caption], caption)))))
    return items


def _whole_images(corpus: Corpus, captions: int, least: int) -> list[Item]:
    judged = np.flatnonzero(np.diff(corpus.captions) >= least).tolist()
    if not judged:
        raise ValueError(f"no training image has {least} captions; lower self_critical.least_captions")
    return [(image, (0,) * captions) for image in judged]


def _draw_references(corpus: Corpus, order: np.random.Generator) -> Indices:
    """Return one caption (I,) of each image, all of them as probable."""
    counts = np.diff(corpus.captions)
    drawn: Indices = corpus.captions[:-1] + (order.random(len(counts)) * counts).astype(np.int64)
    return drawn


def _cut_batches(
    corpus: Corpus, items: Sequence[Item], config: BatchConfig, order: np.random.Generator, sampled: bool
) -> list[list[Item]]:
    """Shuffle the items, sort pools of them by length, cut these into batches, and shuffle the batches."""
    lengths = corpus.lengths().tolist()
    by_count: dict[int, list[Item]] = {}
    for index in order.permutation(len(items)).tolist():
        by_count.setdefault(len(items[index][1]), []).append(items[index])
    batches = []
    for count, group in sorted(by_count.items()):
        images = max(1, min(config.captions // count, config.images or config.captions))
        pool = config.pool * images
        for start in range(0, len(group), pool):
            part = group[start : start + pool]
            if not sampled and config.pool > 1:
                part.sort(key=lambda item: [lengths[caption] for caption in item[1]])
            batches += [part[first : first + images] for first in range(0, len(part), images)]
    return [batches[index] for index in order.permutation(len(batches)).tolist()]


def _pad(captions: Sequence[Sequence[NDArray[np.int32]]]) -> Indices:
    """Return B x N captions as one array (B, N, T + 1), PAD beyond their ends."""
    longest = max(len(ids) for group in captions for ids in group)
    padded = np.full((len(captions), len(captions[0]), longest), PAD, np.int64)
    for row, group in enumerate(captions):
        for column, ids in enumerate(group):
            padded[row, column, : len(ids)] = ids
    return padded
