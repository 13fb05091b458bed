"""Mutated image files: only a good RGB image or an `ImageError` of one line may come out, and soon."""

from __future__ import annotations

import random
import re
import struct
import time
import zlib

import pytest
from helpers import awkward_images as made
from helpers.awkward_images import COLOURS, GREYS, PLAIN, chunk, encode, exif, jpeg, paletted, png, rows, with_segment
from helpers.cases import MORE

from captioner.images import opening
from captioner.images.opening import ImageError, open_image
from captioner.images.preprocessing import Preprocessing

FILES = 1000 * MORE
SECONDS = 5.0  # for one file; they take a millisecond
HEADER = 160  # bytes at the beginning that are hit as often as all the others

SAMPLES = [
    jpeg(COLOURS, exif=exif(6)),
    jpeg(COLOURS, progressive=True),
    jpeg(GREYS),
    jpeg(COLOURS, "CMYK"),
    made.thumbnailed_jpeg(),
    *(encode(COLOURS, "PNG", mode) for mode in ("RGB", "RGBA", "LA", "1")),
    encode(paletted(), "PNG", transparency=1, exif=exif(3)),
    png(rows(made.deep(GREYS, ">")), 16, 0, chunks=chunk(b"tRNS", b"\x12\x34")),
    made.animation("PNG"),
    encode(COLOURS, "WEBP"),
    encode(COLOURS, "WEBP", lossless=True, exif=exif(8)),
    made.animation("WEBP"),
    encode(paletted(), "GIF", transparency=1),
    made.animation("GIF"),
    *(encode(COLOURS, "BMP", mode) for mode in ("RGB", "L", "P", "1")),
    made.run_length_bmp(),
    *(encode(COLOURS, "TIFF", mode) for mode in ("RGB", "L", "P", "1", "CMYK", "LAB", "I", "F")),
    *(encode(COLOURS, "TIFF", compression=method) for method in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
    made.striped_tiff(big=True),
    made.tiled_tiff(),
]
LANDMARKS = [0, 1, 2, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def mutate(original: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to four changes, of the kinds that accidents and attackers make."""
    data = bytearray(original)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(min(len(data), HEADER) if chance.random() < 0.5 else len(data))
        length = chance.randrange(1, 40)
        match chance.randrange(8):
            case 0 | 1:
                data[place] ^= 1 << chance.randrange(8)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = chance.randbytes(length)
            case 4:
                del data[max(place, 1) :]
            case 5:
                other = chance.randrange(len(data))
                data[place : place + length], data[other : other + length] = (
                    data[other : other + length],
                    data[place : place + length],
                )
            case 6:
                width = chance.choice((1, 2, 4))
                number = chance.choice(LANDMARKS) % 256**width
                data[place : place + width] = number.to_bytes(width, chance.choice(("little", "big")))
            case _:
                donor = chance.choice(SAMPLES)
                start = chance.randrange(len(donor))
                data[place : place + length] = donor[start : start + length]
        data = data or bytearray(b"\0")
    return with_checksums(bytes(data)) if chance.random() < 0.5 else bytes(data)


def with_checksums(data: bytes) -> bytes:
    """Return a PNG with right checksums, without which no mutation of it gets past the first one."""
    position = 8
    while data.startswith(b"\x89PNG") and position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        end = position + 8 + length
        if end + 4 > len(data):
            break
        data = data[:end] + struct.pack(">I", zlib.crc32(data[position + 4 : end])) + data[end + 4 :]
        position = end + 4
    return data


def refusal_of(data: bytes, reduced: bool) -> str | None:
    """Return why a file is refused, None when it opens as it should."""
    try:
        if reduced:
            assert Preprocessing(8).read(data).pixels.shape == (8, 8, 3)
        else:
            assert open_image(data).mode == "RGB"
    except ImageError as refusal:
        return str(refusal)
    return None


@pytest.mark.filterwarnings("ignore")
def test_mutated_files_open_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_PIXELS", 1_000_000)  # so that enlarged sizes that are allowed take no time
    opened = 0
    for seed in range(FILES):
        chance = random.Random(seed)
        data = mutate(chance.choice(SAMPLES), chance)
        begin = time.process_time()  # which a busy machine does not make longer
        refusal = refusal_of(data, reduced=bool(seed % 2))
        assert time.process_time() - begin < SECONDS, seed
        if refusal is None:
            opened += 1
        else:
            assert refusal.isprintable(), seed
            assert re.match("image: .*[a-z]", refusal), seed
            assert "object at 0x" not in refusal, seed
    # Mutations that are all refused, or all harmless, would find nothing.
    assert FILES // 5 < opened < FILES * 4 // 5


@pytest.mark.filterwarnings("ignore")
def test_damaged_exif_never_refuses_a_picture() -> None:
    block = exif(6)
    block[0x011A], block[0x0128], block[0x010F] = 72.0, 2, "maker"
    block[0x8769] = {36867: "2015:02:10 12:00:00"}
    without_resolution = PLAIN[:2] + PLAIN[20:]  # Pillow then looks for it in EXIF
    turned = 0
    for seed in range(FILES // 2):
        chance = random.Random(seed)
        payload = mutate(block.tobytes()[6:], chance)[: chance.choice((12, 40, 9999))]
        picture = open_image(with_segment(without_resolution, 0xE1, b"Exif\0\0" + payload))
        turned += picture.size == (made.HEIGHT, made.WIDTH)
        assert sorted(picture.size) == [made.HEIGHT, made.WIDTH], seed
    assert 0 < turned < FILES // 2
