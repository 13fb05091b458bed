"""Bombs by structure: refused before Pillow gets them; what is let through costs neither time nor memory."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import awkward_images as made
from helpers import structural_images as bombs
from helpers.awkward_images import COLOURS, PLAIN, encode
from helpers.cases import MORE
from PIL import Image

from captioner.images import formats, opening
from captioner.images.opening import ImageError, open_image

FILES = 150 * MORE
SECONDS = 2.0  # of this process's own time for one file; a third of a second is the most there is
MEGABYTES = 200


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_bombs_are_refused_before_a_decoder_gets_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, reason = bombs.BOMBS[name]
    data = build()
    monkeypatch.setattr(formats, "_READERS", {})
    begin = time.process_time()
    with pytest.raises(ImageError, match=reason):
        open_image(data)
    assert time.process_time() - begin < SECONDS


@pytest.mark.skipif(sys.platform == "win32", reason="measures memory as Unix reports it")
def test_structural_mutations_cost_neither_time_nor_memory() -> None:
    measure = f"""
import random, resource, sys, time, warnings
warnings.filterwarnings("ignore")
from helpers.structural_images import structural_mutation
from captioner.images.opening import ImageError, open_image
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
open_image({PLAIN!r})
opened = 0
for seed in range({FILES}):
    data = structural_mutation(random.Random(seed))
    before, begin = used(), time.process_time()
    try:
        open_image(data)
        opened += 1
    except ImageError as refusal:
        assert str(refusal).isprintable(), seed
    assert time.process_time() - begin < {SECONDS}, seed
    assert used() - before < {MEGABYTES} * 1000, seed
print(opened)
"""
    run = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True)
    assert run.stderr == ""
    assert FILES // 5 < int(run.stdout) < FILES * 9 // 10  # what is all refused, or all harmless, finds nothing


@pytest.mark.parametrize("fields", [900, 5_000])
def test_exif_that_points_at_the_same_bytes_often_turns_nothing(fields: int) -> None:
    block = b"Exif\0\0" + bombs.overlapping_fields(fields, 60_000 if fields < 1000 else 100)[:65_000]
    assert open_image(made.with_segment(PLAIN, 0xE1, block)).size == (made.WIDTH, made.HEIGHT)


def test_large_files_of_small_pictures_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "FREE_BYTES", 10_000)
    pictures = {"JPEG": PLAIN, "PNG": encode(COLOURS, "PNG"), "GIF": encode(COLOURS, "GIF", "P")}
    pictures |= {"BMP": encode(COLOURS, "BMP"), "TIFF": made.striped_tiff(), "BigTIFF": made.striped_tiff(big=True)}
    pictures |= {"WebP": encode(COLOURS, "WEBP", exif=made.exif(1))}
    reads: list[bytes] = []
    for name, data in pictures.items():
        path = tmp_path / name
        path.write_bytes(data + bytes(10_000))
        assert open_image(path).size == (made.WIDTH, made.HEIGHT), name  # 16 kB for the pixels as well
        path.write_bytes(data + bytes(40_000))
        monkeypatch.setattr(opening, "read_header", reads.append)
        with pytest.raises(ImageError, match=r"MB for 0\.0 megapixels"):
            open_image(path)
        monkeypatch.undo()
        monkeypatch.setattr(opening, "FREE_BYTES", 10_000)
        assert reads == [], name
        with pytest.raises(ImageError, match=r"MB for 0\.0 megapixels"):
            open_image(data + bytes(40_000))


def test_libtiff_keeps_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    data = made.tiff([bytes(64)], {259: ("short", [5]), 65000: ("short", [1])}, [8], 1)
    with pytest.raises(ImageError):
        open_image(data)
    Image.open(io.BytesIO(data)).info.clear()
    assert capfd.readouterr() == ("", "")


def test_the_stream_of_mutations_is_seeded() -> None:
    first, second = (bombs.structural_mutation(random.Random(7)) for _ in range(2))
    assert first == second
