"""AVIF and HEIC: boxes within boxes, which say how large the image is and where its parts lie.

A box is its length in four bytes, its kind in four, and its contents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from captioner.images.headers.tiff import check_directory

MAX_BOXES = 20_000
MAX_DEPTH = 8
# Boxes that hold others, and how many bytes come before these.
_HOLDERS = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"moov": 0, b"trak": 0, b"mdia": 0, b"minf": 0, b"stbl": 0, b"stsd": 8}
_SAMPLES = (b"av01", b"hvc1", b"hev1")  # the frames of a sequence
_READ = (b"Exif", b"av01")  # the kinds of items that are looked at
_SEQUENCE_HEADER = 1


@dataclass(frozen=True)
class _Box:
    kind: bytes
    start: int  # of its contents
    end: int


def measure_boxes(data: bytes) -> tuple[int, int]:
    """Return the largest width and height that anything in the file announces; raise ValueError if it is unsound."""
    boxes = list(_boxes(data, 0, len(data), 0, [MAX_BOXES]))
    sizes = [struct.unpack_from(">II", data, box.start + 4) for box in boxes if box.kind == b"ispe"]
    sizes += [struct.unpack_from(">HH", data, box.start + 24) for box in boxes if box.kind in _SAMPLES]
    if not sizes:
        raise ValueError("it does not say how large it is")
    exif, coded = _items(data, boxes)
    for start, end in exif:
        (skipped,) = struct.unpack_from(">I", data, start)
        try:
            check_directory(data[start + 4 + skipped : end])
        except (ValueError, struct.error):
            raise ValueError("its EXIF block is damaged") from None
    sizes += [_av1_size(data[start : min(end, start + 64)]) for start, end in coded]
    return max(size[0] for size in sizes), max(size[1] for size in sizes)


def _boxes(data: bytes, position: int, end: int, depth: int, spare: list[int]) -> Iterator[_Box]:
    """Yield the boxes between two bytes, and those in them."""
    while position + 8 <= end:
        spare[0] -= 1
        if spare[0] < 0:
            raise ValueError(f"it has more than {MAX_BOXES:,} boxes")
        length, kind = struct.unpack_from(">I4s", data, position)
        start = position + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start)
            start += 8
        stop = position + length if length else end
        if stop < start:
            raise ValueError(f"its box at byte {position:,} has a length of {length}")
        if stop > end:
            raise ValueError("truncated: a box ends after it")
        yield _Box(kind, start, stop)
        if kind in _HOLDERS and depth < MAX_DEPTH:
            yield from _boxes(data, start + _HOLDERS[kind], stop, depth + 1, spare)
        position = stop


def _items(data: bytes, boxes: list[_Box]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return where the EXIF blocks lie, and the images that are coded as AV1."""
    kinds: dict[int, bytes] = {}
    extents: dict[int, tuple[int, int]] = {}
    for box in boxes:
        if box.kind == b"iinf":
            version = data[box.start]
            entries = box.start + (6 if version == 0 else 8)
            for entry in _boxes(data, entries, box.end, MAX_DEPTH, [MAX_BOXES]):
                wide = data[entry.start] >= 3
                (number,) = struct.unpack_from(">I" if wide else ">H", data, entry.start + 4)
                place = entry.start + (10 if wide else 8)
                kinds[number] = data[place : place + 4]
    inside = next((box.start for box in boxes if box.kind == b"idat"), 0)
    for box in boxes:
        if box.kind == b"iloc":
            extents |= _extents(data, box, inside)
    if extents and (needed := max(end for _, end in extents.values())) > len(data):
        raise ValueError(f"truncated: its contents need {needed} bytes and it has {len(data)}")
    exif, coded = ([extents[item] for item in kinds if kinds[item] == kind and item in extents] for kind in _READ)
    return exif, coded


def _extents(data: bytes, box: _Box, inside: int) -> dict[int, tuple[int, int]]:
    """Return where the first part of each item begins and ends; those in an idat box count from byte `inside` on."""
    version, sizes = data[box.start], struct.unpack_from(">H", data, box.start + 4)[0]
    offset_size, length_size, base_size, index_size = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    position = box.start + 6
    (count,) = struct.unpack_from(">H" if version < 2 else ">I", data, position)
    position += 2 if version < 2 else 4
    found: dict[int, tuple[int, int]] = {}
    for _ in range(min(count, MAX_BOXES)):
        (item,) = struct.unpack_from(">H" if version < 2 else ">I", data, position)
        position += 2 if version < 2 else 4
        method = 0
        if version:
            method = struct.unpack_from(">H", data, position)[0] & 15
            position += 2
        base = int.from_bytes(data[position + 2 : position + 2 + base_size], "big")
        position += 2 + base_size
        (parts,) = struct.unpack_from(">H", data, position)
        position += 2
        width = (index_size if version else 0) + offset_size + length_size
        if parts and method in (0, 1):
            place = position + (index_size if version else 0)
            start = base + int.from_bytes(data[place : place + offset_size], "big") + (inside if method else 0)
            length = int.from_bytes(data[place + offset_size : place + offset_size + length_size], "big")
            found[item] = (start, start + length if length_size else len(data))
        position += parts * width
    return found


class _Bits:
    """A reader of single bits, zeros after the end."""

    def __init__(self, data: bytes) -> None:
        self.value, self.left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits as a number."""
        self.left -= count
        return (self.value >> self.left if self.left >= 0 else 0) & ((1 << count) - 1)


def _av1_size(data: bytes) -> tuple[int, int]:
    """Return the size that coded AV1 data announces, which decoders go by; raise ValueError where it is not told."""
    position = 0
    while position < len(data):  # units: a header, their length in groups of seven bits, their contents
        header = data[position]
        position += 2 if header & 4 else 1
        length = shift = 0
        while header & 2 and position < len(data):
            length, shift = length | (data[position] & 127) << shift, shift + 7
            position += 1
            if not data[position - 1] & 128:
                break
        if header >> 3 & 15 == _SEQUENCE_HEADER:
            return _sequence_size(_Bits(data[position:]))
        position += length
    raise ValueError("its AV1 data does not begin with a header")


def _sequence_size(bits: _Bits) -> tuple[int, int]:
    bits.take(4)  # profile, still picture
    if bits.take(1):  # the short header of a still picture
        bits.take(5)
    else:
        if bits.take(1):
            raise ValueError("its AV1 data is that of a film")
        displayed = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if displayed and bits.take(1):
                bits.take(4)
    across, down = bits.take(4) + 1, bits.take(4) + 1
    return bits.take(across) + 1, bits.take(down) + 1
