"""The folder that a collection's captions go to, written by one process or several at a time.

captions.jsonl        the record: one line per image, added as they come
errors.jsonl          the images that could not be captioned, and why
captions.csv, captions-coco.json, txt/, overlays/, gallery.html    derived, on request
written.jsonl         the hashes of files that were written here and beside the images, which may be replaced
parts/                what several processes have found, until the first of them puts it together
captions.lock         held by the processes that write here
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from captioner.captioning.records import (
    CAPTIONS,
    ERRORS,
    Origin,
    Record,
    RecordFile,
    gather_records,
    read_lines,
    record_name,
    refuse_link,
)
from captioner.files import CAN_LOCK, check_regular, remove_unfinished, try_lock
from captioner.images.sources import Source, is_in_share, name_key, real_path, stamp_key

LOCK, PARTS = "captions.lock", "parts"
POLL_SECONDS = 0.2


class KnownImages:
    """The images of a record: what tells whether each is still the same, and where the line of each file is.

    `stamps` are b"" where a record does not tell, as those of earlier versions do not, and None for records that are to
    be replaced. `spellings` are the offsets of lines by where their files really lie.
    """

    def __init__(self, record: Path) -> None:
        self.record = record
        self.stamps: dict[bytes, bytes | None] = {}
        self.spellings: dict[bytes, int] = {}

    def spelt_as_before(self, source: Source) -> Source:
        """Return an image under the name that it has in the record, where it has one there, however it is spelt now."""
        is_path = source.name.startswith(source.path.as_posix())  # and not what a data set calls it
        if not is_path or source.key in self.stamps or (offset := self.spellings.get(source.identity)) is None:
            return source
        with self.record.open("rb") as file:
            file.seek(offset)
            return replace(source, name=record_name(json.loads(file.readline())))

    def stays(self, source: Source) -> bool:
        """Tell whether an image has a record that stays: it is still the same image."""
        stamp = self.stamps.get(source.key)
        return stamp is not None and (not stamp or source.is_as(stamp))


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
        check_regular(path / LOCK)  # a pipe would block
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

    def read_known(self, origin: Origin, existing: str) -> KnownImages:
        """Return the images that have a record, and whether it stays; those of this process's share are looked at.

        Raises ValueError where records must not be there, or must stay but are of another origin.
        """
        known = KnownImages(self.path / CAPTIONS)
        foreign: dict[bytes, str] = {}
        for line in read_lines(self.path / CAPTIONS):
            if existing == "error":
                raise ValueError(
                    f"{self.path / CAPTIONS} has captions already; "
                    "--existing skip keeps them, --existing overwrite replaces them"
                )
            known.spellings[name_key(real_path(line.name))] = line.offset
            key = name_key(line.name)
            if is_in_share(key, self.rank, self.count):
                self.repeated |= key in known.stamps
                known.stamps[key] = (stamp_key(line.record.get("file")) or b"") if existing == "skip" else None
                foreign.pop(key, None)
                if existing == "skip" and (difference := origin.difference(line.record)):
                    foreign[key] = difference
        if foreign:
            raise ValueError(
                f"{self.path / CAPTIONS} has captions {next(iter(foreign.values()))}; "
                "choose another folder, or replace them with --existing overwrite"
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

    def put_together(self, failed: Collection[bytes] = (), *, anew: bool = False, gone: Collection[bytes] = ()) -> None:
        """Join all parts to the record, the last line of each image, without the lines of those that have `failed`.

        Without parts the record is left as it is, unless it must be written `anew`. An image with a caption has no line
        among the errors, and one that is `gone` has none at all. No process may be adding meanwhile.
        """
        captions, errors = self.path / CAPTIONS, self.path / ERRORS
        parts = {name: sorted((self.path / PARTS).glob(f"{Path(name).stem}-*.jsonl")) for name in (CAPTIONS, ERRORS)}
        if parts[CAPTIONS] or anew or gone:
            left_out = {*failed, *gone}
            gather_records(captions, [captions, *parts[CAPTIONS]], by_name=bool(parts[CAPTIONS]), leave_out=left_out)
        wrong = {name_key(line.name) for part in (errors, *parts[ERRORS]) for line in read_lines(part)}
        if wrong:
            right = {key for line in read_lines(captions) if (key := name_key(line.name)) in wrong} | (wrong & {*gone})
            gather_records(errors, [errors, *parts[ERRORS]], by_name=bool(parts[ERRORS]), leave_out=right)
            if right == wrong:
                errors.unlink()
        for part in (*parts[CAPTIONS], *parts[ERRORS]):
            part.unlink()
        with suppress(OSError):
            (self.path / PARTS).rmdir()
