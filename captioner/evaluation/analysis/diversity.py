"""How much captions differ: from each other, from those the model was trained on, and within themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from captioner.datasets.word_classes import is_content


@dataclass(frozen=True)
class Diversity:
    """Counts over the captions of a set of images, one caption per image.

    `distinct` captions are left when duplicates go; `commonest` is the one most often used, for `commonest_count`
    images. `novel` is how many are not among the training captions, None where there are none to compare with.
    `repetitive` captions have the same content word twice ("a table with a table"). `vocabulary` counts distinct words,
    `mean_length` words per caption.
    """

    captions: int
    distinct: int
    commonest: str
    commonest_count: int
    vocabulary: int
    novel: int | None
    repetitive: int
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
        len({word for caption in words for word in caption}),
        None if training is None else sum(caption not in training for caption in captions),
        sum(map(repeats_content, words)),
        sum(map(len, words)) / len(words),
    )


def repeats_content(words: Sequence[str]) -> bool:
    """Tell whether a caption has the same content word twice."""
    counts = Counter(word for word in words if is_content(word))
    return any(count > 1 for count in counts.values())
