"""Filling the region cache: decode, encode and write side by side, safe to interrupt at any moment."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.dataset import CaptionedImage
from captioner.files import check_regular, digest, printable, try_lock, write_whole
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError
from captioner.images.preprocessing import BOXES, Prepared, Preprocessing, read_ahead
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.engines import Engine, RegionArray, make_engine
from captioner.model.encoders.region_cache import (
    ANEW,
    BOXES_FILE,
    HALF,
    SINGLE,
    Record,
    Stamp,
    cache_folder,
    cache_identity,
    check_rows,
    count_rows,
    is_finite,
    read_identity,
    read_index,
    read_stamp,
    row_bytes,
)
from captioner.threads import available_cores, map_ahead

BATCH = 32  # images encoded and written at a time
_Batch = list[tuple[CaptionedImage, Prepared | ImageError]]
Progress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class FillReport:
    """What one run did: images encoded, found done, and refused with the reason."""

    encoded: int
    skipped: int
    refused: tuple[str, ...]


def fill_cache(
    images: Sequence[CaptionedImage],
    root: Path,
    encoder: Encoder,
    *,
    flip: bool = False,
    engine: str = "auto",
    device: str = "auto",
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[Path, FillReport]:
    """Encode the images that the cache below `root` does not hold yet; return its folder and what was done.

    `flip` makes a cache of the mirrored images. `engine` and `device` are those of `make_engine`, `workers` the threads
    that decode, by default one a core. `progress` is told the images done and all, at the start and after each batch.
    """
    identity = cache_identity(encoder, flip=flip)
    folder = cache_folder(root, identity)
    _check_identity(folder, identity)
    unique = list({image.file_name: image for image in images}.values())
    if unique and not _find_pending(unique, read_index(folder)):  # nothing to add, so that others need not wait for us
        progress(len(unique), len(unique))
        return folder, FillReport(0, len(unique), ())
    with Writer(folder, identity) as writer:
        pending = writer.find_pending(unique)
        done = found = len(unique) - len(pending)
        progress(found, len(unique))
        refused: list[str] = []
        if pending:
            writer.reserve(len(pending))
            paths, preprocessing = [image.path for image in pending], replace(encoder.preprocessing, flip=flip)
            prepared = read_ahead(paths, preprocessing, workers=workers or available_cores(), ahead=2 * BATCH)
            with (
                make_engine(encoder, engine, device=device, half=True) as encode,
                closing(_encode_ahead(pending, prepared, encode)) as batches,
            ):
                for batch, regions in batches:  # written while the next ones are being encoded
                    refused += writer.write(batch, regions)
                    done += len(batch)
                    progress(done, len(unique))
    return folder, FillReport(len(pending) - len(refused), found, tuple(refused))


def _encode_ahead(
    images: Sequence[CaptionedImage], prepared: Iterator[Prepared | ImageError], encode: Engine
) -> Generator[tuple[_Batch, RegionArray | None], None, None]:
    """Yield batches of images as they were read, with the regions of the good ones, while the next are encoded."""

    def encode_batch(batch: _Batch) -> tuple[_Batch, RegionArray | None]:
        pixels = [result.pixels for _, result in batch if isinstance(result, Prepared)]
        return batch, encode(pixels) if pixels else None

    starts = range(0, len(images), BATCH)
    batches = (list(zip(images[first : first + BATCH], islice(prepared, BATCH), strict=True)) for first in starts)
    return map_ahead(encode_batch, batches, workers=2, ahead=2, name="encode")


class Writer:
    """The one process that adds to a cache."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.preprocessing = Preprocessing.from_dict(identity["preprocessing"])
        self.regions = identity["grid"][0] * identity["grid"][1]  # L
        self.row_bytes = row_bytes(identity)
        self.stamps: dict[str, Stamp] = {}
        folder.mkdir(parents=True, exist_ok=True)
        check_regular(folder / "cache.lock")
        self.lock = (folder / "cache.lock").open("ab")
        try:
            if not try_lock(self.lock):
                raise ValueError(f"{folder} is being filled by another process; wait for it to end")
            if not (folder / "cache.json").exists():
                write_whole(folder / "cache.json", json.dumps(identity, indent=2) + "\n")
            for name in ("index.jsonl", "regions.f16"):
                check_regular(folder / name)
            self.records = read_index(folder)
            check_rows(folder, count_rows(self.records), identity)
            self._cut_torn_ends()
            self.rows = (folder / "regions.f16").open("ab")
            self.boxes = (folder / BOXES_FILE).open("ab") if self.preprocessing.fit == BOXES else None
            self.index = (folder / "index.jsonl").open("ab")
        except BaseException:
            self.lock.close()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.rows, self.boxes, self.index, self.lock):
            if file is not None:
                file.close()

    def find_pending(self, images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
        """Return the images whose regions are not there, and remember how each file stood before it was read."""
        pending = _find_pending(images, self.records)
        self.stamps |= {image.file_name: stamp for image, stamp in pending if stamp is not None}
        return [image for image, _ in pending]

    def reserve(self, count: int) -> None:
        """Raise when the disk has no room for `count` more rows."""
        needed, free = count * self.row_bytes, shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(
                f"{self.folder}: {count:,} images need {needed / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free"
            )

    def write(self, batch: _Batch, regions: RegionArray | None) -> list[str]:
        """Add a batch as it was read, with the regions of the good images; return why others are refused.

        A file that changed after the run began may have been read before or after that; its regions are not kept.
        """
        refused = [str(result) for _, result in batch if isinstance(result, ImageError)]
        if regions is None:
            return refused
        images = [image for image, result in batch if isinstance(result, Prepared)]
        digests = [digest(image.path) if image.path.exists() else "" for image in images]
        steady = [read_stamp(image.path) == self.stamps.get(image.file_name) for image in images]
        changed = [image for image, same in zip(images, steady, strict=True) if not same]
        refused += [f"{printable(str(image.path))}: changed while it was being read; run again" for image in changed]
        halves = np.ascontiguousarray(regions if all(steady) else regions[steady], HALF)
        if not is_finite(halves):
            raise ValueError(f"{self.folder}: regions are too large for half precision (above 65,504), or not finite")
        row = self.rows.tell() // self.row_bytes
        geometries = [result.geometry for _, result in batch if isinstance(result, Prepared)]
        filled = [self.preprocessing.filled(geometry) for geometry in geometries]
        together = zip(images, digests, filled, steady, strict=True)
        kept = [(image.file_name, contents, part) for image, contents, part, same in together if same]
        lines = [
            Record(name, row + offset, *self.stamps[name], contents, part).to_line()
            for offset, (name, contents, part) in enumerate(kept)
        ]
        boxes = _box_rows([each for each, same in zip(geometries, steady, strict=True) if same], regions.shape[1])
        # The index may name a row only once the row is on disk.
        for file, data in ((self.rows, halves.data), (self.boxes, boxes.data), (self.index, "".join(lines).encode())):
            if file is None:
                continue
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return refused

    def _cut_torn_ends(self) -> None:
        index, rows = self.folder / "index.jsonl", self.folder / "regions.f16"
        for path in (index, rows):
            path.touch()
        with index.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        os.truncate(rows, count_rows(self.records) * self.row_bytes)
        boxes = self.folder / BOXES_FILE
        if boxes.exists():
            os.truncate(boxes, count_rows(self.records) * self.regions * 4 * SINGLE.itemsize)


def _box_rows(geometries: Sequence[Geometry], regions: int) -> NDArray[np.float32]:
    """Return the boxes (n, L, 4) of images that have some, zero beyond them."""
    rows = np.zeros((len(geometries), regions, 4), SINGLE)
    for row, geometry in zip(rows, geometries, strict=True):
        for place, box in zip(row, geometry.boxes or (), strict=False):
            place[:] = box
    return rows


def _check_identity(folder: Path, identity: dict[str, Any]) -> None:
    """Raise ValueError where a cache there is of something else than its folder's name says."""
    if (folder / "cache.json").exists() and read_identity(folder) != json.loads(json.dumps(identity)):
        raise ValueError(f"{folder / 'cache.json'} tells of other regions than these; {ANEW} {folder}")


def _find_pending(
    images: Sequence[CaptionedImage], records: Mapping[str, Record]
) -> list[tuple[CaptionedImage, Stamp | None]]:
    """Return the images that no record is of as they are now, with the stamps of their files."""
    stamped = [(image, records.get(image.file_name), read_stamp(image.path)) for image in images]
    return [(image, stamp) for image, record, stamp in stamped if record is None or not record.is_of(image.path, stamp)]
