"""PNG files hold the pixels that went in, whichever compressor this machine has."""

from __future__ import annotations

import io
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from captioner.figures import png
from captioner.figures.png import png_bytes


@pytest.mark.parametrize("compressor", ["found", "zlib"])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (9, 1), (40, 33)])
def test_pixels_come_back(compressor: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if compressor == "zlib":
        monkeypatch.setattr(png, "_compress", zlib.compress)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    contents = png_bytes(pixels, dpi=200)
    with Image.open(io.BytesIO(contents)) as image:
        image.verify()  # the checksums
    with Image.open(io.BytesIO(contents)) as image:
        assert image.mode == "RGB"
        assert image.info["dpi"] == pytest.approx((200, 200), abs=0.02)
        np.testing.assert_array_equal(np.asarray(image), pixels)


def test_a_machine_without_the_fast_compressor_has_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert png._find_compressor() is zlib.compress


def test_files_are_about_as_small_as_pillows() -> None:
    across, down = np.meshgrid(np.arange(300), np.arange(200))
    noise = np.random.default_rng(0).integers(0, 4, (200, 300))
    pixels = np.stack([across // 2 + noise, down + noise, (across + down) // 3 + noise], axis=2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    assert len(png_bytes(pixels)) < 1.1 * len(buffer.getvalue())
