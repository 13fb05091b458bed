"""AVIF files put together from boxes, with contents that no encoder writes."""

from __future__ import annotations

import struct

from helpers.awkward_images import COLOURS, HEIGHT, WIDTH, encode

Item = tuple[bytes, bytes | int]  # a kind, and contents or the number of the item that has the same
Reference = tuple[bytes, int, list[int]]  # a kind, from an item, to others
EXIF = bytes(4) + b"II*\0\x08\0\0\0\0\0"


def box(kind: bytes, *contents: bytes) -> bytes:
    """Return a box."""
    joined = b"".join(contents)
    return struct.pack(">I", len(joined) + 8) + kind + joined


def versioned(kind: bytes, version: int, *contents: bytes) -> bytes:
    """Return a box that begins with its version."""
    return box(kind, struct.pack(">I", version << 24), *contents)


def boxed(items: list[Item], references: list[Reference], size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """Return a file of items, numbered from 1, the first of which is the picture; all have one size."""
    numbers = range(1, len(items) + 1)
    entries = [versioned(b"infe", 3, struct.pack(">IH", i, 0), items[i - 1][0], b"\0") for i in numbers]
    targets = [box(kind, struct.pack(f">IH{len(to)}I", number, len(to), *to)) for kind, number, to in references]
    associations = b"".join(struct.pack(">IBB", i, 1, 0x81) for i in numbers)
    properties = box(b"ipco", versioned(b"ispe", 0, struct.pack(">II", *size)))
    rest = [
        versioned(b"pitm", 1, struct.pack(">I", 1)),
        versioned(b"iinf", 1, struct.pack(">I", len(items)), *entries),
        versioned(b"iref", 1, *targets),
        box(b"iprp", properties, versioned(b"ipma", 1, struct.pack(">I", len(items)), associations)),
    ]

    def head(places: list[tuple[int, int]]) -> bytes:
        located = [struct.pack(">IHHHII", i, 0, 0, 1, *place) for i, place in zip(numbers, places, strict=True)]
        locations = versioned(b"iloc", 2, struct.pack(">HI", 0x4400, len(items)), *located)
        brand = box(b"ftyp", b"avif", bytes(4), b"avifmif1")
        return brand + versioned(b"meta", 0, versioned(b"hdlr", 0, bytes(4), b"pict", bytes(13)), locations, *rest)

    start = len(head([(0, 0)] * len(items))) + 8
    places: list[tuple[int, int]] = []
    contents = b""
    for _, given in items:
        if isinstance(given, int):
            places.append(places[given - 1])
        else:
            places.append((start + len(contents), len(given)))
            contents += given
    return head(places) + box(b"mdat", contents)


def picture() -> bytes:
    """Return coded pixels."""
    data = encode(COLOURS, "AVIF")
    return data[data.index(b"mdat") + 4 :]


def with_metadata(count: int, size: int, pictures: int = 1) -> bytes:
    """Return pictures that all refer to each of `count` EXIF blocks of `size` bytes, which are the same bytes."""
    items: list[Item] = [(b"av01", picture()), *[(b"av01", 1)] * (pictures - 1), (b"Exif", EXIF + bytes(size))]
    items += [(b"Exif", pictures + 1)] * (count - 1)
    everyone = list(range(1, pictures + 1))
    return boxed(items, [(b"cdsc", pictures + 1 + i, everyone) for i in range(count)])


def put_together(kind: bytes, width: int, height: int, wide: bool = True) -> bytes:
    """Return a grid or an overlay that says nowhere but in its contents how large it is."""
    filler = bytes(2) if kind == b"grid" else bytes(8)
    contents = bytes([0, wide]) + filler + struct.pack(">II" if wide else ">HH", width, height) + bytes(8)
    return boxed([(kind, contents), (b"av01", picture())], [(b"dimg", 1, [2])])


def sequence(frames: int) -> bytes:
    """Return a picture, and a track that announces so many frames of a byte."""
    table = box(b"stbl", versioned(b"stsz", 0, struct.pack(">II", 1, frames)))
    track = box(b"moov", box(b"trak", box(b"mdia", box(b"minf", table))))
    return encode(COLOURS, "AVIF") + track
