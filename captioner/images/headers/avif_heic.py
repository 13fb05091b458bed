"""AVIF and HEIC: boxes within boxes, which say how large the image is and where its parts lie.

A box is its length in four bytes, its kind in four, and its contents.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from captioner.images.headers.tiff import check_directory

MAX_BOXES = 20_000
MAX_DEPTH = 8
MAX_LISTS = 10  # of items: of the file and of its tracks
MAX_SAMPLES = 100_000  # frames of a sequence; decoders list them all
MAX_METADATA = 32_000_000  # bytes of what is no picture, each time that a picture refers to it: decoders keep copies
# Boxes that hold others, and how many bytes come before these.
_HOLDERS = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"moov": 0, b"trak": 0, b"mdia": 0, b"minf": 0, b"stbl": 0, b"stsd": 8}
_SAMPLES = (b"av01", b"hvc1", b"hev1")  # the frames of a sequence
_SAMPLE_SIZES = (b"stsz", b"stz2")
_PUT_TOGETHER = {b"grid": 4, b"iovl": 10}  # pictures made of others, and where they tell their size
_PICTURES = (b"av01", b"hvc1", *_PUT_TOGETHER)
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
    for box in boxes:
        if box.kind in _SAMPLE_SIZES and (frames := struct.unpack_from(">I", data, box.start + 8)[0]) > MAX_SAMPLES:
            raise ValueError(f"it has {frames:,} frames; at most {MAX_SAMPLES:,} are read")
    items = _items(data, boxes)
    _check_metadata(data, boxes, items)
    for item in items:
        if item.kind == b"av01":
            sizes.append(_av1_size(item.first(data, 64)))
        elif item.kind in _PUT_TOGETHER:
            head = item.first(data, _PUT_TOGETHER[item.kind] + 8)
            sizes.append(struct.unpack_from(">II" if head[1] & 1 else ">HH", head, _PUT_TOGETHER[item.kind]))
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


def _check_metadata(data: bytes, boxes: list[_Box], items: list[_Item]) -> None:
    """Raise ValueError where an EXIF block is damaged, or pictures refer to more bytes than are read."""
    referred = _referring(data, boxes)
    total = 0
    for item in items:
        if item.kind not in _PICTURES:
            total += sum(end - start for start, end in item.parts) * max(1, referred[item.number])
        if item.kind == b"Exif":
            (start, end), *_ = item.parts
            (skipped,) = struct.unpack_from(">I", data, start)
            try:
                check_directory(data[start + 4 + skipped : end])
            except (ValueError, struct.error):
                raise ValueError("its EXIF block is damaged") from None
    if total > MAX_METADATA:
        raise ValueError(f"it has {total:,} bytes of metadata; at most {MAX_METADATA:,} are read")


def _referring(data: bytes, boxes: list[_Box]) -> Counter[int]:
    """Return to how many others each item refers, by its number."""
    found: Counter[int] = Counter()
    for box in boxes:
        if box.kind == b"iref":
            layout = ">IH" if data[box.start] else ">HH"
            for reference in _boxes(data, box.start + 4, box.end, MAX_DEPTH, [MAX_BOXES]):
                number, count = struct.unpack_from(layout, data, reference.start)
                found[number] += count
    return found


@dataclass(frozen=True)
class _Item:
    number: int
    kind: bytes
    parts: list[tuple[int, int]]  # where they begin and end, at least one

    def first(self, data: bytes, length: int) -> bytes:
        """Return its first bytes, from several parts if need be."""
        return b"".join(data[start : min(end, start + length)] for start, end in self.parts[:length])[:length]


def _items(data: bytes, boxes: list[_Box]) -> list[_Item]:
    """Return what the file holds; where lists disagree on an item, once for each way of reading them."""
    inside = next((box.start for box in boxes if box.kind == b"idat"), 0)
    spare = [MAX_BOXES]
    lists = [_kinds(data, box, spare) for box in boxes if box.kind == b"iinf"]
    places = [_extents(data, box, inside, spare) for box in boxes if box.kind == b"iloc"]
    if max(len(lists), len(places)) > MAX_LISTS:
        raise ValueError(f"it has more than {MAX_LISTS} lists of its contents")
    needed = max((end for extents in places for parts in extents.values() for _, end in parts), default=0)
    if needed > len(data):
        raise ValueError(f"truncated: its contents need {needed} bytes and it has {len(data)}")
    return [
        _Item(number, kind, extents[number])
        for kinds, extents in product(lists, places)
        for number, kind in kinds.items()
        if extents.get(number)
    ]


def _kinds(data: bytes, box: _Box, spare: list[int]) -> dict[int, bytes]:
    """Return the kind of each item by its number."""
    kinds: dict[int, bytes] = {}
    for entry in _boxes(data, box.start + (8 if data[box.start] else 6), box.end, MAX_DEPTH, spare):
        wide = data[entry.start] >= 3
        (number,) = struct.unpack_from(">I" if wide else ">H", data, entry.start + 4)
        if number in kinds:
            raise ValueError(f"it lists item {number} twice")
        place = entry.start + (10 if wide else 8)
        kinds[number] = data[place : place + 4]
    return kinds


def _extents(data: bytes, box: _Box, inside: int, spare: list[int]) -> dict[int, list[tuple[int, int]]]:
    """Return where the parts of each item begin and end; those in an idat box count from byte `inside` on."""
    version, sizes = data[box.start], struct.unpack_from(">H", data, box.start + 4)[0]
    offset_size, length_size, base_size, index_size = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    index_size = index_size if version else 0
    position = box.start + 6
    (count,) = struct.unpack_from(">H" if version < 2 else ">I", data, position)
    position += 2 if version < 2 else 4
    found: dict[int, list[tuple[int, int]]] = {}
    for _ in range(min(count, MAX_BOXES)):
        (item,) = struct.unpack_from(">H" if version < 2 else ">I", data, position)
        position += 2 if version < 2 else 4
        method = 0
        if version:
            method = struct.unpack_from(">H", data, position)[0] & 15
            position += 2
        base = _number(data, position + 2, base_size) + (inside if method else 0)
        position += 2 + base_size
        (parts,) = struct.unpack_from(">H", data, position)
        position += 2
        spare[0] -= parts
        if spare[0] < 0:
            raise ValueError(f"its contents are in more than {MAX_BOXES:,} parts")
        if item in found:
            raise ValueError(f"it lists item {item} twice")
        places = found[item] = []
        for _ in range(parts if method in (0, 1) else 0):
            start = base + _number(data, position + index_size, offset_size)
            length = _number(data, position + index_size + offset_size, length_size)
            places.append((start, start + length if length_size else len(data)))
            position += index_size + offset_size + length_size
    return found


def _number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big")


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
