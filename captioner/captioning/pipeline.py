"""Decoding, encoding and searching side by side in threads; what they hold does not grow with the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from threading import Event
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from captioner.captioning.caption import Caption
from captioner.captioning.options import CaptionOptions
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared
from captioner.threads import available_cores, map_ahead

if TYPE_CHECKING:
    from captioner.captioning.captioner import Captioner

BATCH = 64  # images encoded together, unless told otherwise
# Images that are searched together, whatever the size of batches: with other numbers of images a search computes in
# another order, and the last digits of what is written would depend on the size.
SEARCHED = 64
FIRST = 32  # of the first two searches and batches, so that captions come sooner
Item = TypeVar("Item")


@dataclass(frozen=True)
class _Image(Generic[Item]):
    """One image on its way: what it was given as, the seed of its samples, and what it became or why it was refused."""

    item: Item
    seed: int
    prepared: Prepared | ImageError


@dataclass(frozen=True)
class _Encoded(Generic[Item]):
    """The same without its pixels, which need not be held until it is searched: where its regions lie on it."""

    item: Item
    seed: int
    geometry: Geometry | ImageError


_Batch = list[_Image[Item]]
_Group = tuple[list[_Encoded[Item]], Tensor | None]  # with the regions of those that have some


def caption_items(
    model: Captioner,
    items: Iterable[tuple[Item, int]],
    prepare: Callable[[Item], tuple[Item, Prepared]],
    options: CaptionOptions,
) -> Iterator[tuple[Item, list[Caption] | ImageError]]:
    """Yield the captions of each item, or why it was refused, in order; an item comes with the seed of its samples.

    `prepare` gives an item back together with what the network takes.
    """
    size = options.batch_size or BATCH
    left = Event()

    def check() -> None:
        if left.is_set():  # nobody waits for these captions, but the end of the program for this thread
            raise InterruptedError("the search was interrupted")

    def prepare_one(given: tuple[Item, int]) -> _Image[Item]:
        item, seed = given
        try:
            item, prepared = prepare(item)
            return _Image(item, seed, prepared)
        except ImageError as error:
            return _Image(item, seed, error.copy())  # the first one's traceback would keep the bytes alive

    def encode(batch: _Batch[Item]) -> list[_Group[Item]]:
        """Return groups of images that are searched together, with the regions of those that can be."""
        good = [image.prepared for image in batch if isinstance(image.prepared, Prepared)]
        encoded = [
            _Encoded(
                image.item,
                image.seed,
                image.prepared.geometry if isinstance(image.prepared, Prepared) else image.prepared,
            )
            for image in batch
        ]
        groups = [encoded[start : start + SEARCHED] for start in range(0, len(encoded), SEARCHED)]
        if not good:
            return [(group, None) for group in groups]
        parts = [model.encode(good[start : start + size]) for start in range(0, len(good), size)]
        regions = torch.cat(parts) if len(parts) > 1 else parts[0]  # one part need not be copied
        counts = [sum(isinstance(image.geometry, Geometry) for image in group) for group in groups]
        shares = torch.split(regions, counts)  # each (B, L, D)
        return [(group, share if len(share) else None) for group, share in zip(groups, shares, strict=True)]

    def find(encoded: _Group[Item]) -> list[tuple[Item, list[Caption] | ImageError]]:
        group, regions = encoded
        good = [(image.geometry, image.seed) for image in group if isinstance(image.geometry, Geometry)]
        found: Iterator[list[Caption]] = iter(())
        if regions is not None:
            geometries, seeds = zip(*good, strict=True)
            found = iter(model.find_captions(regions, geometries, options, seeds, check))
        return [
            (image.item, image.geometry if isinstance(image.geometry, ImageError) else next(found)) for image in group
        ]

    workers = options.workers or available_cores()
    # Searching takes about as long as encoding, which has threads of its own; torch's threads count as searchers.
    cores = min(workers, available_cores())
    searchers = max(1, cores // (2 * torch.get_num_threads())) if model.device == "cpu" else 1
    images = map_ahead(prepare_one, items, workers=workers, ahead=2 * size, name="decode")
    batches = _batches(images, -(-size // SEARCHED) * SEARCHED)
    encoded = map_ahead(encode, batches, workers=1, ahead=1, name="encode")
    groups = (group for batch in encoded for group in batch)
    for found in map_ahead(find, groups, workers=searchers, ahead=searchers, name="search", left=left):
        yield from found


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yield batches of `size`, a multiple of SEARCHED, after two of FIRST."""
    for length in chain((FIRST, FIRST), repeat(size)):
        if not (batch := list(islice(items, length))):
            return
        yield batch
