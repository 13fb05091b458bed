"""From an image to a network input: one way for training, caches, evaluation, captions, overlays and the web page."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.images.geometry import Box, Geometry
from captioner.images.opening import ImageError, decode_image, turn_upright
from captioner.threads import map_ahead

FITS = ("crop", "squash")
INTERPOLATIONS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Prepared:
    """One image as the network takes it: `pixels` (S, S, 3) uint8, and the way back to the original."""

    pixels: NDArray[np.uint8]
    geometry: Geometry


@dataclass(frozen=True)
class Preprocessing:
    """How an encoder wants its images; the one way from an image to a network input.

    `fit` is "squash" (all of the image, its aspect ratio lost) or "crop" (the shortest side resized to `resize`, then
    the central `size` x `size`, its margins lost). `mean` and `std` are per channel, for values in 0..1.
    """

    size: int
    fit: str = "squash"
    resize: int | None = None
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    flip: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}; it must be at least 1 pixel")
        if self.fit not in FITS:
            raise ValueError(f"fit is {self.fit!r}; choose from {', '.join(FITS)}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation is {self.interpolation!r}; choose from {', '.join(INTERPOLATIONS)}")
        if self.resize is not None and (self.fit == "squash" or self.resize < self.size):
            raise ValueError(f"resize is {self.resize}; it goes with fit 'crop' and must be at least size {self.size}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise ValueError(f"{name} is {values}; it must be three numbers, for red, green and blue")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it must be above 0")

    def geometry(self, width: int, height: int) -> Geometry:
        """Return where the input lies on an upright image of `width` x `height` pixels."""
        if self.fit == "squash":
            return Geometry(width, height, (0.0, 0.0, float(width), float(height)), self.flip)
        side = min(width, height) * self.size / (self.resize or self.size)
        left, top = (width - side) / 2, (height - side) / 2
        return Geometry(width, height, (left, top, left + side, top + side), self.flip)

    def apply(self, image: Image.Image) -> Prepared:
        """Fit an opened image."""
        geometry = self.geometry(*image.size)
        return self._prepared(self._fitted(image, geometry.box), geometry)

    def read(self, source: str | os.PathLike[str] | bytes) -> Prepared:
        """Open and fit an image file; a JPEG much larger than the input is decoded at 1/2, 1/4 or 1/8 of its size."""
        # Twice the side that is needed: the final resize then hides that the decoder did part of the reduction.
        decoded = decode_image(source, at_least=2 * (self.resize or self.size))
        # Both fits are symmetric, so the input can be turned upright instead of the image, which is larger.
        left, top, right, bottom = (edge / decoded.reduction for edge in self.geometry(*decoded.size).box)
        fitted = self._fitted(decoded.image, (left, top, right, bottom))
        upright_size = decoded.size[::-1] if decoded.is_sideways else decoded.size
        return self._prepared(turn_upright(fitted, decoded.orientation), self.geometry(*upright_size))

    def _fitted(self, image: Image.Image, box: Box) -> Image.Image:
        left, top, right, bottom = box
        return image.resize(
            (self.size, self.size),
            INTERPOLATIONS[self.interpolation],
            box=(left, top, min(right, image.width), min(bottom, image.height)),
            reducing_gap=3.0,  # large reductions start with a fast box filter; not visible at this gap
        )

    def _prepared(self, fitted: Image.Image, geometry: Geometry) -> Prepared:
        if self.flip:
            fitted = fitted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return Prepared(np.array(fitted), geometry)  # (S, S, 3), a copy because Pillow's own array is read-only

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Rebuild from `to_dict`, through JSON or not."""
        names = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(names)):
            raise ValueError(f"unknown preprocessing setting {', '.join(unknown)}; choose from {', '.join(names)}")
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**plain)


def read_ahead(
    paths: Iterable[str | os.PathLike[str]], preprocessing: Preprocessing, *, workers: int = 2, ahead: int = 64
) -> Iterator[Prepared | ImageError]:
    """Yield each image fitted, or why it was refused, in order, decoding at most `ahead` of them beforehand."""

    def prepare(path: str | os.PathLike[str]) -> Prepared | ImageError:
        try:
            return preprocessing.read(path)
        except ImageError as error:
            return error.copy()  # the first one's traceback would keep the file's bytes alive

    return map_ahead(prepare, paths, workers=workers, ahead=ahead, name="decode")
