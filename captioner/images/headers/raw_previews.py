"""Camera raw files: the JPEG that a camera puts into them, found within bounds; their own pixels are not developed.

NEF, CR2, DNG, ARW, PEF and RW2 are built as TIFF files are: directories of fields, one after another, that lead to
directories below them. Offsets may point anywhere, and back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from PIL.ExifTags import Base as Tag

MAX_DIRECTORIES = 50
MAX_FIELDS = 1000  # of a directory
MAX_VALUES = 50  # of a field: a preview is in one strip, and a directory has a few below it
MAX_PREVIEWS, MAX_SEGMENTS = 10, 1000

_ORDERS = {b"II*\0": "<", b"MM\0*": ">", b"IIU\0": "<"}
_PANASONIC, _CANON = b"IIU\0", b"CR"  # how an RW2 begins, and what a CR2 has at byte 8
_PANASONIC_JPEG, _SUB_DIRECTORIES, _DNG_VERSION = 0x2E, 330, 50706
_NUMBERS = {1: "B", 3: "H", 4: "I", 13: "I"}  # by the type of a field
_WANTED = (
    Tag.Compression,
    Tag.PhotometricInterpretation,
    Tag.StripOffsets,
    Tag.StripByteCounts,
    Tag.Orientation,
    Tag.JpegIFOffset,
    Tag.JpegIFByteCount,
    _SUB_DIRECTORIES,
    _DNG_VERSION,
    _PANASONIC_JPEG,
)
_SENSOR = (32803, 34892)  # photometric interpretations: colour filter array, linear raw
_JPEG_COMPRESSIONS = (6, 7)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LOSSY_FRAMES = (0xC0, 0xC1, 0xC2)  # a sensor's own pixels are often a JPEG too, but a lossless one

Fields = dict[int, list[int]]


def is_panasonic(data: bytes) -> bool:
    """Tell whether these are the first bytes of an RW2, which begins as no TIFF file does."""
    return data.startswith(_PANASONIC)


def find_preview(data: bytes, max_pixels: int) -> tuple[bytes, int | None] | None:
    """Return the largest JPEG of up to `max_pixels` in a camera raw file, and the file's EXIF orientation if it tells.

    None where this is no raw file; raises ValueError for one without such a JPEG.
    """
    order = _ORDERS.get(data[:4])
    if order is None:
        return None
    directories = list(_directories(data, order))
    if not directories or not _is_raw(data, directories):
        return None
    places = {place for fields in directories for place in _places(fields)}
    largest_first = sorted(places, key=lambda place: place[1], reverse=True)
    for start, length in largest_first[:MAX_PREVIEWS]:
        if 0 < length <= len(data) - start and 0 < _pixels(data, start, start + length) <= max_pixels:
            orientation = directories[0].get(Tag.Orientation)
            return data[start : start + length], orientation[0] if orientation else None
    raise ValueError("a camera raw file without a preview that can be read; export it as JPEG")


def _is_raw(data: bytes, directories: list[Fields]) -> bool:
    if is_panasonic(data) or data[8:10] == _CANON or _DNG_VERSION in directories[0]:
        return True
    return any(kind in _SENSOR for fields in directories for kind in fields.get(Tag.PhotometricInterpretation, ()))


def _directories(data: bytes, order: str) -> Iterator[Fields]:
    """Yield the first directory, and those after and below it, each once."""
    pending = list(struct.unpack_from(f"{order}I", data, 4)) if len(data) >= 8 else []
    visited: set[int] = set()
    while pending and len(visited) < MAX_DIRECTORIES:
        offset = pending.pop(0)
        if offset == 0 or offset in visited:
            continue
        visited.add(offset)
        try:
            fields, following = _read_directory(data, order, offset)
        except struct.error:  # beyond the end
            continue
        yield fields
        pending += [following, *fields.get(_SUB_DIRECTORIES, ())]


def _read_directory(data: bytes, order: str, offset: int) -> tuple[Fields, int]:
    """Return the fields that are wanted, and where the next directory is, 0 for none."""
    (count,) = struct.unpack_from(f"{order}H", data, offset)
    fields: Fields = {}
    for place in range(offset + 2, offset + 2 + 12 * min(count, MAX_FIELDS), 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", data, place)
        if tag not in _WANTED:
            continue
        if tag == _PANASONIC_JPEG:
            fields[tag] = [*struct.unpack_from(f"{order}I", data, place + 8), length]
        elif kind in _NUMBERS and 0 < length <= MAX_VALUES:
            layout = f"{order}{length}{_NUMBERS[kind]}"
            is_short = struct.calcsize(layout) <= 4
            start = place + 8 if is_short else struct.unpack_from(f"{order}I", data, place + 8)[0]
            if start + struct.calcsize(layout) <= len(data):
                fields[tag] = list(struct.unpack_from(layout, data, start))
    (following,) = struct.unpack_from(f"{order}I", data, offset + 2 + 12 * count)
    return fields, following


def _places(fields: Fields) -> Iterator[tuple[int, int]]:
    """Yield the offsets and lengths of what may be a JPEG in a directory."""
    pairs = [(fields.get(Tag.JpegIFOffset, []), fields.get(Tag.JpegIFByteCount, []))]
    if fields.get(Tag.Compression, [0])[0] in _JPEG_COMPRESSIONS:
        pairs.append((fields.get(Tag.StripOffsets, []), fields.get(Tag.StripByteCounts, [])))
    for starts, lengths in pairs:
        if len(starts) == len(lengths) == 1:
            yield starts[0], lengths[0]
    if _PANASONIC_JPEG in fields:
        start, length = fields[_PANASONIC_JPEG]
        yield start, length


def _pixels(data: bytes, start: int, end: int) -> int:
    """Return how many pixels the lossy JPEG between two places announces; 0 where there is none."""
    position = start + 2
    for _ in range(MAX_SEGMENTS if data.startswith(b"\xff\xd8", start) else 0):
        if position + 10 > end or data[position] != 0xFF:
            break
        code = data[position + 1]
        length, bits, rows, columns = struct.unpack_from(">HBHH", data, position + 2)
        if code in _FRAMES:
            return int(rows * columns) if code in _LOSSY_FRAMES and bits == 8 else 0
        position += 2 + length
    return 0
