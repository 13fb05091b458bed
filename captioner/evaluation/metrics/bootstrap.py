"""Bootstrap over images (Efron, 1979): how far a score, or the difference of two, would move with other images.

A resample draws as many images as there are, with replacement, and scores them anew. Two systems are compared on the
same resamples, so that what makes an image hard for both cancels out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95  # share of the resamples inside an interval
SIGNIFICANT = 0.05  # p values below are of differences that are unlikely to be chance
BLOCK = 50  # resamples drawn at a time; part of what a seed means, for the resamples depend on it

Values = NDArray[np.float64]


class Resampled(Protocol):
    """Scores that can be computed anew on other selections of their images."""

    def resample(self, rows: NDArray[np.int64]) -> dict[str, Values]:
        """Return each metric (R,) on R selections (R, I) of images."""
        ...


@dataclass(frozen=True)
class Interval:
    """Where the middle share of the resamples lies, by percentiles."""

    low: float
    high: float

    @property
    def margin(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """How much more a system scores than another on the same images, and how surely.

    `p` is two-sided: twice the share of resamples on which the difference is nil or has the other sign, with one more
    counted among them so that it is never 0. It is about 0.05 where the 95 % interval just touches 0.
    """

    value: float
    interval: Interval
    p: float

    @property
    def is_significant(self) -> bool:
        """Whether it is unlikely to be chance."""
        return self.p < SIGNIFICANT


def bootstrap(scores: Resampled, images: int, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Values]:
    """Return each metric (R,) on R resamples of the images; the same `images` and `seed` give the same resamples."""
    if images < 1 or resamples < 1:
        raise ValueError(f"{resamples} resamples of {images} images; both must be at least 1")
    chance = np.random.default_rng(seed)
    parts = []
    for start in range(0, resamples, BLOCK):
        rows = chance.integers(0, images, size=(BLOCK, images))  # (BLOCK, I)
        parts.append(scores.resample(rows[: resamples - start]))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def find_interval(values: Values) -> Interval:
    """Return the interval that holds the middle 95 % of resampled values (R,)."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def find_difference(first: float, second: float, first_values: Values, second_values: Values) -> Difference:
    """Return by how much `second` is above `first`; their values (R,) are of the same resamples of images."""
    if first_values.shape != second_values.shape:
        raise ValueError(f"{len(first_values)} and {len(second_values)} resamples; a pair needs the same resamples")
    moved = second_values - first_values  # (R,)
    rarer = min(int((moved <= 0).sum()), int((moved >= 0).sum()))
    p = min(1.0, 2 * (rarer + 1) / (len(moved) + 1))
    return Difference(second - first, find_interval(moved), p)
