"""What a model's attention does over its captions: how wide it looks, how it moves, what it passes over.

All of it is of captions as they were searched for, their T words without the end marker, and in nats where it is an
entropy or a divergence. Averages are over words, or over captions where it says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.captioning.caption import Caption
from captioner.datasets.word_classes import CLASSES, word_class
from captioner.evaluation.tables import Table, number, without_nan

Values = NDArray[np.float64]
STILL = 0.02  # mean movement of the weights from word to word below which attention has collapsed
LONGEST_SHOWN = 20  # positions in a table; `Diagnostics` itself holds all


@dataclass(frozen=True)
class WordStatistics:
    """Averages over some words; NaN where there are none to average.

    `entropy` is that of alpha, 0..log L, and `entropy_share` the same as a share of log L, 1 where attention is
    uniform. `peak` is the weight of the strongest region, `beta` the gate. `movement` (total variation, 0..1) and
    `jensen_shannon` (0..log 2) are how far attention went from the word before, over the `moves` words that have one.
    """

    words: int
    entropy: float
    entropy_share: float
    peak: float
    beta: float
    moves: int
    movement: float
    jensen_shannon: float


@dataclass(frozen=True)
class Diagnostics:
    """What the attention over `regions` regions did in `captions` captions, of which `empty` have no words.

    `positions` are the first words, the second and so on; `classes` those of `word_classes` that occur.
    `residual` is the doubly stochastic penalty of `losses.py` with the reduction "mean": the mean over captions
    and regions of (1 - sum over t of alpha)^2; `residual_sum` is L times that, the paper's. In training the end marker
    is looked for too, so that a caption's sum has one more step. `collapsed` is the share, 0..1, of the captions of two
    words or more whose mean movement is below STILL.
    """

    captions: int
    empty: int
    regions: float
    overall: WordStatistics
    positions: tuple[WordStatistics, ...]
    classes: dict[str, WordStatistics]
    residual: float
    residual_sum: float
    collapsed: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; None stands for what there is nothing to average of."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain

    def to_text(self) -> str:
        """Return the numbers as lines of text: all words, then by class, then by position up to the 20th word."""
        rows = [("all words", self.overall)]
        rows += sorted(self.classes.items(), key=lambda row: -row[1].words)
        rows += [(f"word {place}", row) for place, row in enumerate(self.positions[:LONGEST_SHOWN], start=1)]
        head = ("", "words", "entropy", "of log L", "peak", "beta", "movement", "JS")
        cells = [(name, str(row.words), *_cells(row)) for name, row in rows]
        summary = (
            f"{self.captions:,} captions ({self.empty:,} empty), {self.regions} regions; collapsed attention "
            f"{number(self.collapsed, '.1%')}; doubly stochastic residual {number(self.residual)} per region, "
            f"{number(self.residual_sum, '.1f')} per caption"
        )
        return f"{summary}\n{Table([head, *cells]).to_text()}"


def diagnose(captions: Sequence[Caption]) -> Diagnostics:
    """Measure the attention of one model's captions; `regions` is their mean number where images differ in it."""
    if not captions:
        raise ValueError("there are no captions to diagnose; expected at least one")
    told = [caption for caption in captions if caption.words]
    # A caption without words that was read back from a record does not know its grid.
    counts = [math.prod(caption.attention.shape[1:]) for caption in told or captions[:1]]
    regions = counts[0] if len(set(counts)) == 1 else round(float(np.mean(counts)), 1)
    measured = [_measure(caption) for caption in told]
    rows = np.concatenate([np.empty((0, 5)), *measured])  # (W, 5)
    places = np.array([place for caption in told for place in range(len(caption.words))], dtype=np.int64)  # (W,)
    names = np.array([word_class(word) for caption in told for word in caption.words], dtype=np.str_)  # (W,)
    residuals = [residual(caption.attention) for caption in told]
    moved = [float(caption[1:, 3].mean()) for caption in measured if len(caption) > 1]
    return Diagnostics(
        captions=len(captions),
        empty=len(captions) - len(told),
        regions=regions,
        overall=_average(rows, regions),
        positions=tuple(_average(rows[places == place], regions) for place in range(places.max(initial=-1) + 1)),
        classes={name: _average(rows[names == name], regions) for name in CLASSES if name in names},
        residual=_mean(residuals),
        residual_sum=_mean(residuals) * regions if isinstance(regions, int) else _mean(np.multiply(residuals, counts)),
        collapsed=_mean([movement < STILL for movement in moved]),
    )


def entropy(weights: NDArray[Any]) -> Values:
    """Return the entropy (...) in nats of weights (..., L) that sum to one."""
    weights = np.asarray(weights, dtype=np.float64)
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    values: Values = -(weights * logarithms).sum(axis=-1)
    return np.maximum(values, 0.0)  # one region with all the weight has an entropy of -0.0


def total_variation(first: NDArray[Any], second: NDArray[Any]) -> Values:
    """Return how much weight has to be moved to turn one into the other, 0..1: (...) of (..., L) twice."""
    distance: Values = 0.5 * np.abs(np.asarray(first, dtype=np.float64) - second).sum(axis=-1)
    return distance


def jensen_shannon(first: NDArray[Any], second: NDArray[Any]) -> Values:
    """Return the Jensen-Shannon divergence (...) in nats, 0..log 2, of weights (..., L) twice."""
    middle = 0.5 * (np.asarray(first, dtype=np.float64) + second)
    return np.maximum(entropy(middle) - 0.5 * (entropy(first) + entropy(second)), 0.0)


def residual(attention: NDArray[Any]) -> float:
    """Return the mean over regions of (1 - sum over t of alpha)^2 for one caption's attention (T, rows, columns)."""
    looks = np.asarray(attention, dtype=np.float64).sum(axis=0)  # (rows, columns)
    return float(np.square(1 - looks).mean())


def _measure(caption: Caption) -> Values:
    """Return entropy, peak, beta, movement and divergence of each word (T, 5), the last two NaN for the first word."""
    alpha = caption.attention.reshape(len(caption.words), -1).astype(np.float64)  # (T, L)
    alpha /= alpha.sum(axis=-1, keepdims=True)  # half precision loses a little
    rows = np.full((len(alpha), 5), np.nan)  # (T, 5)
    rows[:, 0], rows[:, 1], rows[:, 2] = entropy(alpha), alpha.max(axis=-1), caption.beta
    rows[1:, 3], rows[1:, 4] = total_variation(alpha[1:], alpha[:-1]), jensen_shannon(alpha[1:], alpha[:-1])
    return rows


def _average(rows: Values, regions: float) -> WordStatistics:
    """Average what `_measure` says of words (W, 5)."""
    moved = rows[~np.isnan(rows[:, 3])]
    entropy_mean, peak, beta = (_mean(rows[:, column]) for column in range(3))
    widest = math.log(regions)
    share = entropy_mean / widest if widest else math.nan  # a single region leaves nothing to spread over
    return WordStatistics(
        len(rows), entropy_mean, share, peak, beta, len(moved), _mean(moved[:, 3]), _mean(moved[:, 4])
    )


def _mean(values: Iterable[float] | Values) -> float:
    known = np.asarray(list(values), dtype=np.float64)
    return float(known.mean()) if len(known) else math.nan


def _cells(row: WordStatistics) -> list[str]:
    gate = [number(value) for value in (row.peak, row.beta, row.movement, row.jensen_shannon)]
    return [number(row.entropy), number(row.entropy_share, ".1%"), *gate]
