"""A caption: its words, how sure the model was of each, and where it looked for it; or why an image has none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.files import printable
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError, ImageSource, open_image
from captioner.images.sources import Source

# What half precision loses of a sum of a few hundred weights, and no more.
_SUM_TOLERANCE = 0.02
_DIGITS = 6  # significant ones of probabilities in plain values
_POINT_DECIMALS = 3  # of cells
_GRID_DECIMALS = 5  # of attention weights in plain values: a grid's sum stays right to a thousandth


@dataclass(frozen=True, eq=False, repr=False)
class Caption:
    """What a model says of one image, and where it looked for each of the T words."""

    text: str
    words: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (T,), of each word
    log_prob: float  # of all words and the end marker
    attention: NDArray[np.float32]  # (T, rows, columns), or (T, 1, boxes); each word's weights sum to one
    beta: NDArray[np.float32]  # (T,), 0..1, how much of the context each word let in
    geometry: Geometry  # where the grid or the boxes lie on the original pixels
    source: ImageSource | None = None  # what it was made of
    heads: NDArray[np.float32] | None = None  # (T, layers, heads, rows, columns), where they were asked for
    confidence: float | None = None  # 0..1, how likely people would accept it, where the model can tell
    points: NDArray[np.float32] | None = None  # (T, glimpses, 2), row and column in cells, where a policy chose them
    extents: tuple[float, ...] = ()  # how far the patch of each scale reaches from a point, in cells

    def __post_init__(self) -> None:
        count = len(self.words)
        for name, values in (("probabilities", self.probabilities), ("beta", self.beta)):
            if values.shape != (count,):
                raise ValueError(f"{name} has the shape {values.shape}; {count} words need ({count},)")
            if not np.all((values >= 0) & (values <= 1)):
                raise ValueError(f"{name} is {values.tolist()}; each must be from 0 to 1")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is {self.confidence}; it must be from 0 to 1")
        shape = self.attention.shape
        if len(shape) != 3 or shape[0] != count or 0 in shape[1:]:
            raise ValueError(f"attention has the shape {shape}; {count} words need ({count}, rows, columns)")
        boxes = self.geometry.boxes
        if boxes is not None and shape[1:] != (1, len(boxes)) and count:
            raise ValueError(f"attention has the shape {shape}; {len(boxes)} boxes need ({count}, 1, {len(boxes)})")
        _check_weights("attention", self.attention)
        if self.heads is not None:
            rest = self.heads.shape[1:]
            if len(rest) != 4 or 0 in rest or (len(self.heads), *rest[2:]) != shape:
                expected = f"({count}, layers, heads, {shape[1]}, {shape[2]})"
                raise ValueError(f"heads has the shape {self.heads.shape}; attention of {shape} needs {expected}")
            _check_weights("heads", self.heads)
        if self.points is not None:
            _check_points(self.points, self.extents, count)

    def __repr__(self) -> str:
        rows, columns = self.attention.shape[1:]
        sure = f"{self.probabilities.mean():.2f}" if self.words else "none"
        accepted = "" if self.confidence is None else f", confidence={self.confidence:.2f}"
        return f"Caption({self.text!r}, grid={rows}x{columns}, mean_probability={sure}{accepted})"

    def to_dict(self, *, attention: bool = True) -> dict[str, Any]:
        """Return plain values for JSON, as records hold them: rounded, with attention, gates and geometry or without.

        Weights are (T, rows, columns) as lists, and those of heads, where they are known, (T, layers, heads, rows,
        columns). Points that were chosen are (T, glimpses, 2). `from_dict` makes the caption again, but for its image.
        """
        values: dict[str, Any] = {
            "text": self.text,
            "words": list(self.words),
            "probabilities": [_round(value) for value in self.probabilities.tolist()],
            "log_prob": _round(self.log_prob),
        }
        if self.confidence is not None:
            values["confidence"] = _round(self.confidence)
        if attention:
            values["attention"] = self.attention.astype(float).round(_GRID_DECIMALS).tolist()
            if self.heads is not None:
                values["heads"] = self.heads.astype(float).round(_GRID_DECIMALS).tolist()
            if self.points is not None:
                values["points"] = self.points.astype(float).round(_POINT_DECIMALS).tolist()
                values["extents"] = list(self.extents)
            values["beta"] = [_round(value) for value in self.beta.tolist()]
            values["geometry"] = self.geometry.to_dict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: ImageSource | None = None) -> Caption:
        """Return a caption from `to_dict`, through JSON or not; what is missing or damaged raises one error or other.

        A caption without words has a grid of one cell, since its values do not tell it.
        """
        geometry = Geometry.from_dict(values["geometry"])
        words = tuple(map(str, values["words"]))
        attention = np.asarray(values["attention"], dtype=np.float32)  # (T, rows, columns)
        heads = np.asarray(values["heads"], dtype=np.float32) if words and "heads" in values else None
        confidence = values.get("confidence")
        points = np.asarray(values["points"], dtype=np.float32) if words and "points" in values else None
        if words and geometry.boxes is not None and attention.shape[1:] != (1, len(geometry.boxes)):
            raise ValueError(f"there are {len(geometry.boxes)} boxes for attention of the shape {attention.shape}")
        return cls(
            str(values["text"]),
            words,
            np.asarray(values["probabilities"], dtype=np.float32),
            float(values["log_prob"]),
            attention if words else attention.reshape(0, 1, 1),
            np.asarray(values["beta"], dtype=np.float32),
            geometry,
            source,
            heads,
            None if confidence is None else float(confidence),
            points,
            tuple(map(float, values["extents"])) if points is not None else (),
        )

    def open_source(self) -> Image.Image:
        """Return the image the caption was made of, upright and RGB."""
        if self.source is None:
            raise ValueError(f"the caption {self.text!r} does not know its image; make it with source=")
        return open_image(self.source)

    def save_overlay(
        self, path: str | os.PathLike[str], *, style: str = "mask", width: float = 7.0, dpi: int = 200
    ) -> None:
        """Write the image once plain and once for each word under its attention, as a PNG, PDF or SVG by suffix.

        `style`, `width` (inches) and `dpi` are those of `captioner.figures.word_grid.word_grid`.
        """
        from captioner.figures.drawing import save_figure
        from captioner.figures.word_grid import word_grid

        save_figure(word_grid(self.open_source(), self, style=style, width=width, dpi=dpi), path)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the image, and under the mouse where the model looked for a word."""
        from captioner.figures.notebook import caption_html

        return caption_html(self)


def _check_weights(name: str, weights: NDArray[np.float32]) -> None:
    """Raise ValueError unless weights (..., rows, columns) are positive and sum to one."""
    sums = weights.sum(axis=(-2, -1), dtype=np.float64)  # (...)
    if not (np.all(weights >= 0) and np.all(np.abs(sums - 1) <= _SUM_TOLERANCE)):
        raise ValueError(f"{name} sums to {sums.tolist()}; each word's weights must be positive and sum to 1")


def _check_points(points: NDArray[np.float32], extents: tuple[float, ...], count: int) -> None:
    """Raise ValueError unless points are (count, glimpses, 2) numbers, and their extents above 0."""
    if points.ndim != 3 or len(points) != count or points.shape[2] != 2:
        raise ValueError(f"points has the shape {points.shape}; {count} words need ({count}, glimpses, 2)")
    if not (np.all(np.isfinite(points)) and all(0 < extent < np.inf for extent in extents)):
        raise ValueError(f"points and extents {extents} must be finite numbers, extents above 0")


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Result:
    """What came of one image: its captions, the best first, or the error that left it without."""

    source: Source
    captions: tuple[Caption, ...] = ()
    error: ImageError | None = None

    @property
    def name(self) -> str:
        """The image's name in records: its path as given or found, for a member of an archive with its name in it."""
        return self.source.name

    @classmethod
    def failed(cls, source: Source, reason: str) -> Result:
        """Return that an image has no captions, and why."""
        return cls(source, error=ImageError(printable(source.name), reason))
