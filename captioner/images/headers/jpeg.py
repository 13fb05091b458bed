"""JPEG segments, counted before a decoder sees them: Pillow parses each in Python, and some many times over.

A segment is FF and a code, its length in two bytes, and its contents.
"""

from __future__ import annotations

import re
import struct
from collections import Counter

# A progressive JPEG needs about ten scans; each may cost a pass over all pixels, so thousands of them are an attack.
MAX_SCANS = 100
MAX_SCANNED_PIXELS = 500_000_000  # pixels times scans
MAX_SEGMENTS = 10_000  # a decoder takes some ten microseconds for each
MAX_METADATA = 32_000_000  # bytes of what is no pixels; decoders keep a copy
# Pillow puts an EXIF block together piece by piece, and copies all of it for each.
MAX_EXIF, MAX_EXIF_PIECES = 4_000_000, 64
MAX_TABLES = 65_536  # bytes that say how coarse the levels are; four tables take 520
MAX_RESOURCES = 10_000  # of Photoshop's, which Pillow lists one by one
MAX_STRAY = 65_536  # bytes between the segments, which Pillow skips one by one
# Coded pixels: noise at the highest quality takes four bytes each.
FREE_CODED, MAX_CODED_PER_PIXEL = 1_000_000, 8

# A marker is FF and a code; FF 00 is an escaped FF of the compressed data, FF 01 and FF D0-D7 mark places inside it.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_USUAL_SCANS = 10
START_OF_SCAN = b"\xff\xda"
_START, _END, _SCAN, _TABLES, _PHOTOSHOP = 0xD8, 0xD9, 0xDA, 0xDB, 0xED


def announced_jpeg_pixels(head: bytes) -> int:
    """Return how many pixels the first frame header in a file's first bytes announces, 0 if there is none."""
    position = 2
    while marker := _MARKER.search(head, position):
        code, position = head[marker.end() - 1], marker.end()
        length, rows, columns = struct.unpack_from(">HxHH", head, position)
        if code in _FRAMES:
            return int(rows * columns)
        position += length
    return 0


def measure_jpeg(data: bytes) -> tuple[int, int]:
    """Return the width and height that a JPEG announces; raise ValueError if it is unsound."""
    width = height = 0
    counts: Counter[str] = Counter()
    position = 2
    while marker := _MARKER.search(data, position):
        code, gap, position = data[marker.end() - 1], marker.start() - position, marker.end()
        counts["bytes of coded pixels" if counts["scans"] else "stray bytes between its segments"] += gap
        if code == _END:
            _check(counts, width * height)
            return width, height
        if code == _START:
            raise ValueError("truncated: another picture begins before its end-of-image marker")
        (length,) = struct.unpack_from(">H", data, position)
        if code in _FRAMES:
            height, width = struct.unpack_from(">HH", data, position + 3)
        _count(counts, code, data, position, length)
        _check(counts, width * height)
        position += length
    raise ValueError("truncated: it ends before its end-of-image marker")


def _count(counts: Counter[str], code: int, data: bytes, position: int, length: int) -> None:
    counts["segments"] += 1
    counts["bytes of metadata"] += length
    if code in _FRAMES:
        counts["frames"] += 1
    elif code == _SCAN:
        counts["scans"] += 1
    elif code == _TABLES:
        counts["bytes of tables"] += length
    elif code == _PHOTOSHOP:
        counts["Photoshop resources"] += data.count(b"8BIM", position, position + length)
    elif data.startswith(b"Exif\0\0", position + 2):
        counts["bytes of EXIF"] += length
        counts["pieces of EXIF"] += 1


_MOST = {
    "segments": MAX_SEGMENTS,
    "bytes of metadata": MAX_METADATA,
    "frames": 1,
    "scans": MAX_SCANS,
    "bytes of tables": MAX_TABLES,
    "Photoshop resources": MAX_RESOURCES,
    "bytes of EXIF": MAX_EXIF,
    "pieces of EXIF": MAX_EXIF_PIECES,
    "stray bytes between its segments": MAX_STRAY,
}


def check_scans(scans: int, pixels: int) -> None:
    """Raise ValueError where so many scans, of so many pixels each, would keep a decoder busy."""
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise ValueError(f"it has more than {MAX_SCANNED_PIXELS:,} pixels in its scans together")


def _check(counts: Counter[str], pixels: int) -> None:
    for what, most in _MOST.items():
        if counts[what] > most:
            raise ValueError(f"it has more than {most:,} {what}")
    if counts["scans"] > _USUAL_SCANS:
        check_scans(counts["scans"], pixels)
    if counts["bytes of coded pixels"] > (most := FREE_CODED + MAX_CODED_PER_PIXEL * pixels):
        raise ValueError(f"it has more than {most:,} bytes of coded pixels")
