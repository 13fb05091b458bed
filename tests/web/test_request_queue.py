"""Images that wait together are captioned together, and no model waits for another."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.holding import PATIENCE, wait_until
from helpers.served_stubs import HeldDecoders, Hung, Stub
from helpers.toy_captioner import make_toy, write_images

pytest.importorskip("starlette", reason="the extra serve is not installed")

from captioner.captioning.captioner import Captioner
from captioner.captioning.options import make_options
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared
from captioner.model.encoders.encoder import Encoder
from captioner.web.decoding import Decoders
from captioner.web.request_queue import CaptionQueue, QueueFull
from captioner.web.served_models import Served


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> list[Served]:
    return [Served(name, Captioner(make_toy(lite0, seed), device="cpu"), "soft") for seed, name in enumerate("ab")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("photos"), 12)


@pytest.fixture
def held() -> Iterator[HeldDecoders]:
    decoders = HeldDecoders()
    yield decoders
    decoders.close()


@pytest.fixture
def queue(held: HeldDecoders) -> Iterator[CaptionQueue]:
    queue = CaptionQueue(held, batch=4, waiting=12)
    yield queue
    queue.close()


def texts(future: Future[Any]) -> list[str]:
    return [caption.text for caption in future.result(timeout=PATIENCE)]


def test_images_that_wait_are_captioned_together(
    queue: CaptionQueue, held: HeldDecoders, models: list[Served], photos: list[Path]
) -> None:
    model, go = models[0].captioner, threading.Event()

    class Busy(Stub):
        def encode(self, prepared: list[Prepared]) -> Any:
            regions = super().encode(prepared)
            assert go.wait(PATIENCE)
            return regions

    stub: Any = Busy(model)
    images = [path.read_bytes() for path in photos]
    options = make_options(n_best=2)
    futures = [queue.submit(stub, image, options, PATIENCE) for image in images]
    held.go.set()
    (lane,) = queue._lanes.values()
    wait_until(lambda: sum(stub.batches) + len(lane._ready) == 12)  # all have gathered behind the first
    go.set()
    found = [texts(future) for future in futures]
    assert found == [[caption.text for caption in model.caption(image, n_best=2)] for image in images]
    assert len({tuple(each) for each in found}) > 6  # mixed-up answers would show
    assert sum(stub.batches) == 12
    assert max(stub.batches) == 4


def test_only_those_that_ask_for_the_same_go_together(
    queue: CaptionQueue, held: HeldDecoders, models: list[Served], photos: list[Path]
) -> None:
    stubs: list[Any] = [Stub(model.captioner) for model in models]
    kinds: list[dict[str, Any]] = [{"beam": 2}, {"beam": 3}, {"sample": True, "seed": 1}, {"sample": True, "seed": 2}]
    images = [path.read_bytes() for path in photos]
    asked = [(images[place], place % 2, kinds[place % 4]) for place in range(12)]
    futures = [queue.submit(stubs[which], image, make_options(**kind), PATIENCE) for image, which, kind in asked]
    held.go.set()
    for future, (image, which, kind) in zip(futures, asked, strict=True):
        assert texts(future) == [models[which].captioner.caption(image, **kind).text]


def test_a_failing_image_fails_alone(
    queue: CaptionQueue, held: HeldDecoders, models: list[Served], photos: list[Path]
) -> None:
    model = models[0].captioner
    images = [path.read_bytes() for path in photos[:4]]
    bad = model.preprocessing.read(images[2]).pixels
    stub: Any = Stub(model, bad=lambda prepared: bool(np.array_equal(prepared.pixels, bad)))
    futures = [queue.submit(stub, image, make_options(), PATIENCE) for image in [*images, b"no image"]]
    held.go.set()
    for place in (0, 1, 3):
        assert texts(futures[place]) == [model.caption(images[place]).text]
    with pytest.raises(RuntimeError, match="breaks the encoder"):
        texts(futures[2])
    with pytest.raises(ImageError, match="not one of JPEG"):
        texts(futures[4])


def test_a_full_queue_says_so_and_cancelled_images_leave(
    queue: CaptionQueue, held: HeldDecoders, models: list[Served], photos: list[Path]
) -> None:
    stub: Any = Stub(models[0].captioner)
    image = photos[0].read_bytes()
    futures = [queue.submit(stub, image, make_options(), PATIENCE) for _ in range(12)]
    with pytest.raises(QueueFull, match="12 images are waiting already"):
        queue.submit(stub, image, make_options(), PATIENCE)
    assert all(future.cancel() for future in futures[3:])
    assert queue.unanswered == 3
    again = queue.submit(stub, image, make_options(), PATIENCE)
    held.go.set()
    assert {tuple(texts(future)) for future in (again, *futures[:3])} == {tuple(texts(again))}  # which may come last
    assert sum(stub.batches) == 4


def test_a_closed_queue_takes_no_more(models: list[Served], photos: list[Path]) -> None:
    queue = CaptionQueue(HeldDecoders())
    queue.close()
    with pytest.raises(QueueFull):
        queue.submit(models[0].captioner, photos[0].read_bytes(), make_options(), PATIENCE)


def test_a_hung_model_blocks_no_other(models: list[Served], photos: list[Path]) -> None:
    hung: Any = Hung(models[1].captioner)
    image = photos[0].read_bytes()
    decoders = Decoders()
    queue = CaptionQueue(decoders, waiting=4)
    # As full as its queue may be, and its thread busy.
    futures = [queue.submit(hung, image, make_options(beam=place + 1), PATIENCE) for place in range(4)]
    assert hung.searching.wait(PATIENCE)
    with pytest.raises(QueueFull):
        queue.submit(hung, image, make_options(), PATIENCE)
    good = [queue.submit(models[0].captioner, image, make_options(), PATIENCE) for _ in range(4)]
    expected = [models[0].captioner.caption(image).text]
    assert [texts(future) for future in good] == [expected] * 4
    assert not hung.stopped.is_set()
    for future in futures:  # those who asked have had their time
        future.cancel()
    assert hung.stopped.wait(PATIENCE)
    assert queue.unanswered == 0
    queue.close()
    decoders.close()


def test_a_model_of_no_numbers_blocks_no_other(lite0: Encoder, models: list[Served], photos: list[Path]) -> None:
    broken = Captioner(make_toy(lite0, 3), device="cpu")
    with torch.no_grad():
        broken.decoder.output.weight.fill_(math.nan)
    image = photos[0].read_bytes()
    decoders = Decoders()
    queue = CaptionQueue(decoders)
    never = queue.submit(broken, image, make_options(), PATIENCE)
    good = queue.submit(models[0].captioner, image, make_options(), PATIENCE)
    assert texts(good) == [models[0].captioner.caption(image).text]
    assert never.cancel() or never.exception() is not None
    queue.close()  # which waits for its thread
    assert not [lane for lane in queue._lanes.values() if lane._thread.is_alive()]
    decoders.close()
