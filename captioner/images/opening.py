"""Opening image files safely: an image comes out as an upright 8-bit RGB `PIL.Image`, or `ImageError` says why not."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TypeVar

from PIL import Image, ImageOps
from PIL.ExifTags import Base as Tag

from captioner.files import one_line, printable
from captioner.images.formats import open_reader, to_rgb
from captioner.images.headers.header import FORMATS, Damaged, Header, announced_pixels, find_format, read_header
from captioner.images.headers.raw_previews import find_preview
from captioner.images.headers.tiff import check_directory
from captioner.images.kinds import why_unread

Found = TypeVar("Found")
ImageSource = str | os.PathLike[str] | bytes | Image.Image
MAX_PIXELS = 50_000_000
MAX_SIDE = 100_000
# More than any whole image within MAX_PIXELS needs (50 megapixels of four 16-bit channels, uncompressed).
MAX_BYTES = 512_000_000
# A small picture may have so much beside its pixels, as an animation or a file of several pages has, and no more.
FREE_BYTES, BYTES_PER_PIXEL = 100_000_000, 8
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_RAW_EXIF = "Raw profile type exif"  # how some programs store EXIF in a PNG: as text
_SIDEWAYS = (5, 6, 7, 8)


class ImageError(ValueError):
    """An image was refused: its `name`, fit to print, and the `reason`; the message is both on one line."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason

    def copy(self) -> ImageError:
        """Return the same error without its traceback, which keeps all that was being read alive."""
        return type(self)(self.name, self.reason)

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str]]:
        return type(self), (self.name, self.reason)


class NotAnImageError(ImageError):
    """What was given is not an image, or not in a known format; any other `ImageError` is of a damaged image."""


@dataclass(frozen=True)
class Decoded:
    """An RGB image as it is stored, not yet upright."""

    image: Image.Image
    size: tuple[int, int]  # of the original, as stored
    reduction: float  # how many times smaller than the original a JPEG was decoded
    orientation: int  # EXIF's

    @property
    def is_sideways(self) -> bool:
        """Whether width and height change places when the image is turned upright."""
        return self.orientation in _SIDEWAYS


def open_image(source: ImageSource) -> Image.Image:
    """Return a file, the bytes of one or a Pillow image as upright RGB at full size; raise `ImageError` if unsound."""
    if isinstance(source, Image.Image):
        return _convert(source)
    decoded = decode_image(source)
    return turn_upright(decoded.image, decoded.orientation)


def _convert(image: Image.Image) -> Image.Image:
    if 0 in image.size:
        raise ImageError("image", f"it has {image.width} x {image.height} pixels")
    try:
        return to_rgb(ImageOps.exif_transpose(image))
    except OSError as error:  # Pillow decodes late
        raise ImageError("image", f"cannot be decoded: {one_line(error)}") from None


def decode_image(source: str | os.PathLike[str] | bytes, at_least: int | None = None) -> Decoded:
    """Open an image file, or its bytes, as it is stored; a JPEG need be no larger than `at_least` on its sides."""
    return _read(source, lambda data, header: _decode(data, header, at_least))


def upright_size(source: str | os.PathLike[str] | bytes) -> tuple[int, int]:
    """Return the width and height that `open_image` gives, without unpacking any pixels."""
    return _read(source, _upright_size)


def _read(source: str | os.PathLike[str] | bytes, read: Callable[[bytes, Header], Found]) -> Found:
    """Return what `read` makes of a file's bytes, once their headers are found sound."""
    name = "image" if isinstance(source, bytes) else printable(os.fspath(source))
    try:
        data = source if isinstance(source, bytes) else _read_file(source)[0]
        data, orientation = _preview(data) or (data, None)
        if (missing := why_unread(find_format(data))) is not None:
            raise NotAnImageError(name, missing)
        header = read_header(data)
        if header is None and data:
            raise NotAnImageError(name, f"not one of {', '.join(FORMATS)}")
        if header is None:
            raise Damaged("empty file")
        if header.width * header.height > MAX_PIXELS:
            raise Damaged(
                f"{header.width} x {header.height} is {header.width * header.height / 1e6:,.1f} megapixels; "
                f"at most {MAX_PIXELS / 1e6:.0f} are opened"
            )
        if (longest := max(header.width, header.height)) > MAX_SIDE:  # Pillow takes memory for each row too
            raise Damaged(
                f"{header.width} x {header.height}: it is {longest:,} pixels long; at most {MAX_SIDE:,} are read"
            )
        check_bytes(len(data), header.pixels)
        return read(data, replace(header, orientation=orientation))
    except NotAnImageError:
        raise
    except Damaged as error:
        raise ImageError(name, str(error)) from None
    except Exception as error:
        # Decoders meet damaged data with whatever exception comes up (struct.error, KeyError, SyntaxError, ...).
        raise ImageError(name, f"cannot be decoded: {one_line(error)}") from error


def _preview(data: bytes) -> tuple[bytes, int | None] | None:
    """Return the preview in a camera raw file and its orientation, None for any other file."""
    try:
        return find_preview(data, MAX_PIXELS)
    except ValueError as error:
        raise Damaged(str(error)) from None


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
    """Return what an image file holds, and its status; raise `ImageError` where it cannot be read, or need not be."""
    try:
        return _read_file(path)
    except Damaged as error:
        raise ImageError(printable(os.fspath(path)), str(error)) from None


def _read_file(path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
    try:
        # A pipe would block at its opening already.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Damaged("not a regular file")
            if status.st_size > MAX_BYTES:
                raise Damaged(f"{status.st_size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are read")
            if status.st_size > FREE_BYTES:
                check_bytes(status.st_size, announced_pixels(file.read(1 << 20), partial(_read_at, file)))
                file.seek(0)
            return file.read(status.st_size), status
    except OSError as error:
        raise Damaged((error.strerror or str(error)).lower()) from None
    except ValueError as error:  # also of a name that no file can have
        raise Damaged(one_line(error)) from None


def _read_at(file: IO[bytes], offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def check_bytes(length: int, pixels: int) -> None:
    """Raise `Damaged` where a file is far larger than its picture."""
    if length > (most := FREE_BYTES + BYTES_PER_PIXEL * pixels):
        raise Damaged(
            f"{length / 1e6:,.0f} MB for {pixels / 1e6:.1f} megapixels; at most {most / 1e6:,.0f} MB are read then"
        )


def _decode(data: bytes, header: Header, at_least: int | None) -> Decoded:
    with open_reader(data, header) as image:
        size = image.size
        draft = image.draft(None, (at_least, at_least)) if at_least and header.format == "JPEG" else None
        image.load()
        if draft is None:
            return Decoded(to_rgb(image), image.size, 1.0, _orientation(image, header))
        # The last row and column of a reduced image may lie partly outside of it, as the draft's box tells.
        return Decoded(to_rgb(image), size, size[0] / draft[1][2], _orientation(image, header))


def _upright_size(data: bytes, header: Header) -> tuple[int, int]:
    with open_reader(data, header) as image:
        # Pillow turns a TIFF itself, and gives the size of the turned one from the start.
        is_sideways = header.format != "TIFF" and _orientation(image, header) in _SIDEWAYS
        width, height = image.size
        return (height, width) if is_sideways else (width, height)


def _orientation(image: Image.Image, header: Header) -> int:
    if header.orientation is not None:
        return header.orientation
    try:
        block = image.info.get("exif") or bytes.fromhex("".join(image.info.get(_RAW_EXIF, "").split("\n")[3:]))
        if block:
            check_directory(block.removeprefix(b"Exif\0\0"))
        return int(image.getexif().get(Tag.Orientation, 1))
    except Exception:  # a damaged EXIF block is no reason to refuse the picture
        return 1


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image turned as its EXIF orientation, 1..8, asks for."""
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
