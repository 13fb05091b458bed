"""A caption: its words, how sure the model was of each, and where it looked for it; or why an image has none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.files import printable
from captioner.images.finding import Source
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError, ImageSource, open_image

# What half precision loses of a sum of a few hundred weights, and no more.
_SUM_TOLERANCE = 0.02
_SIDES = 2**31  # pixels: no format has more
_DIGITS = 6  # significant ones of probabilities in plain values
_GRID_DECIMALS = 5  # of attention weights in plain values: a grid's sum stays right to a thousandth


@dataclass(frozen=True, eq=False, repr=False)
class Caption:
    """What a model says of one image, and where it looked for each of the T words."""

    text: str
    words: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (T,), of each word
    log_prob: float  # of all words and the end marker
    attention: NDArray[np.float32]  # (T, rows, columns), each word's weights sum to one
    beta: NDArray[np.float32]  # (T,), 0..1, how much of the context each word let in
    geometry: Geometry  # where the grid lies on the original pixels
    source: ImageSource | None = None  # what it was made of

    def __post_init__(self) -> None:
        count = len(self.words)
        for name, values in (("probabilities", self.probabilities), ("beta", self.beta)):
            if values.shape != (count,):
                raise ValueError(f"{name} has the shape {values.shape}; {count} words need ({count},)")
            if not np.all((values >= 0) & (values <= 1)):
                raise ValueError(f"{name} is {values.tolist()}; each must be from 0 to 1")
        shape = self.attention.shape
        if len(shape) != 3 or shape[0] != count or 0 in shape[1:]:
            raise ValueError(f"attention has the shape {shape}; {count} words need ({count}, rows, columns)")
        sums = self.attention.sum(axis=(1, 2), dtype=np.float64)  # (T,)
        if not (np.all(self.attention >= 0) and np.all(np.abs(sums - 1) <= _SUM_TOLERANCE)):
            raise ValueError(f"attention sums to {sums.tolist()}; each word's weights must be positive and sum to 1")

    def __repr__(self) -> str:
        rows, columns = self.attention.shape[1:]
        sure = f"{self.probabilities.mean():.2f}" if self.words else "none"
        return f"Caption({self.text!r}, grid={rows}x{columns}, mean_probability={sure})"

    def to_dict(self, *, attention: bool = True) -> dict[str, Any]:
        """Return plain values for JSON, as records hold them: rounded, with attention, gates and geometry or without.

        Weights are (T, rows, columns) as lists. `from_dict` makes the caption again, but for its image.
        """
        values: dict[str, Any] = {
            "text": self.text,
            "words": list(self.words),
            "probabilities": [_round(value) for value in self.probabilities.tolist()],
            "log_prob": _round(self.log_prob),
        }
        if attention:
            values["attention"] = self.attention.astype(float).round(_GRID_DECIMALS).tolist()
            values["beta"] = [_round(value) for value in self.beta.tolist()]
            values["geometry"] = {**asdict(self.geometry), "box": list(self.geometry.box)}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: ImageSource | None = None) -> Caption:
        """Return a caption from `to_dict`, through JSON or not; what is missing or damaged raises one error or other.

        A caption without words has a grid of one cell, since its values do not tell it.
        """
        geometry = values["geometry"]
        width, height = int(geometry["width"]), int(geometry["height"])
        left, top, right, bottom = map(float, geometry["box"])
        if not (
            1 <= width < _SIDES and 1 <= height < _SIDES and -_SIDES < left < right < _SIDES > bottom > top > -_SIDES
        ):
            raise ValueError(f"its geometry is {geometry}")
        words = tuple(map(str, values["words"]))
        attention = np.asarray(values["attention"], dtype=np.float32)  # (T, rows, columns)
        return cls(
            str(values["text"]),
            words,
            np.asarray(values["probabilities"], dtype=np.float32),
            float(values["log_prob"]),
            attention if words else attention.reshape(0, 1, 1),
            np.asarray(values["beta"], dtype=np.float32),
            Geometry(width, height, (left, top, right, bottom), bool(geometry["flipped"])),
            source,
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
