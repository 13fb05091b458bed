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

from captioner.files import printable
from captioner.images.geometry import Box, Geometry
from captioner.images.opening import ImageError, decode_image, turn_upright
from captioner.threads import map_ahead

FITS = ("crop", "squash", "pad")
BOXES = "boxes"  # the fit of regions that are imported, for which no pixels are read
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

    `fit` is "squash" (all of the image, its aspect ratio lost), "crop" (the shortest side resized to `resize`, then the
    central `size` x `size`, its margins lost) or "pad" (all of the image in its shape: the longest side takes `size`,
    the other as many whole cells of the region grid as come closest, and the mean colour fills the rest, below or to
    the right). `cells` is the side of that grid, which the encoder tells. `mean` and `std` are per channel, for values
    in 0..1.
    """

    size: int
    fit: str = "squash"
    resize: int | None = None
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    flip: bool = False
    cells: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}; it must be at least 1 pixel")
        if self.fit not in (*FITS, BOXES):
            raise ValueError(f"fit is {self.fit!r}; choose from {', '.join(FITS)}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation is {self.interpolation!r}; choose from {', '.join(INTERPOLATIONS)}")
        if self.resize is not None and (self.fit != "crop" or self.resize < self.size):
            raise ValueError(f"resize is {self.resize}; it goes with fit 'crop' and must be at least size {self.size}")
        if self.cells is not None and (self.fit != "pad" or not 1 <= self.cells <= self.size):
            raise ValueError(f"cells is {self.cells}; it goes with fit 'pad' and must be from 1 to size {self.size}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise ValueError(f"{name} is {values}; it must be three numbers, for red, green and blue")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it must be above 0")

    def geometry(self, width: int, height: int) -> Geometry:
        """Return where the input lies on an upright image of `width` x `height` pixels."""
        if self.fit != "crop":
            return Geometry(width, height, (0.0, 0.0, float(width), float(height)), self.flip)
        side = min(width, height) * self.size / (self.resize or self.size)
        left, top = (width - side) / 2, (height - side) / 2
        return Geometry(width, height, (left, top, left + side, top + side), self.flip)

    def filled(self, geometry: Geometry) -> tuple[int, int] | None:
        """Return how many rows and columns of the region grid an image fills, the first ones; None for all of them."""
        if geometry.boxes is not None:
            return 1, len(geometry.boxes)
        if self.fit != "pad":
            return None
        if self.cells is None:
            raise ValueError("cells is None; fit 'pad' needs the side of the encoder's region grid")
        width, height = geometry.width, geometry.height
        rows, columns = (max(1, round(self.cells * side / max(width, height))) for side in (height, width))
        return rows, columns

    def apply(self, image: Image.Image) -> Prepared:
        """Fit an opened image."""
        self._refuse_pixels("image")
        geometry = self.geometry(*image.size)
        return self._prepared(self._fitted(image, geometry.box, image.size), geometry)

    def read(self, source: str | os.PathLike[str] | bytes) -> Prepared:
        """Open and fit an image file; a JPEG much larger than the input is decoded at 1/2, 1/4 or 1/8 of its size."""
        self._refuse_pixels("image" if isinstance(source, bytes) else printable(os.fspath(source)))
        # Twice the side that is needed: the final resize then hides that the decoder did part of the reduction.
        decoded = decode_image(source, at_least=2 * (self.resize or self.size))
        # Every fit treats both sides alike, so the input can be turned upright instead of the image, which is larger.
        left, top, right, bottom = (edge / decoded.reduction for edge in self.geometry(*decoded.size).box)
        fitted = self._fitted(decoded.image, (left, top, right, bottom), decoded.size)
        upright_size = decoded.size[::-1] if decoded.is_sideways else decoded.size
        return self._prepared(turn_upright(fitted, decoded.orientation), self.geometry(*upright_size))

    def _refuse_pixels(self, name: str) -> None:
        if self.fit == BOXES:
            raise ImageError(name, "its regions were not imported, and this model cannot make them of pixels")

    def _fitted(self, image: Image.Image, box: Box, original: tuple[int, int]) -> Image.Image:
        """Return the part of the input that shows the `box` of an image, which has the `original` (width, height)."""
        left, top, right, bottom = box
        rows, columns = self.filled(self.geometry(*original)) or (1, 1)
        cells = self.cells or 1
        return image.resize(
            (round(self.size * columns / cells), round(self.size * rows / cells)),
            INTERPOLATIONS[self.interpolation],
            box=(left, top, min(right, image.width), min(bottom, image.height)),
            reducing_gap=3.0,  # large reductions start with a fast box filter; not visible at this gap
        )

    def _prepared(self, fitted: Image.Image, geometry: Geometry) -> Prepared:
        if self.flip:
            fitted = fitted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.fit == "pad":
            red, green, blue = (round(255 * level) for level in self.mean)
            canvas = Image.new("RGB", (self.size, self.size), (red, green, blue))
            canvas.paste(fitted)
            fitted = canvas
        return Prepared(np.array(fitted), geometry)  # (S, S, 3), a copy because Pillow's own array is read-only

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        if self.cells is None:  # before padding there was no such key, and identities of other fits stay as they were
            del values["cells"]
        return values

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
