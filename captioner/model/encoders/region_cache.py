"""The region cache as it lies on disk, and reading from it.

A cache is one folder, named after all that decides its contents, so that another encoder, layer, size or set of weights
never reads it:

    cache.json    what the regions are of: encoder, weights, layer, preprocessing, shape
    regions.f16   rows of (L, D) little-endian half-precision numbers
    index.jsonl   one line per row, written after it: file name, row, and which file it was computed from
    boxes.f32     rows of (L, 4) little-endian numbers, only of imported regions: left, top, right, bottom, in pixels

An image may fill fewer than L regions: the first rows and columns of the grid, as its index line tells under `filled`.
The others are missing, and what stands at their places means nothing. Imported regions have a grid of one row.

Rows without an index line do not exist. A run that was killed leaves at most some of those, and half a line of index;
the next run cuts both off and resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.annotations import is_text, shown
from captioner.files import check_regular, digest, open_regular, read_json_object, read_lines
from captioner.images.geometry import Geometry
from captioner.images.preprocessing import BOXES
from captioner.model.config import MOST_PIXELS, WIDEST
from captioner.model.encoders.encoder import Encoder

FORMAT_VERSION = 1
HALF, SINGLE = np.dtype("<f2"), np.dtype("<f4")
BOXES_FILE = "boxes.f32"
HALF_EXPONENT = 0x7C00  # all ones: infinite or not a number; numpy's own test takes ten times as long
LARGEST = 1_000_000  # bytes of a cache.json
LONGEST = 100_000  # bytes of a line of the index
ANEW = "to fill it anew, remove"
Stamp = tuple[int, int]  # of a file: its size in bytes, and when it was modified, in nanoseconds


@dataclass(frozen=True)
class Record:
    """Where the regions of an image are, and which file they were computed from."""

    file_name: str
    row: int
    size: int
    modified: int
    digest: str
    filled: Sequence[int] | None = None  # (rows, columns) of the grid that the image fills; None: all

    def to_line(self) -> str:
        """Return the line of the index."""
        values = dict(vars(self))
        if self.filled is None:
            del values["filled"]
        return json.dumps(values) + "\n"

    def check(self) -> None:
        """Raise ValueError where a field has another type than it should."""
        numbers = (self.row, self.size, self.modified)
        if not (is_text(self.file_name) and is_text(self.digest) and all(type(number) is int for number in numbers)):
            raise ValueError(f"expected a file name, a row, a size, a time and a digest, found {shown(vars(self))}")
        if not 0 <= self.row < 2**40:
            raise ValueError(f"row is {self.row}")
        match self.filled:
            case None | [int(), int()]:
                return
        raise ValueError(f"filled is {shown(self.filled)}; expected rows and columns")

    def is_of(self, path: Path, stamp: Stamp | None) -> bool:
        """Tell whether the file still is what was encoded, by its contents where only its time is another."""
        if stamp is None or stamp[0] != self.size:
            return False
        try:
            return stamp[1] == self.modified or digest(path) == self.digest
        except (OSError, ValueError):  # whoever opens it says why it cannot be read
            return False


class RegionCache:
    """The regions of many images, read from disk as they are asked for."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the cache in `folder` as it stands; rows that are added later are not seen."""
        self.folder = folder = Path(folder)
        self.identity = read_identity(folder)
        rows, columns = self.identity["grid"]
        self.shape = (rows * columns, self.identity["dimensions"])  # (L, D)
        self.records = read_index(folder)
        length = count_rows(self.records)
        check_rows(folder, length, self.identity)
        self.rows: NDArray[np.float16] = (
            np.memmap(folder / "regions.f16", HALF, "r", shape=(length, *self.shape))
            if length
            else np.empty((0, *self.shape), HALF)
        )
        self.file = open_regular(folder / "regions.f16") if length and hasattr(os, "preadv") else None
        self.boxes: NDArray[np.float32] | None = None  # (rows, L, 4), of imported regions
        if length and (folder / BOXES_FILE).exists():
            check_regular(folder / BOXES_FILE)
            if (folder / BOXES_FILE).stat().st_size < length * self.shape[0] * 4 * SINGLE.itemsize:
                raise ValueError(f"{folder / BOXES_FILE} is too short for {length:,} rows; {ANEW} {folder}")
            self.boxes = np.memmap(folder / BOXES_FILE, SINGLE, "r", shape=(length, self.shape[0], 4))

    def __enter__(self) -> RegionCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; nothing can be read after this."""
        if self.file is not None:
            self.file.close()

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, file_name: str) -> bool:
        return file_name in self.records

    def find(self, path: Path) -> str | None:
        """Return the name of an image here whose file it is, by the end of its path and its contents; None for none."""
        parts = path.absolute().parts
        for start in range(1, len(parts)):
            record = self.records.get("/".join(parts[start:]))
            if record is not None and record.is_of(path, read_stamp(path)):
                return record.file_name
        return None

    def regions(self, file_names: Sequence[str]) -> NDArray[np.float16]:
        """Return the regions (B, L, D) of the named images."""
        missing = [name for name in file_names if name not in self.records]
        if missing:
            others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise ValueError(f"{self.folder} has no regions of {missing[0]}{others}")
        found = np.empty((len(file_names), *self.shape), HALF)
        size = found[:1].nbytes
        for place, name in zip(found, file_names, strict=True):
            row = self.records[name].row
            # Not through the map where it can be helped: pages that were once touched count as this process's memory.
            if self.file is None:
                place[:] = self.rows[row]
            elif os.preadv(self.file.fileno(), [place], row * size) != size:
                raise ValueError(f"{self.folder} ends before the regions of {name}; it was changed while in use")
        if not is_finite(found):
            wrong = next(name for name, place in zip(file_names, found, strict=True) if not is_finite(place))
            raise ValueError(f"the regions of {wrong} in {self.folder} are not finite numbers; {ANEW} it")
        return found

    def mask(self, file_names: Sequence[str]) -> NDArray[np.bool_] | None:
        """Return where the named images have regions, (B, L); None where every image has all.

        Of the lower part of an encoder, L are the regions that the whole encoder makes of its own.
        """
        cells = self.identity["preprocessing"].get("cells")
        grid = (cells, cells) if cells is not None else self.identity["grid"]
        return grid_mask([self.records[name].filled for name in file_names], grid)

    def geometry(self, file_name: str, geometry: Geometry) -> Geometry:
        """Return where the regions of an image lie: its own boxes where they were imported, else as `geometry` says."""
        if self.boxes is None:
            return geometry
        record = self.records[file_name]
        count = record.filled[1] if record.filled is not None else self.shape[0]
        boxes = self.boxes[record.row, :count].astype(float).tolist()
        return replace(geometry, boxes=tuple((left, top, right, bottom) for left, top, right, bottom in boxes))


def grid_mask(filled: Sequence[Sequence[int] | None], grid: Sequence[int]) -> NDArray[np.bool_] | None:
    """Return where B images that fill so many rows and columns of a grid have regions, (B, L), row by row.

    None where no image can miss any, as those do that all have None.
    """
    if all(each is None for each in filled):
        return None
    mask = np.zeros((len(filled), *grid), np.bool_)  # (B, rows, columns)
    for place, each in zip(mask, filled, strict=True):
        rows, columns = each if each is not None else grid
        place[:rows, :columns] = True
    return mask.reshape(len(filled), -1)


def is_finite(halves: NDArray[np.float16]) -> bool:
    """Tell whether all numbers of an array in half precision are finite."""
    return not bool((halves.view(np.uint16) & HALF_EXPONENT == HALF_EXPONENT).any())


def cache_folder(root: Path, identity: dict[str, Any]) -> Path:
    """Return the folder below `root` for regions of this identity: readable parts, then a hash of all of them."""
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    preprocessing = identity["preprocessing"]
    parts = [
        re.sub("[/:]", "_", identity["encoder"]),
        identity["layer"],
        f"{preprocessing['size']}{preprocessing['fit']}",
    ]
    if preprocessing["fit"] == BOXES:
        parts[1:] = [f"{identity['grid'][1]}boxes"]
    return root / "-".join([*parts, *(["flipped"] if preprocessing["flip"] else []), key])


def cache_identity(encoder: Encoder, *, flip: bool = False) -> dict[str, Any]:
    """Return all that decides the contents of a cache of `encoder`'s regions."""
    identity = encoder.identity()
    identity["preprocessing"]["flip"] = flip
    return {"format": FORMAT_VERSION, **identity}


def read_identity(folder: Path) -> dict[str, Any]:
    """Return what the cache in `folder` is of; raise ValueError when there is none or it cannot be read."""
    path = folder / "cache.json"
    try:
        identity = read_json_object(path, most=LARGEST)
    except FileNotFoundError:
        raise ValueError(f"{folder} is no region cache: it has no cache.json") from None
    except ValueError as error:
        raise ValueError(f"{error}; {ANEW} {folder}") from None
    if identity.get("format") != FORMAT_VERSION:
        raise ValueError(f"{path} has format {shown(identity.get('format'))}; this version reads {FORMAT_VERSION}")
    match identity:
        case {"grid": [int(rows), int(columns)], "dimensions": int(width), "preprocessing": dict()} if (
            {type(rows), type(columns), type(width)} == {int}  # true would pass for 1
            and min(rows, columns, width) >= 1
            and max(rows, columns) <= MOST_PIXELS
            and width <= WIDEST
        ):
            return identity
    raise ValueError(f"{path} is damaged: it has no grid, dimensions or preprocessing; {ANEW} {folder}")


def check_rows(folder: Path, length: int, identity: dict[str, Any]) -> None:
    """Raise ValueError unless the file of regions has as many rows as the index knows of."""
    path = folder / "regions.f16"
    check_regular(path)
    size = path.stat().st_size if path.exists() else 0
    if length * row_bytes(identity) > size:
        raise ValueError(f"{folder} is damaged: its index names {length:,} rows, and {path} is too short; {ANEW} it")


def row_bytes(identity: dict[str, Any]) -> int:
    """Return the bytes that the regions of an image have in a cache of this identity."""
    rows, columns = identity["grid"]
    return int(rows * columns * identity["dimensions"] * HALF.itemsize)


def read_index(folder: Path) -> dict[str, Record]:
    """Return the records by file name, the newest of each; half a line at the end is left out."""
    path = folder / "index.jsonl"
    records: dict[str, Record] = {}
    if not path.exists():
        return records
    for number, line in read_lines(path, longest=LONGEST):
        if not line.endswith(b"\n"):
            break
        try:
            record = Record(**json.loads(line))
            record.check()
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}:{number} is damaged ({error}); {ANEW} {folder}") from None
        records[record.file_name] = record
    return records


def count_rows(records: dict[str, Record]) -> int:
    """Return how many rows the index knows of, those of images that were encoded again among them."""
    return 1 + max((record.row for record in records.values()), default=-1)


def read_stamp(path: Path) -> Stamp | None:
    """Return the stamp of a file, None when there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
