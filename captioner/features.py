"""A cache of regions on disk: half precision, memory-mapped, safe to interrupt at any moment.

A cache is one folder, named after all that decides its contents, so that another encoder, layer, size or set of weights
never reads it:

    cache.json    what the regions are of: encoder, weights, layer, preprocessing, shape
    regions.f16   rows of (L, D) little-endian half-precision numbers
    index.jsonl   one line a row, written after it: file name, row, and a stamp of the image file

Rows without an index line do not exist. A run that was killed leaves at most some of those, and half a line of index;
the next run cuts both off and goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.datasets import CaptionedImage
from captioner.encoder import Encoder
from captioner.engines import Engine, Regions, available_cores, make_engine
from captioner.images import ImageError, Prepared, read_ahead

try:
    import fcntl
except ImportError:  # Windows: two runs on one cache are not kept apart there
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
BATCH = 32  # images encoded and written at a time
HALF = np.dtype("<f2")
HALF_EXPONENT = 0x7C00  # all ones: infinite or not a number; numpy's own test takes ten times as long
_Batch = list[tuple[CaptionedImage, Prepared | ImageError]]
Progress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True)
class Record:
    """Where the regions of an image are, and a stamp of the file they were computed from."""

    file_name: str
    row: int
    size: int
    modified: int  # nanoseconds
    digest: str

    def is_of(self, path: Path) -> bool:
        """Tell whether the file still is what was encoded, by its contents where only its time is another."""
        status = path.stat()
        if status.st_size != self.size:
            return False
        return status.st_mtime_ns == self.modified or digest(path) == self.digest


@dataclass(frozen=True)
class FillReport:
    """What one run did: images encoded, found done, and refused with the reason."""

    encoded: int
    skipped: int
    refused: tuple[str, ...]


class RegionCache:
    """The regions of many images, read from disk as they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Open the cache in `folder` as it stands; rows that are added later are not seen."""
        self.folder = folder
        self.identity = read_identity(folder)
        rows, columns = self.identity["grid"]
        self.shape = (rows * columns, self.identity["dimensions"])  # (L, D)
        self.records = read_index(folder)
        length = 1 + max((record.row for record in self.records.values()), default=-1)
        self.rows: NDArray[np.float16] = (
            np.memmap(folder / "regions.f16", HALF, "r", shape=(length, *self.shape))
            if length
            else np.empty((0, *self.shape), HALF)
        )

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, file_name: str) -> bool:
        return file_name in self.records

    def regions(self, file_names: Sequence[str]) -> NDArray[np.float16]:
        """Return the regions (B, L, D) of the named images."""
        missing = [name for name in file_names if name not in self.records]
        if missing:
            raise ValueError(f"{self.folder} has no regions of {missing[0]} and {len(missing) - 1} others")
        return self.rows[[self.records[name].row for name in file_names]]


def cache_folder(root: Path, identity: dict[str, Any]) -> Path:
    """Return the folder below `root` for regions of this identity: readable parts, then a hash of all of them."""
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    preprocessing = identity["preprocessing"]
    parts = [identity["encoder"].replace("/", "_"), identity["layer"], f"{preprocessing['size']}{preprocessing['fit']}"]
    return root / "-".join([*parts, *(["flipped"] if preprocessing["flip"] else []), key])


def cache_identity(encoder: Encoder, *, flip: bool = False) -> dict[str, Any]:
    """Return all that decides the contents of a cache of `encoder`'s regions."""
    identity = encoder.identity()
    identity["preprocessing"]["flip"] = flip
    return {"format": FORMAT_VERSION, **identity}


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
    unique = list({image.file_name: image for image in images}.values())
    with _Writer(folder, identity) as writer:
        pending = [image for image in unique if not writer.holds(image)]
        found = len(unique) - len(pending)
        progress(found, len(unique))
        refused: list[str] = []
        if pending:
            writer.reserve(len(pending))
            encode = make_engine(encoder, engine, device=device, half=True)
            prepared = read_ahead(
                [image.path for image in pending],
                replace(encoder.preprocessing, flip=flip),
                workers=workers or available_cores(),
                ahead=2 * BATCH,
            )
            done = found
            for batch, regions in _encode_ahead(pending, prepared, encode):
                good = [image for image, result in batch if isinstance(result, Prepared)]
                refused += [str(result) for _, result in batch if isinstance(result, ImageError)]
                if regions is not None:
                    writer.append(good, regions)
                done += len(batch)
                progress(done, len(unique))
    return folder, FillReport(len(pending) - len(refused), found, tuple(refused))


def _encode_ahead(
    images: Sequence[CaptionedImage], prepared: Iterator[Prepared | ImageError], encode: Engine
) -> Iterator[tuple[_Batch, Regions | None]]:
    """Yield batches of images as they were read, with the regions of the good ones, while the next one is encoded."""
    with ThreadPoolExecutor(2, thread_name_prefix="encode") as pool:
        waiting: deque[tuple[_Batch, Future[Regions] | None]] = deque()
        for start in range(0, len(images), BATCH):
            batch = list(zip(images[start : start + BATCH], islice(prepared, BATCH), strict=True))
            pixels = [result.pixels for _, result in batch if isinstance(result, Prepared)]
            waiting.append((batch, pool.submit(encode, pixels) if pixels else None))
            if len(waiting) > 1:
                first, future = waiting.popleft()
                yield first, future.result() if future else None
        for first, future in waiting:
            yield first, future.result() if future else None


class _Writer:
    """The one process that adds to a cache; rows go to disk while the next batch is being encoded."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = _lock(folder)
        if not (folder / "cache.json").exists():
            _write_whole(folder / "cache.json", json.dumps(identity, indent=2) + "\n")
        self.row_bytes = identity["grid"][0] * identity["grid"][1] * identity["dimensions"] * HALF.itemsize
        self.records = read_index(folder)
        self._cut_torn_ends()
        self.rows = (folder / "regions.f16").open("ab")
        self.index = (folder / "index.jsonl").open("ab")
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="write")
        self.writing: Future[None] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True)
        self.rows.close()
        self.index.close()
        os.close(self.lock)
        if self.writing is not None:
            self.writing.result()

    def holds(self, image: CaptionedImage) -> bool:
        record = self.records.get(image.file_name)
        return record is not None and image.path.exists() and record.is_of(image.path)

    def reserve(self, count: int) -> None:
        """Raise when the disk has no room for `count` more rows."""
        needed, free = count * self.row_bytes, shutil.disk_usage(self.folder).free
        if needed > free:
            raise ValueError(
                f"{self.folder}: {count:,} images need {needed / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB free"
            )

    def append(self, images: Sequence[CaptionedImage], regions: Regions) -> None:
        if self.writing is not None:
            self.writing.result()
        self.writing = self.pool.submit(self._write, list(images), regions)

    def _write(self, images: list[CaptionedImage], regions: Regions) -> None:
        halves = np.ascontiguousarray(regions, HALF)
        if (halves.view(np.uint16) & HALF_EXPONENT == HALF_EXPONENT).any():
            raise ValueError(f"{self.folder}: regions are too large for half precision (above 65,504), or not finite")
        row = self.rows.tell() // self.row_bytes
        lines = []
        for offset, image in enumerate(images):
            status = image.path.stat()
            record = Record(image.file_name, row + offset, status.st_size, status.st_mtime_ns, digest(image.path))
            lines.append(json.dumps(vars(record)) + "\n")
        # The index may name a row only once the row is on disk.
        for file, data in ((self.rows, halves.data), (self.index, "".join(lines).encode())):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _cut_torn_ends(self) -> None:
        index, rows = self.folder / "index.jsonl", self.folder / "regions.f16"
        for path in (index, rows):
            path.touch()
        with index.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        length = 1 + max((record.row for record in self.records.values()), default=-1)
        os.truncate(rows, length * self.row_bytes)


def read_identity(folder: Path) -> dict[str, Any]:
    """Return what the cache in `folder` is of; raise ValueError when there is none or it cannot be read."""
    path = folder / "cache.json"
    try:
        identity: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} is no region cache: it has no cache.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if identity.get("format") != FORMAT_VERSION:
        raise ValueError(f"{path} has format {identity.get('format')}; this version reads {FORMAT_VERSION}")
    return identity


def read_index(folder: Path) -> dict[str, Record]:
    """Return the records by file name, the newest of each; half a line at the end is left out."""
    path = folder / "index.jsonl"
    records: dict[str, Record] = {}
    if not path.exists():
        return records
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}:{number} is damaged ({error}); remove {folder} to start it anew") from None
            records[record.file_name] = record
    return records


def digest(path: Path) -> str:
    """Return a short hash of a file's contents."""
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _lock(folder: Path) -> int:
    """Return a descriptor that holds the cache for this process; it is free again when the process ends, however."""
    descriptor = os.open(folder / "cache.lock", os.O_RDWR | os.O_CREAT, 0o644)
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ValueError(f"{folder} is being filled by another process; wait for it to end") from None
    return descriptor


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
