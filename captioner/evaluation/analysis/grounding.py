"""Whether attention lies on what a word names, scored against the boxes of objects in the image.

For each name of an object in a caption (see `object_names`) whose category has a box in what the network saw:

- pointing: whether the centre of the region with the highest weight lies in a box of the category, edges included and
  no tolerance added. Where several regions share the highest weight, the share of them that do.
- mass: the share of the weight inside the union of the category's boxes, each region's weight spread evenly over its
  cell; exact areas, no pixels.

The same for maps that have not seen the word: the mean map of the caption's words ("caption"), the middle of the image
("centre": its very middle for pointing; for mass a Gaussian over the cells around it with a standard deviation of a
quarter of what the network saw, each way) and weights that are the same everywhere ("uniform"). A name of several words
has the mean of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.captioning.caption import Caption
from captioner.datasets.coverage import covered_shares
from captioner.datasets.instances import AnnotatedImage, ImageId, Instances
from captioner.datasets.object_names import find_mentions
from captioner.evaluation.metrics.bootstrap import (
    RESAMPLES,
    Difference,
    Interval,
    bootstrap,
    find_difference,
    find_interval,
)
from captioner.evaluation.tables import Table, number, without_nan
from captioner.images.geometry import Geometry

Values = NDArray[np.float64]
METHODS = ("attention", "caption", "centre", "uniform")
MEASURES = ("pointing", "mass")
SPREAD = 0.25  # standard deviation of the Gaussian in the middle, of the sides of what the network saw


@dataclass(frozen=True)
class Score:
    """A share, 0..1 (NaN of no words), its bootstrap interval over images, and how far attention's lies above it.

    Both of the latter are None where no resamples were asked for, and attention does not lie above itself.
    """

    value: float
    interval: Interval | None
    advantage: Difference | None


@dataclass(frozen=True)
class GroundingRow:
    """What the `words` names of objects in `images` images score, by method (see METHODS)."""

    words: int
    images: int
    pointing: dict[str, Score]
    mass: dict[str, Score]


@dataclass(frozen=True)
class Grounding:
    """Grounding of one model's captions.

    `captions` were examined; `absent` counts by category the names of objects that have no box in what the network
    saw, the images' annotators having boxed every object of the category; `misfits` are the images left out because
    their boxes were drawn on an image of another shape.
    """

    captions: int
    overall: GroundingRow
    categories: dict[str, GroundingRow]
    absent: dict[str, int]
    misfits: int

    @property
    def absent_share(self) -> float:
        """The share, 0..1, of the names of objects whose object is not there; NaN where no object is named."""
        absent = sum(self.absent.values())
        return absent / (absent + self.overall.words) if absent + self.overall.words else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; None stands for a share of no words."""
        plain: dict[str, Any] = without_nan(asdict(self) | {"absent_share": self.absent_share})
        return plain

    def to_text(self) -> str:
        """Return the numbers as lines of text: all names, then by category, the most frequent first."""
        rows = [("all names", self.overall)]
        rows += sorted(self.categories.items(), key=lambda row: (-row[1].words, row[0]))
        head = ["", "words", "images", *("pointing", *METHODS[1:]), *("mass", *METHODS[1:])]
        lines = []
        for name, row in rows:
            scores = [*row.pointing.values(), *row.mass.values()]
            lines.append([name, str(row.words), str(row.images), *(number(score.value, ".1%") for score in scores)])
        notes = [f"objects named that are not there: {sum(self.absent.values())} ({number(self.absent_share, '.1%')})"]
        if self.misfits:
            notes.append(f"left out {self.misfits} images whose boxes are of an image of another shape")
        for measure in MEASURES:
            notes += _intervals(measure, getattr(self.overall, measure))
        return "\n".join([f"{self.captions:,} captions", Table([head, *lines]).to_text(), *notes])


def measure_grounding(
    captions: Sequence[Caption],
    image_ids: Sequence[ImageId],
    instances: Instances,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Grounding:
    """Hold the attention of captions against the boxes of their images; `resamples` 0 gives no intervals."""
    if len(captions) != len(image_ids):
        raise ValueError(f"{len(captions)} captions for {len(image_ids)} image ids; expected one for each")
    if unknown := [image_id for image_id in image_ids if image_id not in instances.images]:
        first = ", ".join(map(str, unknown[:5]))
        raise ValueError(f"{len(unknown)} of {len(image_ids)} images have no object annotations, the first are {first}")
    scored: dict[str, dict[int, list[Values]]] = {}  # by category and image: (methods, measures) for each name
    absent: dict[str, int] = {}
    misfits = 0
    for index, (caption, image_id) in enumerate(zip(captions, image_ids, strict=True)):
        image = instances.images[image_id]
        if not _same_shape(image, caption.geometry):
            misfits += 1
            continue
        for category, scores in _score_caption(caption, image, instances.categories):
            if scores is None:
                absent[category] = absent.get(category, 0) + 1
            else:
                scored.setdefault(category, {}).setdefault(index, []).append(scores)
    everything: dict[int, list[Values]] = {}
    for by_image in scored.values():
        for index, values in by_image.items():
            everything.setdefault(index, []).extend(values)
    return Grounding(
        len(captions),
        _summarise(everything, resamples, seed),
        {category: _summarise(scored[category], resamples, seed) for category in sorted(scored)},
        dict(sorted(absent.items())),
        misfits,
    )


def _score_caption(
    caption: Caption, image: AnnotatedImage, categories: Iterable[str]
) -> list[tuple[str, Values | None]]:
    """Return each category that the caption names with its scores (methods, measures), or None where it is absent."""
    found: list[tuple[str, Values | None]] = []
    for mention in find_mentions(caption.words):
        if mention.category not in categories:
            continue
        boxes = _fitted_boxes(image, mention.category, caption.geometry)
        weights = caption.attention[mention.start : mention.end].mean(axis=0, dtype=np.float64)  # (rows, columns)
        found.append((mention.category, _score(weights, caption, boxes) if _is_seen(boxes, caption.geometry) else None))
    return found


def _score(weights: Values, caption: Caption, boxes: Values) -> Values:
    """Return how well weights (rows, columns) and the maps that did not see the word meet the boxes (n, 4)."""
    geometry, grid = caption.geometry, caption.attention.shape[1:]
    shares = covered_shares(boxes, geometry, grid)  # (rows, columns)
    centres = _inside(_cell_centres(geometry, grid), boxes)  # (rows, columns)
    left, top, right, bottom = geometry.box
    middle = _inside(np.array([(left + right) / 2, (top + bottom) / 2]), boxes)
    mean = caption.attention.mean(axis=0, dtype=np.float64)  # (rows, columns)
    pointing = (_point(weights, centres), _point(mean, centres), float(middle), float(centres.mean()))
    inside = [float((each * shares).sum() / each.sum()) for each in (weights, mean, _central(geometry, grid))]
    mass = (*inside, float(shares.mean()))
    return np.stack([pointing, mass], axis=-1)  # (methods, measures)


def _point(weights: Values, inside: NDArray[np.bool_]) -> float:
    return float(inside[weights == weights.max()].mean())


def _central(geometry: Geometry, grid: tuple[int, int]) -> Values:
    """Return Gaussian weights (rows, columns) around the middle of what was seen."""
    if geometry.boxes is not None:
        away = (_cell_centres(geometry, grid) / (geometry.width, geometry.height) - 0.5) / SPREAD  # (1, boxes, 2)
        around: Values = np.exp(-0.5 * np.square(away).sum(axis=-1))
        return around
    down, across = (((np.arange(count) + 0.5) / count - 0.5) / SPREAD for count in grid)
    weights: Values = np.exp(-0.5 * np.add.outer(down**2, across**2))
    return weights


def _cell_centres(geometry: Geometry, grid: tuple[int, int]) -> Values:
    """Return the (x, y) of the middle of each region (rows, columns, 2), in pixels of the original."""
    if geometry.boxes is not None:
        edges = np.array([geometry.boxes])  # (1, boxes, 4)
        middles: Values = (edges[..., :2] + edges[..., 2:]) / 2
        return middles
    rows, columns = grid
    left, top, right, bottom = geometry.box
    xs = left + (np.arange(columns) + 0.5) * (right - left) / columns
    ys = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
    across, down = np.meshgrid(xs[::-1] if geometry.flipped else xs, ys)
    return np.stack([across, down], axis=-1)


def _inside(points: Values, boxes: Values) -> NDArray[np.bool_]:
    """Tell which points (..., 2) lie in one of the boxes (n, 4)."""
    x, y = points[..., :1], points[..., 1:]
    inside = (boxes[:, 0] <= x) & (x <= boxes[:, 2]) & (boxes[:, 1] <= y) & (y <= boxes[:, 3])  # (..., n)
    return np.asarray(inside.any(axis=-1))


def _fitted_boxes(image: AnnotatedImage, category: str, geometry: Geometry) -> Values:
    """Return the boxes (n, 4) of a category on the image that was captioned, which may be a smaller copy."""
    across, down = geometry.width / image.width, geometry.height / image.height
    fitted: Values = image.boxes(category) * np.array([across, down, across, down])
    return fitted


def _is_seen(boxes: Values, geometry: Geometry) -> bool:
    """Tell whether a box has a part, however small, in what the network saw."""
    left, top, right, bottom = geometry.box
    width = np.minimum(boxes[:, 2], right) - np.maximum(boxes[:, 0], left)
    height = np.minimum(boxes[:, 3], bottom) - np.maximum(boxes[:, 1], top)
    return bool(((width > 0) & (height > 0)).any())


def _same_shape(image: AnnotatedImage, geometry: Geometry) -> bool:
    """Tell whether the captioned image is the annotated one at some size, its sides rounded to whole pixels."""
    scale = max(geometry.width / image.width, geometry.height / image.height)
    return abs(geometry.width - scale * image.width) <= 1 and abs(geometry.height - scale * image.height) <= 1


@dataclass(frozen=True)
class _Sums:
    """Scores added up by image, so that a selection of images is scored by adding these up."""

    words: Values  # (I,)
    scores: Values  # (I, methods * measures)

    def resample(self, rows: NDArray[np.int64]) -> dict[str, Values]:
        """Return each method's measures (R,) on selections (R, I) of images."""
        means = self.scores[rows].sum(axis=1) / self.words[rows].sum(axis=1)[:, None]  # (R, methods * measures)
        return dict(zip(_KEYS, means.T, strict=True))


_KEYS = tuple(f"{method} {measure}" for method in METHODS for measure in MEASURES)


def _summarise(images: Mapping[int, Sequence[Values]], resamples: int, seed: int) -> GroundingRow:
    """Average the scores (methods, measures) of names, given by image, with intervals over the images."""
    sums = _Sums(
        np.array([len(rows) for rows in images.values()], dtype=np.float64),
        np.array([np.sum(rows, axis=0).ravel() for rows in images.values()]).reshape(-1, len(_KEYS)),
    )
    total = int(sums.words.sum())
    values = dict(zip(_KEYS, sums.scores.sum(axis=0) / total if total else np.full(len(_KEYS), np.nan), strict=True))
    drawn = bootstrap(sums, len(images), resamples=resamples, seed=seed) if total and resamples else {}
    scores = {
        (method, measure): _with_interval(method, measure, values, drawn) for method in METHODS for measure in MEASURES
    }
    pointing, mass = ({method: scores[method, measure] for method in METHODS} for measure in MEASURES)
    return GroundingRow(total, len(images), pointing, mass)


def _with_interval(method: str, measure: str, values: Mapping[str, float], drawn: Mapping[str, Values]) -> Score:
    key, attended = f"{method} {measure}", f"{METHODS[0]} {measure}"
    if not drawn:
        return Score(float(values[key]), None, None)
    above = find_difference(values[key], values[attended], drawn[key], drawn[attended]) if key != attended else None
    return Score(float(values[key]), find_interval(drawn[key]), above)


def _intervals(measure: str, scores: Mapping[str, Score]) -> list[str]:
    """Return lines on how sure a measure is, in per cent."""
    lines = []
    for name, score in scores.items():
        if score.interval:
            line = f"{measure} of {name} {score.value:.1%} ({score.interval.low:.1%} to {score.interval.high:.1%})"
            lines.append(line)
        if score.advantage:
            low, high = score.advantage.interval.low, score.advantage.interval.high
            lines[-1] += (
                f", attention {100 * score.advantage.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) points"
            )
    return lines
