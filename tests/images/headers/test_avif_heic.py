"""AVIF, and HEIC where pillow-heif is installed: read as the other formats are, and refused by what they announce."""

from __future__ import annotations

import io
import struct
from importlib.util import find_spec

import numpy as np
import pytest
from helpers import awkward_images as made
from helpers.awkward_images import COLOURS, encode, exif
from helpers.structural_images import overlapping_fields
from PIL import Image

from captioner.images import formats, kinds
from captioner.images.finding import EXTENSIONS
from captioner.images.headers.header import read_header
from captioner.images.opening import ImageError, NotAnImageError, open_image, upright_size

needs_heif = pytest.mark.skipif(find_spec("pillow_heif") is None, reason="needs pillow-heif")


def heic(orientation: int = 1) -> bytes:
    import pillow_heif

    stored = Image.fromarray(COLOURS)
    file = pillow_heif.from_pillow(stored)
    buffer = io.BytesIO()
    file.save(buffer, quality=90, exif=exif(orientation).tobytes())
    return buffer.getvalue()


def close(image: Image.Image, colours: np.ndarray) -> bool:
    return float(np.abs(np.asarray(image).astype(int) - colours).mean()) < 12  # lossy


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_avif_comes_upright(orientation: int) -> None:
    data = encode(made.stored(COLOURS, orientation), "AVIF", exif=exif(orientation), quality=95)
    assert upright_size(data) == (made.WIDTH, made.HEIGHT)
    assert close(open_image(data), COLOURS)


@needs_heif
def test_heic_comes_in_its_colours() -> None:
    assert ".heic" in EXTENSIONS
    data = heic()
    assert read_header(data).format == "HEIC"
    assert close(open_image(data), COLOURS)
    with pytest.raises(ImageError, match="truncated"):
        open_image(data[: len(data) // 2])


def test_a_heic_without_the_extra_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "CAN_READ_HEIF", False)
    with pytest.raises(NotAnImageError, match=r"HEIC: pip install 'captioner\[heif\]'"):
        open_image(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99))


def test_avif_is_measured_by_all_that_it_announces() -> None:
    data = encode(COLOURS, "AVIF")
    size = struct.pack(">II", made.WIDTH, made.HEIGHT)
    assert data.count(size) == 1
    larger = data.replace(size, struct.pack(">II", 60_000, 60_000))
    with pytest.raises(ImageError, match=r"3,600\.0 megapixels"):
        open_image(larger)
    # What decoders go by is in the coded data, whatever the box says.
    header = read_header(data.replace(size, struct.pack(">II", 8, 8)))
    assert header is not None
    assert (header.width, header.height) == (made.WIDTH, made.HEIGHT)


def test_avif_bombs_are_refused_before_a_decoder_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(COLOURS, "AVIF", exif=b"Exif\0\0" + overlapping_fields(900, 50_000))
    many = encode(COLOURS, "AVIF") + struct.pack(">I4s", 8, b"free") * 100_000
    monkeypatch.setattr(formats, "_READERS", {})
    with pytest.raises(ImageError, match="EXIF block is damaged"):
        open_image(data)
    with pytest.raises(ImageError, match="20,000 boxes"):
        open_image(many)
