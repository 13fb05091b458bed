"""TIFF directories, and EXIF blocks, read within bounds: they can point anywhere, and at the same bytes often.

Pillow keeps a copy of all that a directory points at, and spends some microseconds on each strip.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from itertools import repeat, zip_longest

from PIL import TiffImagePlugin
from PIL.ExifTags import Base as Tag

from captioner.files import one_line
from captioner.images.headers.jpeg import START_OF_SCAN, check_scans

MAX_FIELDS = 1000
MAX_FIELD_BYTES = 32_000_000  # of all fields together
MAX_STRIPS = 40_000  # or tiles
MAX_NUMBERS = 200_000  # in all other fields: room for the largest palette; fractions are objects, and count for ten
_UNCOMPRESSED, _PLANAR, _SHORT = 1, 2, 3
_JPEG = (6, 7)
_NO_NUMBERS, _FRACTIONS = (1, 2, 7), (5, 10)  # types of fields; the first are bytes and texts
_STRIPS = (Tag.StripOffsets, Tag.StripByteCounts, Tag.TileOffsets, Tag.TileByteCounts)
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_ORDERS = {b"II*\0": ("<", False), b"II+\0": ("<", True), b"MM\0*": (">", False), b"MM\0+": (">", True)}


def check_directory(data: bytes) -> None:
    """Raise ValueError where the first directory of a TIFF file or EXIF block is cut off, or larger than is sound."""
    order, big = _ORDERS.get(data[:4], ("<", False))
    entry, word = (20, "Q") if big else (12, "I")
    (directory,) = struct.unpack_from(f"{order}{word}", data, 8 if big else 4)
    (entries,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, min(directory, len(data)))
    start = directory + (8 if big else 2)
    if directory + entries * entry > len(data):
        raise ValueError("truncated: it ends inside its directory")
    if entries > MAX_FIELDS:
        raise ValueError(f"its directory has {entries:,} fields; at most {MAX_FIELDS:,} are read")
    total = numbers = 0
    for place in range(entries):
        tag, kind, count = struct.unpack_from(f"{order}HH{word}", data, start + place * entry)
        if tag in _STRIPS and count > MAX_STRIPS:
            raise ValueError(f"it has {count:,} strips or tiles; at most {MAX_STRIPS:,} are read")
        size = _TYPE_BYTES.get(kind, 0) * count
        if size <= len(data):  # Pillow leaves out a field that ends after the file
            total += size
            if tag not in _STRIPS and kind in _TYPE_BYTES and kind not in _NO_NUMBERS:
                numbers += count * (10 if kind in _FRACTIONS else 1)
    if total > MAX_FIELD_BYTES:
        raise ValueError(f"its directory points at {total / 1e6:,.0f} MB; at most {MAX_FIELD_BYTES // 10**6} are read")
    if numbers > MAX_NUMBERS:
        raise ValueError(f"its directory has {numbers:,} numbers; at most {MAX_NUMBERS:,} are read")


def announced_tiff_pixels(read: Callable[[int, int], bytes]) -> int:
    """Return width times height as the first directory of a TIFF gives them; `read` is told an offset and a length."""
    head = read(0, 16)
    order, big = _ORDERS[head[:4]]
    entry, word = (20, "Q") if big else (12, "I")
    (directory,) = struct.unpack_from(f"{order}{word}", head, 8 if big else 4)
    (entries,) = struct.unpack(f"{order}Q" if big else f"{order}H", read(directory, 8 if big else 2))
    fields = read(directory + (8 if big else 2), min(entries, MAX_FIELDS) * entry)
    value = 12 if big else 8  # where a field keeps what is short
    sizes = {}
    for place in range(0, len(fields) - entry + 1, entry):
        tag, kind = struct.unpack_from(f"{order}HH", fields, place)
        if tag in (Tag.ImageWidth, Tag.ImageLength):
            layout = f"{order}{'H' if kind == _SHORT else 'I'}"
            (sizes[tag],) = struct.unpack_from(layout, fields, place + value)
    return math.prod(sizes.values()) if len(sizes) == 2 else 0


def measure_tiff(data: bytes) -> tuple[int, int]:
    """Return the width and height of a TIFF, in whole tiles if it has tiles; raise ValueError if it is unsound."""
    check_directory(data)
    try:
        tags = TiffImagePlugin.TiffImageFile(io.BytesIO(data)).tag_v2
    except Exception as error:  # any exception at all comes out of a damaged directory
        raise ValueError(f"its directory cannot be read: {one_line(error)}") from None
    width, height = tags[Tag.ImageWidth], tags[Tag.ImageLength]
    needed = max(_ends(tags, width, height, data))
    if needed > len(data):
        raise ValueError(f"truncated: its pixels need {needed} bytes and it has {len(data)}")
    # Tiles are unpacked whole, also where most of one lies outside.
    across, down = (max(1, _numbers(tags, tag, 1)[0]) for tag in (Tag.TileWidth, Tag.TileLength))
    return math.ceil(width / across) * across, math.ceil(height / down) * down


def _ends(tags: TiffImagePlugin.ImageFileDirectory_v2, width: int, height: int, data: bytes) -> list[int]:
    """Return the byte after each strip or tile; raise ValueError when they do not cover the image, or overlap."""
    tiled = Tag.StripOffsets not in tags
    if tiled:
        columns, rows = _numbers(tags, Tag.TileWidth, 0)[0], _numbers(tags, Tag.TileLength, 0)[0]
    else:
        columns, rows = width, min(_numbers(tags, Tag.RowsPerStrip, height)[0], height)
    offsets = _numbers(tags, Tag.TileOffsets if tiled else Tag.StripOffsets)
    if not offsets or columns < 1 or rows < 1:
        raise ValueError("it does not say where its pixels are")
    samples = _numbers(tags, Tag.SamplesPerPixel, 1)[0]
    planar = tags.get(Tag.PlanarConfiguration) == _PLANAR
    per_plane = math.ceil(width / columns) * math.ceil(height / rows)
    if len(offsets) < per_plane * (samples if planar else 1):
        raise ValueError("truncated: it has too few strips or tiles for its size")
    compression = tags.get(Tag.Compression, _UNCOMPRESSED)
    if compression != _UNCOMPRESSED:
        lengths = _numbers(tags, Tag.TileByteCounts if tiled else Tag.StripByteCounts)
        ends = [start + size for start, size in zip_longest(offsets, lengths, fillvalue=0)]
        if max(ends) <= len(data):
            if sum(lengths) > 2 * len(data):  # each is read whole, however small what is in it
                raise ValueError("its strips or tiles overlap")
            if compression in _JPEG:
                check_scans(sum(map(data.count, repeat(START_OF_SCAN), offsets, ends)), columns * rows)
        return ends
    # Stored lengths are not to be trusted when nothing is compressed, since no reader needs them then.
    bits = _numbers(tags, Tag.BitsPerSample, 1)
    row_bytes = (columns * (bits[0] if planar else sum((bits * samples)[:samples])) + 7) // 8
    return [
        start + row_bytes * (rows if tiled else min(rows, height - index % per_plane * rows))
        for index, start in enumerate(offsets)
    ]


def _numbers(tags: TiffImagePlugin.ImageFileDirectory_v2, tag: int, *default: int) -> list[int]:
    value = tags.get(tag)
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if isinstance(number, int)] or list(default)
