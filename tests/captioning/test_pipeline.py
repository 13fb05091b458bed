from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from helpers.holding import PATIENCE
from helpers.toy_captioner import make_toy, write_images
from torch import Tensor

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.collection import caption_sources
from captioner.captioning.pipeline import FIRST, SEARCHED, _batches
from captioner.images.preprocessing import Prepared
from captioner.images.sources import Source
from captioner.model.encoders.encoder import Encoder


@pytest.mark.parametrize(
    ("items", "size", "lengths"),
    [(0, 64, []), (20, 64, [20]), (64, 64, [32, 32]), (200, 64, [32, 32, 64, 64, 8]), (200, 128, [32, 32, 128, 8])],
)
def test_the_first_batches_are_small(items: int, size: int, lengths: list[int]) -> None:
    batches = list(_batches(iter(range(items)), size))
    assert [len(batch) for batch in batches] == lengths
    assert [item for batch in batches for item in batch] == list(range(items))
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    assert all(
        start == FIRST or start % SEARCHED == 0 for start in starts
    )  # the same images are searched together as in large batches


def test_the_first_caption_of_an_endless_folder(tmp_path: Path, lite0: Encoder) -> None:
    came = Event()
    sizes = []

    class Waiting(Captioner):
        def encode(self, prepared: Sequence[Prepared]) -> Tensor:
            sizes.append(len(prepared))
            if len(sizes) > 2:  # whatever comes after the first two small batches
                assert came.wait(PATIENCE)
            return super().encode(prepared)

    photos = write_images(tmp_path, 3)
    model = Waiting(make_toy(lite0), device="cpu")
    results = caption_sources(model, (Source(path.as_posix(), path) for path in cycle(photos)))
    first = next(results)
    came.set()
    assert first.name == photos[0].as_posix()
    assert first.captions
    results.close()  # type: ignore[attr-defined]
    assert sizes[:2] == [FIRST, FIRST]


def test_pixels_are_let_go_once_they_are_encoded(tmp_path: Path, lite0: Encoder) -> None:
    pixels: list[list[Callable[[], object]]] = []
    held = []

    class Watching(Captioner):
        def encode(self, prepared: Sequence[Prepared]) -> Tensor:
            pixels.append([weakref.ref(image.pixels) for image in prepared])
            return super().encode(prepared)

        def find_captions(self, *given: Any) -> list[list[Caption]]:
            held.append(sum(each() is not None for each in pixels[0]))
            return super().find_captions(*given)

    photos = write_images(tmp_path, 3)
    model = Watching(make_toy(lite0), device="cpu")
    sources = [Source(path.as_posix(), path) for path in islice(cycle(photos), 2 * FIRST + SEARCHED)]
    assert all(result.captions for result in caption_sources(model, sources))
    assert len(held) == 3
    assert held[1:] == [0, 0]  # the second group was encoded after the first, whose pixels nobody needs
