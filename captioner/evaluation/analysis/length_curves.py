"""Quality by caption length: whether one model gains on another where the captions of people are long.

Images are put into buckets by the mean length of their references, in words, at its quantiles: what people wrote does
not depend on the model, so that all models are scored on the same images, and about as many images in each bucket make
all intervals about as wide. Scores are in per cent: BLEU-4 of all captions of a bucket together, and the mean CIDEr-D,
whose n-grams are weighted by all references, not by the bucket's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu, bleu_of
from captioner.evaluation.metrics.bootstrap import (
    RESAMPLES,
    Difference,
    Interval,
    bootstrap,
    find_difference,
    find_interval,
)
from captioner.evaluation.tables import LABELS, Table

Values = NDArray[np.float64]
BUCKETS = 5
METRICS = ("bleu4", "cider")


@dataclass(frozen=True)
class Bucket:
    """Images whose references have `shortest` to `longest` words in the mean; `words` is the mean over them."""

    shortest: float
    longest: float
    words: float
    images: int


@dataclass(frozen=True)
class BucketScores:
    """What a model scores in one bucket, with captions of `words` words in the mean.

    By metric (see METRICS), `against` holds how far it is above the first model on the same images; it is empty
    for the first model.
    """

    words: float
    scores: dict[str, float]
    intervals: dict[str, Interval]
    against: dict[str, Difference]


@dataclass(frozen=True)
class LengthCurves:
    """Scores of several models by bucket, from short references to long ones.

    `trends` has, by model and metric, how much larger the lead over the first model is in the last bucket than in the
    first, above 0 where a model gains with length; nothing where there is but one bucket.
    """

    buckets: tuple[Bucket, ...]
    models: dict[str, tuple[BucketScores, ...]]
    trends: dict[str, dict[str, Difference]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the scores as lines of text, with their intervals, and what they say of length."""
        spans = [f"{bucket.shortest:.1f} to {bucket.longest:.1f}" for bucket in self.buckets]
        rows = [["reference words", *spans], ["images", *(str(bucket.images) for bucket in self.buckets)]]
        for metric in METRICS:
            for name, scored in self.models.items():
                rows.append([f"{LABELS[metric]}, {name}", *(_cell(bucket, metric) for bucket in scored)])
        for name, scored in self.models.items():
            rows.append([f"words, {name}", *(f"{bucket.words:.1f}" for bucket in scored)])
        verdicts = [_verdict(name, self, metric) for name in self.trends for metric in METRICS]
        return "\n".join([Table(rows).to_text(), *verdicts])


@dataclass(frozen=True)
class _Images:
    """What it takes to score a selection of the images of one bucket."""

    statistics: Values  # (I, 10), see `captioner.evaluation.metrics.bleu_rouge_cider.Bleu`
    cider: Values  # (I,)

    def resample(self, rows: NDArray[np.int64]) -> dict[str, Values]:
        """Return each metric (R,) on R selections (R, I) of images."""
        bleu4 = bleu_of(self.statistics[rows].sum(axis=1))[:, 3]
        return {"bleu4": 100 * bleu4, "cider": 100 * self.cider[rows].mean(axis=1)}


def length_curves(
    models: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    buckets: int = BUCKETS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> LengthCurves:
    """Score each model's captions, one for each image, by the length of the image's references.

    Captions are strings of tokens between spaces. There are fewer than `buckets` buckets where too many images have
    references of the same length. The first model is the one the others are held against.
    """
    if not models or not references:
        raise ValueError(f"{len(models)} models on {len(references)} images; expected at least one of each")
    cider = CiderD(references)
    members = split_by_length(references, buckets)
    lengths = _reference_lengths(references)
    measured = {
        name: _Images(bleu(candidates, references).statistics, cider.score(candidates))
        for name, candidates in models.items()
    }
    scored: dict[str, list[BucketScores]] = {name: [] for name in models}
    resampled: dict[str, list[dict[str, Values]]] = {name: [] for name in models}
    first, *others = models
    for place, rows in enumerate(members):
        for name, images in measured.items():
            inside = _Images(images.statistics[rows], images.cider[rows])
            # Each bucket has its resamples, the same for all models.
            resampled[name].append(bootstrap(inside, len(rows), resamples=resamples, seed=seed + place))
            before = (scored[first][place], resampled[first][place]) if name != first else None
            scored[name].append(_score(inside, resampled[name][place], before))
    return LengthCurves(
        tuple(_bucket(lengths[rows]) for rows in members),
        {name: tuple(scores) for name, scores in scored.items()},
        {name: _trend(scored[name], resampled[name], resampled[first]) for name in others} if len(members) > 1 else {},
    )


def split_by_length(references: Sequence[Sequence[str]], buckets: int = BUCKETS) -> list[NDArray[np.int64]]:
    """Return the places of the images of each bucket, those with the shortest references first."""
    if not 1 <= buckets <= len(references):
        raise ValueError(f"buckets is {buckets}; expected from 1 to {len(references)}, the number of images")
    lengths = _reference_lengths(references)
    edges = np.quantile(lengths, np.arange(1, buckets) / buckets)  # (buckets - 1,)
    bucket_of = np.searchsorted(edges, lengths, side="left")  # an image on an edge belongs to the shorter bucket
    return [np.flatnonzero(bucket_of == place) for place in range(buckets) if (bucket_of == place).any()]


def _reference_lengths(references: Sequence[Sequence[str]]) -> Values:
    """Return the mean number of words (I,) of each image's references."""
    return np.array([np.mean([len(text.split()) for text in group]) for group in references])


def _bucket(lengths: Values) -> Bucket:
    return Bucket(float(lengths.min()), float(lengths.max()), float(lengths.mean()), len(lengths))


def _score(
    images: _Images, resampled: dict[str, Values], first: tuple[BucketScores, dict[str, Values]] | None
) -> BucketScores:
    """Score one model in one bucket; `first` are the scores and the resampled scores of the first model there."""
    everything = images.resample(np.arange(len(images.cider))[None])
    scores = {metric: float(values[0]) for metric, values in everything.items()}
    intervals = {metric: find_interval(values) for metric, values in resampled.items()}
    against = {}
    if first is not None:
        other, other_resampled = first
        against = {
            metric: find_difference(other.scores[metric], scores[metric], other_resampled[metric], resampled[metric])
            for metric in scores
        }
    return BucketScores(float(images.statistics[:, -2].mean()), scores, intervals, against)


def _trend(
    scored: Sequence[BucketScores], resampled: Sequence[dict[str, Values]], first: Sequence[dict[str, Values]]
) -> dict[str, Difference]:
    """Return how the lead over the first model differs between the last bucket and the first."""
    return {
        metric: find_difference(
            scored[0].against[metric].value,
            scored[-1].against[metric].value,
            resampled[0][metric] - first[0][metric],
            resampled[-1][metric] - first[-1][metric],
        )
        for metric in METRICS
    }


def _cell(scores: BucketScores, metric: str) -> str:
    interval = scores.intervals[metric]
    return f"{scores.scores[metric]:.1f} ({interval.low:.1f} to {interval.high:.1f})"


def _verdict(name: str, curves: LengthCurves, metric: str) -> str:
    """Say in one line whether a model's lead over the first grows with length."""
    first, trend = next(iter(curves.models)), curves.trends[name][metric]
    short, long = (curves.models[name][place].against[metric].value for place in (0, -1))
    low, high = trend.interval.low, trend.interval.high
    verdict = "grows with length" if low > 0 else "shrinks with length" if high < 0 else "does not surely change"
    return (
        f"{LABELS[metric]}, {name} minus {first}: {short:+.1f} with the shortest references, {long:+.1f} with the "
        f"longest; the lead {verdict}: {trend.value:+.1f} ({low:+.1f} to {high:+.1f}), p = {trend.p:.3f}"
    )
