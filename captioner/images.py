"""Images from files to network inputs: find them, open them safely, fit them, and map grid cells back to their pixels.

Conventions: an opened image is an upright 8-bit RGB `PIL.Image`; a box is `(left, top, right, bottom)` in pixels of the
upright original; network inputs are `(S, S, 3)` uint8, 0..255. Normalisation belongs to the encoder.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import Base as Tag

from captioner.image_formats import FORMATS, Damaged, Header, one_line, open_reader, read_header
from captioner.image_formats import printable as printable
from captioner.image_formats import to_rgb as to_rgb
from captioner.threads import map_ahead

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"})
MAX_PIXELS = 50_000_000
# More than any whole image within MAX_PIXELS needs (50 megapixels of four 16-bit channels, uncompressed).
MAX_BYTES = 512_000_000
FITS = ("crop", "squash")
INTERPOLATIONS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
Box = tuple[float, float, float, float]
# An RGB image as it is stored, the size of the original, how many times a JPEG was reduced, and its orientation.
_Opened = tuple[Image.Image, tuple[int, int], float, int]


class ImageError(ValueError):
    """An image was refused; the message is one line that names it and says why."""


@dataclass(frozen=True)
class Geometry:
    """Where the network's square input lies on the upright original image of `width` x `height` pixels."""

    width: int
    height: int
    box: Box  # the part the network sees
    flipped: bool = False  # the network saw it mirrored left to right

    def cell_box(self, row: int, column: int, grid: tuple[int, int]) -> Box:
        """Return the box of one cell of a `grid` of (rows, columns), in pixels of the original."""
        rows, columns = grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"cell ({row}, {column}) is outside a grid of {rows} x {columns}")
        if self.flipped:
            column = columns - 1 - column
        left, top, right, bottom = self.box
        cell_width, cell_height = (right - left) / columns, (bottom - top) / rows
        return (
            left + column * cell_width,
            top + row * cell_height,
            left + (column + 1) * cell_width,
            top + (row + 1) * cell_height,
        )

    def cell_at(self, x: float, y: float, grid: tuple[int, int]) -> tuple[int, int] | None:
        """Return the (row, column) of the cell over a point of the original, None where the network saw nothing."""
        rows, columns = grid
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            return None
        # The quotient is below one, but may round up to it for a point just inside the far edge.
        row = min(int((y - top) / (bottom - top) * rows), rows - 1)
        column = min(int((x - left) / (right - left) * columns), columns - 1)
        return row, columns - 1 - column if self.flipped else column


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
        image, size, reduction, orientation = _open(source, at_least=2 * (self.resize or self.size))
        # Both fits are symmetric, so the input can be turned upright instead of the image, which is larger.
        left, top, right, bottom = self.geometry(*size).box
        fitted = self._fitted(image, (left / reduction, top / reduction, right / reduction, bottom / reduction))
        upright_size = size[::-1] if orientation in _SIDEWAYS else size
        return self._prepared(_upright(fitted, orientation), self.geometry(*upright_size))

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


def find_images(
    paths: Iterable[str | os.PathLike[str]],
    *,
    recursive: bool = False,
    extensions: Container[str] = EXTENSIONS,
    leave_out: str | os.PathLike[str] | None = None,
) -> Iterator[Path]:
    """Yield image files: named files as they are, of folders those with one of the `extensions`, sorted by name.

    Hidden files and folders are left out, and so is the folder `leave_out` unless it is named; a folder that a symlink
    leads back to is visited once. A folder that cannot be listed is yielded itself, so that opening it says why.
    """
    for path in map(Path, paths):
        if os.path.isdir(path):
            yield from _walk(path, recursive, extensions, leave_out)
        else:
            yield path


def _walk(
    top: Path, recursive: bool, extensions: Container[str], leave_out: str | os.PathLike[str] | None
) -> Iterator[Path]:
    visited: set[tuple[int, int]] = set()
    if leave_out is not None and os.path.isdir(leave_out) and not os.path.samefile(leave_out, top):
        status = os.stat(leave_out)
        visited.add((status.st_dev, status.st_ino))
    pending = [(top, True)]  # paths, and whether they are folders; the next one last
    while pending:
        path, is_folder = pending.pop()
        if not is_folder:
            yield path
            continue
        try:
            status = path.stat()
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:
            yield path
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in found:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a symlink to itself
                continue
            is_image = os.path.splitext(entry.name)[1].lower() in extensions
            if not entry.name.startswith(".") and (recursive if is_folder else is_image):
                pending.append((path / entry.name, is_folder))


def read_ahead(
    paths: Iterable[str | os.PathLike[str]], preprocessing: Preprocessing, *, workers: int = 2, ahead: int = 64
) -> Iterator[Prepared | ImageError]:
    """Yield each image fitted, or why it was refused, in order, decoding at most `ahead` of them beforehand."""

    def prepare(path: str | os.PathLike[str]) -> Prepared | ImageError:
        try:
            return preprocessing.read(path)
        except ImageError as error:
            return ImageError(str(error))  # the first one's traceback would keep the file's bytes alive

    return map_ahead(prepare, paths, workers=workers, ahead=ahead, name="decode")


def open_image(source: str | os.PathLike[str] | bytes) -> Image.Image:
    """Open an image file, or its bytes, as upright RGB at full size; raise `ImageError` for anything unsound."""
    image, _, _, orientation = _open(source)
    return _upright(image, orientation)


def _open(source: str | os.PathLike[str] | bytes, at_least: int | None = None) -> _Opened:
    name = "image" if isinstance(source, bytes) else printable(os.fspath(source))
    try:
        data = source if isinstance(source, bytes) else _read_file(source)
        header = read_header(data)
        if header is None:
            raise Damaged(f"not one of {', '.join(FORMATS)}" if data else "empty file")
        if header.width * header.height > MAX_PIXELS:
            raise Damaged(
                f"{header.width} x {header.height} is {header.width * header.height / 1e6:,.1f} megapixels; "
                f"at most {MAX_PIXELS / 1e6:.0f} are opened"
            )
        return _decode(data, header, at_least)
    except Damaged as error:
        raise ImageError(f"{name}: {error}") from None
    except Exception as error:
        # Decoders meet damaged data with whatever exception comes up (struct.error, KeyError, SyntaxError, ...).
        raise ImageError(f"{name}: cannot be decoded: {one_line(error)}") from error


def _read_file(path: str | os.PathLike[str]) -> bytes:
    try:
        # A pipe would block at its opening already.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Damaged("not a regular file")
            if status.st_size > MAX_BYTES:
                raise Damaged(f"{status.st_size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are read")
            return file.read(status.st_size)
    except OSError as error:
        raise Damaged((error.strerror or str(error)).lower()) from None
    except ValueError as error:  # also of a name that no file can have
        raise Damaged(one_line(error)) from None


def _decode(data: bytes, header: Header, at_least: int | None) -> _Opened:
    with open_reader(data, header) as image:
        size = image.size
        draft = image.draft(None, (at_least, at_least)) if at_least else None
        image.load()
        if draft is None:
            return to_rgb(image), image.size, 1.0, _orientation(image)
        # The last row and column of a reduced image may lie partly outside of it, as the draft's box tells.
        return to_rgb(image), size, size[0] / draft[1][2], _orientation(image)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(Tag.Orientation, 1))
    except Exception:  # a damaged EXIF block is no reason to refuse the picture
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
