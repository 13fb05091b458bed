"""Decoding in processes that can be ended: what comes out is the same, and what goes wrong costs one image."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.awkward_images import png_of
from helpers.holding import wait_until
from helpers.photo_folders import EXAMPLES
from PIL import Image

from captioner.images.opening import ImageError, NotAnImageError, open_image
from captioner.images.preprocessing import Preprocessing
from captioner.web import decoding
from captioner.web.decoding import Decoders

LATER = 600.0  # seconds


def deadline() -> float:
    return time.monotonic() + LATER


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    decoders = Decoders(1)
    yield decoders
    decoders.close()


def number_of(decoders: Decoders) -> int:
    """The number of the one decoding process."""
    process = decoders._idle.queue[0]
    assert process is not None
    return process.process.pid


@pytest.mark.parametrize("fitting", [Preprocessing(64), Preprocessing(48, "crop", resize=64, flip=True)], ids=str)
def test_what_comes_out_is_what_this_process_would_read(decoders: Decoders, fitting: Preprocessing) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    expected, found = fitting.read(image), decoders.prepare(image, fitting, deadline()).result()
    assert np.array_equal(found.pixels, expected.pixels)
    assert found.geometry == expected.geometry


def test_whole_pictures_and_small_ones(decoders: Decoders) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    whole = decoders.open(image, deadline()).result()
    assert whole.tobytes() == open_image(image).tobytes()
    with Image.open(io.BytesIO(decoders.shrink(image, 40, deadline()).result())) as small:
        assert (small.format, max(small.size)) == ("JPEG", 40)


def test_a_process_is_reused_and_imports_no_torch(decoders: Decoders) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    numbers = set()
    for _ in range(3):
        decoders.prepare(image, Preprocessing(64), deadline()).result()
        numbers.add(number_of(decoders))
    assert len(numbers) == 1
    loaded = Path(f"/proc/{numbers.pop()}/maps")
    if loaded.exists():
        assert "torch" not in loaded.read_text()


def test_refusals_keep_their_kind_and_reason(decoders: Decoders) -> None:
    with pytest.raises(NotAnImageError, match="not one of JPEG"):
        decoders.prepare(b"hello", Preprocessing(64), deadline()).result()
    with pytest.raises(ImageError, match=r"900\.0 megapixels") as caught:
        decoders.open(png_of(30_000, 30_000), deadline()).result()
    assert not isinstance(caught.value, NotAnImageError)


def test_a_deadline_ends_the_process_and_the_next_image_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    hanging = decoding._PROGRAM.replace("; answer(", "; import threading; threading.Event().wait(); answer(")
    decoders = Decoders(1)
    monkeypatch.setattr(decoding, "_PROGRAM", hanging)
    # Its turn comes before the deadline, on however busy a machine, and its answer does not.
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(decoding, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(ImageError, match="it takes too long to decode"):
        decoders.prepare(image, Preprocessing(64), 1.0).result()
    monkeypatch.undo()
    assert decoders.prepare(image, Preprocessing(64), deadline()).result().pixels.shape == (64, 64, 3)
    assert decoders.ended == 1
    decoders.close()


@pytest.mark.skipif(decoding.resource is None, reason="this system bounds no process")
def test_an_image_has_so_much_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    task = "import captioner.web.decoding as d; d._TASKS['shrink'] = lambda *_: exec('while True: pass')"
    busy = decoding._PROGRAM.replace("; answer(", f"; {task}; answer(")
    decoders = Decoders(1, seconds=1)
    monkeypatch.setattr(decoding, "_PROGRAM", busy)
    with pytest.raises(ImageError, match="it takes more than 1 seconds to decode"):
        decoders.shrink(image, 40, deadline()).result()
    monkeypatch.undo()
    assert decoders.shrink(image, 40, deadline()).result()
    decoders.close()


@pytest.mark.skipif(decoding.resource is None, reason="this system bounds no process")
def test_an_image_has_so_much_memory_and_may_write_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        decoding,
        "_PROGRAM",
        decoding._PROGRAM.replace(
            "; answer(",
            "; import captioner.web.decoding as d; "
            "d._TASKS['open'] = lambda *_: bytes(d.DECODE_BYTES); "
            "d._TASKS['shrink'] = lambda image, _: open(image, 'wb').write(b'x'); answer(",
        ),
    )
    decoders = Decoders(1)
    with pytest.raises(ImageError, match="it takes too much memory to decode"):
        decoders.open(b"", deadline()).result()
    with pytest.raises(ImageError, match="its decoder ended with"):
        decoders.shrink(os.fsencode(tmp_path / "written"), 1, deadline()).result()
    assert (tmp_path / "written").read_bytes() == b""
    decoders.close()


def test_a_process_that_was_killed_is_replaced(decoders: Decoders) -> None:
    image = (EXAMPLES / "cat.jpg").read_bytes()
    decoders.prepare(image, Preprocessing(64), deadline()).result()
    before = decoders._idle.queue[0]
    assert before is not None
    os.kill(before.process.pid, signal.SIGKILL)
    wait_until(lambda: before.process.poll() is not None)
    assert decoders.prepare(image, Preprocessing(64), deadline()).result().pixels.shape == (64, 64, 3)
    assert number_of(decoders) != before.process.pid


def test_no_process_outlives_its_server() -> None:
    decoders = Decoders(2)
    decoders.warm_up()
    numbers = [process.process.pid for process in decoders._idle.queue if process is not None]
    assert len(numbers) == 2
    decoders.close()
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
