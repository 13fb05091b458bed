"""A data set of captions in part files, each written whole, in a folder or under a URL of an object store.

dataset.json          what the captions are made by: a data set has one model and one search
part-*.parquet        rows of captions, or of images that have none with the reason; or part-*.jsonl
dataset.lock          held by the process that writes, in a folder
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from captioner.captioning.records import LONGEST, Origin, Record, record_name, to_line
from captioner.files import check_regular, one_line, parse_json, plain_json, printable, try_lock, write_whole
from captioner.images.key_set import KeySet
from captioner.images.remote import Storage, open_storage
from captioner.images.sources import name_key

FORMATS = ("parquet", "jsonl")
UNIT = 1000  # images of a part: some ten seconds of a worker, which is what is lost when it dies
ABOUT, LOCK, PART = "dataset.json", "dataset.lock", "part-"
_LARGEST_ABOUT = 1_000_000  # bytes of what is said of a data set
_NAMES = ("file_name", "file_name_bytes", "shard")


class Parts:
    """The part files of a data set, which one process writes and any number may read."""

    def __init__(self, out: str, origin: Origin, *, format: str = "parquet", storage: Storage | None = None) -> None:
        """Make the data set, or hold the one that is there; raise ValueError where it is of another origin."""
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; choose from {', '.join(FORMATS)}")
        if format == "parquet":
            _import_parquet(out)
        self.out, self.format, self.origin = out, format, origin
        self.system, self.path = open_storage(out, storage or {})
        protocols = self.system.protocol if isinstance(self.system.protocol, tuple) else (self.system.protocol,)
        self.folder = Path(self.path) if "file" in protocols else None
        self.lock: IO[bytes] | None = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_regular(self.folder / LOCK)  # a pipe would block
            self.lock = (self.folder / LOCK).open("ab")
        try:
            if self.lock is not None and not try_lock(self.lock):
                raise ValueError(f"{printable(out)} is being written by another process; wait for it to end")
            self._check_origin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write."""
        if self.lock is not None:
            self.lock.close()

    def _check_origin(self) -> None:
        if not self.system.exists(f"{self.path}/{ABOUT}"):
            if any(True for _ in self._paths()):
                raise ValueError(f"{printable(self.out)} has parts but no {ABOUT}; choose another folder")
            about = {"format": self.format, **_about(self.origin)}
            self._write(ABOUT, json.dumps(about, indent=2).encode() + b"\n")
            return
        if self.folder is not None:
            check_regular(self.folder / ABOUT)
        text = self.system.cat_file(f"{self.path}/{ABOUT}", end=_LARGEST_ABOUT)
        about = parse_json(text, f"{printable(self.out)}/{ABOUT}")
        if not isinstance(about, dict) or not all(
            isinstance(about.get(name) or {}, dict) for name in ("search", "wording")
        ):
            raise ValueError(f"{printable(self.out)}/{ABOUT} is damaged; choose another folder")
        difference = self.origin.difference(about)
        if difference is None and about.get("format") != self.format:
            difference = f"in the format {about.get('format')}, not {self.format}"
        if difference is not None:
            raise ValueError(f"{printable(self.out)} has captions {difference}; choose another folder")

    def _paths(self) -> Iterator[str]:
        for path in sorted(self.system.ls(self.path, detail=False)) if self.system.exists(self.path) else ():
            name = path.rpartition("/")[2]
            if name.startswith(PART) and name.endswith(f".{self.format}"):
                yield path

    def read_done(self) -> KeySet:
        """Return the keys of the images that have a row, and of the shards that have some."""
        done = KeySet()
        for path in self._paths():
            try:
                for row in self._read_names(path):
                    done.add(name_key(row["shard"] if row.get("shard") else record_name(row)))
            except Exception as error:  # each store and format has its own
                raise ValueError(
                    f"{printable(path)} is damaged: {one_line(error)}; remove it, and its images are captioned again"
                ) from None
        return done

    def _read_names(self, path: str) -> Iterator[Record]:
        if self.folder is not None:
            check_regular(path)
        with self.system.open(path, "rb") as file:
            if self.format == "jsonl":
                while line := file.readline(LONGEST + 1):
                    if len(line) > LONGEST:
                        raise ValueError(f"a line has more than {LONGEST:,} bytes")
                    yield plain_json(line)
                return
            parquet = _import_parquet(self.out)
            for batch in parquet.ParquetFile(file).iter_batches(columns=list(_NAMES)):
                yield from ({key: value for key, value in row.items() if value} for row in batch.to_pylist())

    def write(self, key: str, rows: Sequence[Record]) -> None:
        """Write a part, which is there whole or not at all."""
        contents = _to_parquet(rows, self.origin) if self.format == "parquet" else b"".join(map(to_line, rows))
        self._write(f"{PART}{key}.{self.format}", contents)

    def _write(self, name: str, contents: bytes) -> None:
        if self.folder is not None:
            write_whole(self.folder / name, contents)
        else:
            self.system.pipe_file(f"{self.path}/{name}", contents)  # which stores do whole or not at all


def _about(origin: Origin) -> dict[str, Any]:
    return {"model": origin.model, "model_name": origin.name, "search": origin.search}


def _import_parquet(out: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            f"{printable(out)} as Parquet needs pyarrow, which is not installed: pip install 'captioner[parquet]'"
        ) from None
    return pyarrow.parquet


def _to_parquet(rows: Sequence[Record], origin: Origin) -> bytes:
    import pyarrow as arrow

    caption = [
        ("text", arrow.string()),
        ("words", arrow.list_(arrow.string())),
        ("probabilities", arrow.list_(arrow.float32())),
        ("log_prob", arrow.float32()),
    ]
    names = [(name, arrow.string()) for name in _NAMES]
    others = [
        ("confidence", arrow.float32()),
        ("alternatives", arrow.list_(arrow.struct(caption))),
        ("error", arrow.string()),
    ]
    schema = arrow.schema([*names, *caption, *others], metadata={"captioner": json.dumps(_about(origin))})
    buffer = io.BytesIO()
    table = arrow.Table.from_pylist(list(rows), schema=schema)
    _import_parquet("rows").write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
