"""Builders of awkward image files, most of them byte by byte, so that what they show is known without a decoder."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from captioner.images import opening

Pixels = NDArray[np.uint8]
Builders = dict[str, Callable[[], bytes]]

WIDTH, HEIGHT = 64, 32


def quadrants(top_left: Any, top_right: Any, bottom_left: Any, bottom_right: Any) -> Pixels:
    """Return a picture (HEIGHT, WIDTH, channels) of four areas, aligned to the blocks of lossy formats."""
    cells = np.array([[top_left, top_right], [bottom_left, bottom_right]], dtype=np.uint8)
    return cells.repeat(HEIGHT // 2, axis=0).repeat(WIDTH // 2, axis=1)


COLOURS = quadrants((200, 40, 30), (30, 160, 60), (40, 60, 200), (230, 210, 70))  # (HEIGHT, WIDTH, 3)
GREYS = quadrants(255, 0, 85, 170)  # (HEIGHT, WIDTH), levels that 2, 4, 8 and 16 bits all hold exactly
BLACK_AND_WHITE = quadrants(255, 0, 0, 0)  # (HEIGHT, WIDTH)
INDICES = quadrants(0, 1, 2, 3)  # (HEIGHT, WIDTH), into PALETTE
PALETTE = COLOURS[:: HEIGHT // 2, :: WIDTH // 2].reshape(4, 3)

# The side of the upright picture on which the stored row 0 and the stored column 0 lie, from the EXIF standard.
ORIENTATIONS = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored(upright: Pixels, orientation: int) -> Pixels:
    """Return how a camera held at `orientation` stores a picture."""
    first_row, first_column = ORIENTATIONS[orientation]
    picture = upright if first_row in ("top", "bottom") else upright.swapaxes(0, 1)
    if first_row in ("bottom", "right"):
        picture = picture[::-1]
    if first_column in ("bottom", "right"):
        picture = picture[:, ::-1]
    return np.ascontiguousarray(picture)


def rgb(picture: Pixels) -> Pixels:
    """Return a grey picture (height, width) as (height, width, 3)."""
    return picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)


def encode(picture: Pixels | Image.Image, format: str, mode: str | None = None, **options: Any) -> bytes:
    """Return what Pillow writes."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, format, **options)
    return buffer.getvalue()


def jpeg(picture: Pixels | Image.Image, mode: str | None = None, **options: Any) -> bytes:
    """Return a JPEG of the best quality, its colours at full resolution."""
    return encode(picture, "JPEG", mode, quality=100, subsampling=0, **options)


PLAIN = jpeg(COLOURS)


def record_reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold, for each image that is opened, how many times smaller it was decoded."""
    factors: list[int] = []
    to_rgb = opening.to_rgb

    def spy(image: Image.Image) -> Image.Image:
        factors.append(image.decoderconfig[0] if image.decoderconfig else 1)
        return to_rgb(image)

    monkeypatch.setattr(opening, "to_rgb", spy)
    return factors


def exif(orientation: int) -> Image.Exif:
    """Return an EXIF block that holds an orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def paletted() -> Image.Image:
    """Return COLOURS as an image with a palette; save it with `transparency` to make some of them transparent."""
    image = Image.fromarray(INDICES)
    image.putpalette(PALETTE.tobytes())
    return image


def animation(format: str, **options: Any) -> bytes:
    """Return COLOURS followed by two frames of other colours."""
    later = [Image.fromarray(255 - COLOURS), Image.fromarray(COLOURS[::-1])]
    return encode(COLOURS, format, save_all=True, append_images=later, duration=100, **options)


def jpeg_segment(code: int, payload: bytes) -> bytes:
    """Return one marker segment."""
    return struct.pack(">BBH", 0xFF, code, len(payload) + 2) + payload


def with_segment(data: bytes, code: int, payload: bytes) -> bytes:
    """Return a JPEG with one segment more after its start."""
    return data[:2] + jpeg_segment(code, payload) + data[2:]


def thumbnailed_jpeg() -> bytes:
    """Return COLOURS with a whole small JPEG inside its EXIF block."""
    return with_segment(PLAIN, 0xE1, exif(1).tobytes() + jpeg(COLOURS[::4, ::4]))


def resolutionless_jpeg(data: bytes = PLAIN) -> bytes:
    """Return a JPEG that names a resolution in EXIF and leaves it empty, at which Pillow's own reader stops."""
    bare = data[:2] + data[20:]  # without JFIF, so that Pillow looks for the resolution in EXIF
    fields = struct.pack("<IHHHIIHHIII", 8, 2, 0x11A, 2, 1, 0, 0x128, 3, 1, 2, 0)
    return with_segment(bare, 0xE1, b"Exif\0\0II*\0" + fields)


def ycck_jpeg() -> bytes:
    """Return COLOURS as the YCCK that Adobe writes: the inks go through the formula for YCbCr, black stays apart."""
    luma, blue, red = Image.fromarray(255 - COLOURS).convert("YCbCr").split()
    # Pillow stores 255 minus each sample of a CMYK image, so that is what it is given.
    inks = [channel.point(lambda level: 255 - level) for channel in (luma, blue, red)]
    data = jpeg(Image.merge("CMYK", [*inks, Image.new("L", luma.size, 0)]))
    place = data.index(b"Adobe") + 11
    return data[:place] + b"\2" + data[place + 1 :]


def with_size(data: bytes, width: int, height: int) -> bytes:
    """Return a JPEG whose frame header announces another size."""
    place = next(data.index(bytes([0xFF, code])) for code in (0xC0, 0xC2) if bytes([0xFF, code]) in data)
    return data[: place + 5] + struct.pack(">HH", height, width) + data[place + 9 :]


def with_scans(data: bytes, count: int) -> bytes:
    """Return a progressive JPEG whose last scan comes `count` times."""
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def chunk(kind: bytes, payload: bytes) -> bytes:
    """Return one chunk of a PNG."""
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png(
    rows: Iterable[bytes],
    depth: int,
    colour: int,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    chunks: bytes = b"",
    interlaced: bool = False,
) -> bytes:
    """Return a PNG of packed rows; colour is 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def deep(picture: Pixels, order: str) -> NDArray[np.uint16]:
    """Return samples of 16 bits that are not the same when their two bytes are swapped."""
    return (picture.astype(int) * 256 + 40).astype(f"{order}u2")


def interlaced_rows(picture: Pixels) -> list[bytes]:
    """Return the rows of the seven passes of an interlaced PNG."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    return [row.tobytes() for left, top, right, down in passes for row in picture[top::down, left::right]]


def packed(picture: Pixels, bits: int) -> list[bytes]:
    """Return rows of samples below 2**bits, the first in the highest bits."""
    digits = np.unpackbits(picture[..., None], axis=-1)[..., -bits:]
    return [np.packbits(row.reshape(-1)).tobytes() for row in digits]


def rows(picture: NDArray[Any]) -> list[bytes]:
    """Return each row's bytes as they lie in memory."""
    return [row.tobytes() for row in picture]


_TIFF_TYPES = {"byte": (1, "B"), "short": (3, "H"), "long": (4, "I"), "float": (11, "f"), "long8": (16, "Q")}
Tag = tuple[str, Sequence[float]]


def tiff(
    pixels: Sequence[bytes],
    tags: Mapping[int, Tag],
    bits: Sequence[int],
    photometric: int,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    order: str = "<",
    big: bool = False,
) -> bytes:
    """Return a TIFF of strips, or of tiles when `tags` give their size; `tags` come on top of the necessary ones."""
    kind = "long8" if big else "long"
    start = 16 if big else 8
    offsets = [start + sum(map(len, pixels[:index])) for index in range(len(pixels))]
    places, lengths = (324, 325) if 322 in tags else (273, 279)
    every: dict[int, Tag] = {
        256: ("long", [size[0]]),
        257: ("long", [size[1]]),
        258: ("short", bits),
        259: ("short", [1]),
        262: ("short", [photometric]),
        places: (kind, offsets),
        277: ("short", [len(bits)]),
        lengths: (kind, [len(part) for part in pixels]),
        **tags,
    }
    body = b"".join(pixels)
    directory = start + len(body)
    word, entry, inline = ("Q", 20, 8) if big else ("I", 12, 4)
    beyond = directory + (8 if big else 2) + entry * len(every) + inline
    entries = overflow = b""
    for tag, (name, values) in sorted(every.items()):
        code, letter = _TIFF_TYPES[name]
        value = struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(value) > inline:
            place = struct.pack(order + word, beyond + len(overflow))
            overflow += value
        else:
            place = value.ljust(inline, b"\0")
        entries += struct.pack(f"{order}HH{word}", tag, code, len(values)) + place
    magic = b"II" if order == "<" else b"MM"
    head = struct.pack(f"{order}HHHQ", 43, 8, 0, directory) if big else struct.pack(f"{order}HI", 42, directory)
    count = struct.pack(order + ("Q" if big else "H"), len(every))
    return magic + head + body + count + entries + bytes(inline) + overflow


def tiles(picture: Pixels, side: int) -> list[bytes]:
    """Return square tiles of a picture in reading order, filled up beyond its edges."""
    height, width = picture.shape[:2]
    return [
        np.pad(
            tile := picture[top : top + side, left : left + side],
            [(0, side - tile.shape[0]), (0, side - tile.shape[1])] + [(0, 0)] * (picture.ndim - 2),
        ).tobytes()
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]


def tiled_tiff(compression: int = 1) -> bytes:
    """Return COLOURS in tiles that reach beyond its edges; compression 8 is deflate."""
    tags = {322: ("short", [48]), 323: ("short", [48]), 259: ("short", [compression])}
    return tiff([zlib.compress(tile) if compression == 8 else tile for tile in tiles(COLOURS, 48)], tags, [8] * 3, 2)


def striped_tiff(**options: Any) -> bytes:
    """Return COLOURS in strips of five rows, and one of two."""
    parts = [COLOURS[top : top + 5].tobytes() for top in range(0, HEIGHT, 5)]
    return tiff(parts, {278: ("short", [5])}, [8] * 3, 2, **options)


def twelve_bits(levels: NDArray[np.uint16]) -> bytes:
    """Return samples of 12 bits, two of them in three bytes."""
    first, second = levels.reshape(-1, 2).T
    return np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1).astype(np.uint8).tobytes()


def bmp(
    pixels: bytes,
    bits: int,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    header: int = 40,
    compression: int = 0,
    tables: bytes = b"",
    stored: int | None = None,
) -> bytes:
    """Return a BMP of rows that are already padded; `tables` are its palette, or the masks of its channels."""
    if header == 12:
        info = struct.pack("<IHHHH", 12, *size, 1, bits)
    else:
        length = len(pixels) if stored is None else stored
        info = struct.pack("<IiiHHIIiiII", header, *size, 1, bits, compression, length, 0, 0, 0, 0)
    offset = 14 + len(info) + len(tables)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + tables + pixels


BITMAP_PALETTE = np.pad(PALETTE[:, ::-1], [(0, 0), (0, 1)]).tobytes()


def run_length_bmp() -> bytes:
    """Return COLOURS as runs of pixels, the bottom row first."""
    runs = [b"".join(bytes([len([*run]), index]) for index, run in groupby(row.tolist())) for row in INDICES[::-1]]
    return bmp(b"\0\0".join(runs) + b"\0\1", 8, compression=1, tables=BITMAP_PALETTE.ljust(1024, b"\0"))


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header promises more than there is."""
    buffer = io.BytesIO()
    Image.new("1", (8, 8)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return bytes(data)
