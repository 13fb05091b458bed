"""A caption: its words, how sure the model was of each, and where it looked for it; or why an image has none."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.files import printable
from captioner.images.finding import Source
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError, ImageSource, open_image

# What half precision loses of a sum of a few hundred weights, and no more.
_SUM_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class Caption:
    """What a model says of one image, and where it looked for each of the T words."""

    text: str
    words: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (T,), of each word
    log_prob: float  # of all words and the end marker
    attention: NDArray[np.float32] = field(repr=False)  # (T, rows, columns), each word's weights sum to one
    beta: NDArray[np.float32]  # (T,), 0..1, how much of the context each word let in
    geometry: Geometry  # where the grid lies on the original pixels
    source: ImageSource | None = field(default=None, repr=False)  # what it was made of

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
        from captioner.figures.sheets import save_figure
        from captioner.figures.word_grid import word_grid

        save_figure(word_grid(self.open_source(), self, style=style, width=width, dpi=dpi), path)


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
