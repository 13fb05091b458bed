"""How much captions differ: from each other, and from those that a model may have learnt by heart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Diversity:
    """Counts over the captions of a set of images, one each.

    `distinct` captions are left when repetitions go; `commonest` is the one most often said, of `commonest_count`
    images. `novel` is how many are not among the training captions, None where there are none to compare with.
    `vocabulary` counts distinct words, `mean_length` words a caption.
    """

    captions: int
    distinct: int
    commonest: str
    commonest_count: int
    vocabulary: int
    novel: int | None
    mean_length: float


def measure_diversity(captions: Sequence[str], training: Collection[str] | None = None) -> Diversity:
    """Measure captions, which are words between spaces; `training`, best a set, has captions cut into words alike."""
    if not captions:
        raise ValueError("there are no captions to measure the diversity of")
    counts = Counter(captions)
    # The first by spelling of several that are equally common: the order of images must not matter.
    commonest, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [caption.split() for caption in captions]
    return Diversity(
        len(captions),
        len(counts),
        commonest,
        count,
        len({word for own in words for word in own}),
        None if training is None else sum(caption not in training for caption in captions),
        sum(map(len, words)) / len(words),
    )
