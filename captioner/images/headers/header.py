"""What an image file's headers say before any pixel is unpacked, read within bounds.

`read_header` unpacks nothing, so a bomb or half a file is known for what it is at the cost of reading its headers. What
it lets through holds no more parts, comments or repeated bytes than a decoder gets through in a moment.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from captioner.images.headers.avif_heic import measure_boxes
from captioner.images.headers.jpeg import MAX_METADATA, announced_jpeg_pixels, measure_jpeg
from captioner.images.headers.tiff import announced_tiff_pixels, measure_tiff

MAX_PARTS = 100_000  # chunks or blocks; a decoder takes some microseconds for each
MAX_PROFILES = 10  # colour profiles of a PNG: each unpacks to a thousand times its size
MIN_GIF_BLOCK = 64  # bytes on average; encoders fill them, to 255
# Run lengths are unpacked by a loop in Python.
MAX_RUN_LENGTH_PIXELS, MAX_RUN_LENGTH_BYTES = 4_000_000, 1_000_000

_PNG_PIXELS, _WEBP_PIXELS = (b"IDAT", b"fdAT"), (b"VP8 ", b"VP8L", b"ALPH", b"ANMF")
_BMP_UNCOMPRESSED, _BMP_RUN_LENGTHS = (0, 3, 6), (1, 2)
# Two letters begin many a text; the size of a known header must follow those of a BMP.
_SIGNATURES = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "GIF": re.compile(rb"GIF8[79]a"),
    "WEBP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "BMP": re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL),
    "TIFF": re.compile(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"),
    # The brand of the file, or one of those that it is compatible with.
    "AVIF": re.compile(rb"\0\0..ftyp(?:.{4}.{4})?(?:.{4}){0,12}?avi[fs]", re.DOTALL),
    "HEIC": re.compile(rb"\0\0..ftyp(?:.{4}.{4})?(?:.{4}){0,12}?(?:hei[cxms]|hev[cxms])", re.DOTALL),
}


class Damaged(ValueError):
    """A file holds no whole and sound image; the message says why, without the file's name."""


@dataclass(frozen=True)
class Header:
    """The format and the stored size of an image, before any rotation."""

    format: str
    width: int
    height: int
    orientation: int | None = None  # EXIF's, where it is told elsewhere than in the image

    @property
    def pixels(self) -> int:
        """How many pixels there are."""
        return self.width * self.height


def read_header(data: bytes) -> Header | None:
    """Return what `data` holds, None when it is of no known format; raise `Damaged` when it is not sound and whole."""
    name = find_format(data)
    if name is None:
        return None
    try:
        width, height = _MEASURES[name](data)
    except (struct.error, IndexError):
        raise Damaged("truncated: it ends too soon") from None
    if width < 1 or height < 1:
        raise Damaged(f"its header gives a size of {width} x {height}")
    return Header(name, width, height)


def announced_pixels(head: bytes, read: Callable[[int, int], bytes]) -> int:
    """Return how many pixels a file announces by its first bytes, 0 if they do not tell; nothing else is checked.

    `read` gives the bytes from an offset on, so many of them: the directory of a TIFF may lie anywhere.
    """
    name = find_format(head)
    try:
        if name == "JPEG":
            return announced_jpeg_pixels(head)
        if name == "TIFF":
            return announced_tiff_pixels(read)
        if name in ("AVIF", "HEIC"):  # of which none is so large
            return 0
        if name is not None:
            layout, offset = {"PNG": (">II", 16), "GIF": ("<HH", 6), "BMP": ("<ii", 18)}.get(name, ("<HxH", 24))
            width, height = struct.unpack_from(layout, head, offset)
            return int(abs(width * height))
    except (struct.error, IndexError):
        pass
    return 0


def find_format(data: bytes) -> str | None:
    """Return the format that the first bytes of a file are of, None if it is no known one."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(data)), None)


def _bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise Damaged(f"it has more than {most:,} {what}")


def _measure_png(data: bytes) -> tuple[int, int]:
    kind, width, height = struct.unpack_from(">4sII", data, 12)
    if kind != b"IHDR":
        raise Damaged("it does not begin with its IHDR chunk")
    position, parts, metadata, profiles = 8, 0, 0, 0
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        position += 12 + length
        if kind == b"IEND":
            return width, height
        parts, profiles = parts + 1, profiles + (kind == b"iCCP")
        metadata += 0 if kind in _PNG_PIXELS else length
        _bound(parts, MAX_PARTS, "chunks")
        if position <= len(data):  # or else it is cut off
            _bound(metadata, MAX_METADATA, "bytes of metadata")
        _bound(profiles, MAX_PROFILES, "colour profiles")
    raise Damaged("truncated: it ends before its IEND chunk")


def _measure_gif(data: bytes) -> tuple[int, int]:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position, parts, metadata = 13 + _gif_palette_bytes(flags), 0, 0
    spare = MAX_PARTS + len(data) // MIN_GIF_BLOCK  # blocks within the parts that there may still be
    while position < len(data):
        block, position, parts = data[position], position + 1, parts + 1
        _bound(parts, MAX_PARTS, "blocks")
        if block == 0x3B:
            return width, height
        if block == 0x2C:
            left, top, columns, rows, flags = struct.unpack_from("<4HB", data, position)
            # A frame may reach beyond the screen, and decoders then enlarge the screen.
            width, height = max(width, left + columns), max(height, top + rows)
            position, spare = _skip_gif_blocks(data, position + 9 + _gif_palette_bytes(flags) + 1, spare)
        elif block == 0x21:
            start = position + 1
            position, spare = _skip_gif_blocks(data, start, spare)
            metadata += position - start
            _bound(metadata, MAX_METADATA, "bytes of metadata")
        elif block != 0:
            raise Damaged(f"it has an unknown block {block:#04x} at byte {position - 1}")
    raise Damaged("truncated: it ends before its trailer")


def _gif_palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_gif_blocks(data: bytes, position: int, spare: int) -> tuple[int, int]:
    """Return the byte after a row of blocks and how many there may still be."""
    while length := data[position]:
        position += length + 1
        spare -= 1
        if spare < 0:
            raise Damaged(f"its blocks are smaller than {MIN_GIF_BLOCK} bytes")
    return position + 1, spare


def _measure_webp(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise Damaged(f"truncated: it announces {length + 8} bytes and has {len(data)}")
    position, parts, metadata = 12, 0, 0
    while position + 8 <= length + 8:
        kind, part = struct.unpack_from("<4sI", data, position)
        position, parts = position + 8 + part + part % 2, parts + 1
        metadata += 0 if kind in _WEBP_PIXELS else part
        _bound(parts, MAX_PARTS, "chunks")
        _bound(metadata, MAX_METADATA, "bytes of metadata")
    kind = data[12:16]
    if kind == b"VP8X":
        width, width_high, height, height_high = struct.unpack_from("<HBHB", data, 24)
        return 1 + width + (width_high << 16), 1 + height + (height_high << 16)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise Damaged(f"its first chunk is {kind!r}, not one of VP8, VP8L, VP8X")


def _measure_bmp(data: bytes) -> tuple[int, int]:
    offset, header = struct.unpack_from("<II", data, 10)
    if header == 12:  # OS/2: no compression, short sizes
        width, height, _, bits = struct.unpack_from("<4H", data, 18)
        compression = stored = 0
    else:
        width, height, _, bits, compression, stored = struct.unpack_from("<iiHHII", data, 18)
        height = abs(height)  # negative: rows from the top
    needed = (width * bits + 31) // 32 * 4 * height if compression in _BMP_UNCOMPRESSED else stored
    if offset + needed > len(data):
        raise Damaged(f"truncated: its pixels need {offset + needed} bytes and it has {len(data)}")
    if compression in _BMP_RUN_LENGTHS:
        _bound(width * height, MAX_RUN_LENGTH_PIXELS, "pixels in run lengths")
        _bound(len(data) - offset, MAX_RUN_LENGTH_BYTES, "bytes of run lengths")
    return width, height


def _plainly(measure: Callable[[bytes], tuple[int, int]]) -> Callable[[bytes], tuple[int, int]]:
    """Return a function that raises `Damaged` where this one raises ValueError."""

    def measure_plainly(data: bytes) -> tuple[int, int]:
        try:
            return measure(data)
        except ValueError as error:
            raise Damaged(str(error)) from None

    return measure_plainly


_MEASURES: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "JPEG": _plainly(measure_jpeg),
    "PNG": _measure_png,
    "GIF": _measure_gif,
    "WEBP": _measure_webp,
    "BMP": _measure_bmp,
    "TIFF": _plainly(measure_tiff),
    "AVIF": _plainly(measure_boxes),
    "HEIC": _plainly(measure_boxes),
}
FORMATS = tuple(_MEASURES)
