"""The folder that a collection's captions go to, written by one process or several at a time.

captions.jsonl        the record: one line per image, added as they come
errors.jsonl          the images that could not be captioned, and why
captions.csv, captions-coco.json, txt/, overlays/, gallery.html    derived, on request
parts/                what several processes have found, until the first of them puts it together
captions.lock         held by the processes that write here
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from captioner.captioning.records import (
    CAPTIONS,
    ERRORS,
    Origin,
    Record,
    RecordFile,
    gather_records,
    read_lines,
    refuse_link,
)
from captioner.files import CAN_LOCK, remove_unfinished, try_lock
from captioner.images.finding import is_in_share, name_key

LOCK, PARTS = "captions.lock", "parts"
POLL_SECONDS = 0.2


class OutputFolder:
    """The files of a run, held by process number `rank` of `count`; a process alone writes the record itself."""

    def __init__(self, path: Path, rank: int = 0, count: int = 1) -> None:
        """Make the folder, and hold it until it is closed."""
        if count > 1 and not CAN_LOCK:
            raise ValueError(f"{count} processes cannot share {path}: this system has no file locks that they need")
        self.path, self.rank, self.count = path, rank, count
        path.mkdir(parents=True, exist_ok=True)
        for name in (LOCK, CAPTIONS, ERRORS, PARTS):
            refuse_link(path / name)
        self.lock = (path / LOCK).open("ab")
        try:
            if not try_lock(self.lock, shared=count > 1):
                raise ValueError(f"{path} is being written by another process; wait for it to end")
        except BaseException:
            self.lock.close()
            raise
        self.repeated = False  # an image has several lines
        self.captions: RecordFile | None = None
        self.errors: RecordFile | None = None

    def __enter__(self) -> OutputFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_files()
        self.lock.close()

    def read_known(self, origin: Origin, existing: str) -> dict[bytes, bool]:
        """Return the keys of the images of this process's share that have a record, and whether it stays.

        Raises ValueError where records must not be there, or must stay but are of another origin.
        """
        known: dict[bytes, bool] = {}
        foreign: dict[bytes, str] = {}
        for line in read_lines(self.path / CAPTIONS):
            if existing == "error":
                raise ValueError(f"{self.path / CAPTIONS} has captions already; skip or overwrite them")
            key = name_key(line.name)
            if is_in_share(key, self.rank, self.count):
                self.repeated |= key in known
                known[key] = existing == "skip"
                foreign.pop(key, None)
                if difference := origin.difference(line.record):
                    foreign[key] = difference
        if foreign and existing == "skip":
            raise ValueError(
                f"{self.path / CAPTIONS} has captions {next(iter(foreign.values()))}; "
                "choose another folder, or overwrite them"
            )
        return known

    def _part(self, name: str, rank: int | None = None) -> Path:
        if self.count == 1:
            return self.path / name
        stem, suffix = os.path.splitext(name)
        return self.path / PARTS / f"{stem}-{self.rank if rank is None else rank}-of-{self.count}{suffix}"

    def open_files(self) -> None:
        """Open the record, or this process's part of it, to add to."""
        part = self._part(CAPTIONS)
        part.parent.mkdir(exist_ok=True)
        self.captions = RecordFile(part)
        if self.count > 1 and not try_lock(self.captions.file):
            raise ValueError(f"{part} is being written by another process; wait for it to end")

    def add_caption(self, record: Record) -> None:
        """Add the record of an image's captions."""
        assert self.captions is not None, "open_files comes first"
        self.captions.append(record)

    def add_error(self, record: Record) -> None:
        """Add the record of an image that has none."""
        if self.errors is None:
            self.errors = RecordFile(self._part(ERRORS))
        self.errors.append(record)

    def close_files(self) -> None:
        """Add no more, and let the other processes know."""
        for file in (self.captions, self.errors):
            if file is not None:
                file.close()
        self.captions = self.errors = None

    def wait_for_others(self) -> None:
        """Wait until no other process adds to its part, because it has finished or was killed."""
        for rank in range(self.count if self.count > 1 else 0):
            with self._part(CAPTIONS, rank).open("rb") as part:
                while not try_lock(part, shared=True):
                    time.sleep(POLL_SECONDS)

    def recover(self) -> None:
        """Put together what processes have left that were killed; no process may be adding meanwhile."""
        remove_unfinished(self.path)
        if (self.path / PARTS).exists():
            self.put_together()

    def put_together(self, failed: Collection[bytes] = (), *, anew: bool = False) -> None:
        """Join all parts to the record, the last line of each image, without the lines of those that have `failed`.

        Without parts the record is left as it is, unless it must be written `anew`. An image with a caption has no line
        among the errors. No process may be adding meanwhile.
        """
        captions, errors = self.path / CAPTIONS, self.path / ERRORS
        parts = {name: sorted((self.path / PARTS).glob(f"{Path(name).stem}-*.jsonl")) for name in (CAPTIONS, ERRORS)}
        if parts[CAPTIONS] or anew:
            gather_records(captions, [captions, *parts[CAPTIONS]], by_name=bool(parts[CAPTIONS]), leave_out=failed)
        wrong = {name_key(line.name) for part in (errors, *parts[ERRORS]) for line in read_lines(part)}
        if wrong:
            right = {key for line in read_lines(captions) if (key := name_key(line.name)) in wrong}
            gather_records(errors, [errors, *parts[ERRORS]], by_name=bool(parts[ERRORS]), leave_out=right)
            if right == wrong:
                errors.unlink()
        for part in (*parts[CAPTIONS], *parts[ERRORS]):
            part.unlink()
        with suppress(OSError):
            (self.path / PARTS).rmdir()
