"""Captions and failures as lines of JSON, one per image, added as they come, and captions read back from them.

A file of records may be cut off at any moment: a line is there when its newline is, and what follows the last newline
is cut off before more is added. Where an image has several lines, the last one counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner import files
from captioner.captioning.caption import Caption
from captioner.datasets.annotations import is_text
from captioner.files import check_regular, naming_the_disk, open_regular, printable, replacing
from captioner.images.sources import name_key
from captioner.model.bundled import bundled_models, find_model

Record = dict[str, Any]
CAPTIONS, ERRORS = "captions.jsonl", "errors.jsonl"
SYNC_SECONDS = 1.0
LONGEST = 1 << 26  # bytes of a line: twenty captions of sixty words with the attention of DINOv2 have a fifth of it
_RETIRED = {"unknown": False}  # settings of earlier versions that nobody could set, by their only values
# JSON may hold these as they are, but many programs take them for ends of lines.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


@dataclass(frozen=True)
class Origin:
    """What records are made by: the model's digest, the settings of its search in plain values, and what is kept.

    The model may have a `name`, for people; `wording` is what is made of its words. Records must hold attention where
    it is `needed`, and may where it is not.
    """

    model: str
    search: dict[str, Any]
    attention: bool = False
    heads: bool = False
    name: str | None = None
    wording: dict[str, Any] = field(default_factory=dict)
    needed: bool = True

    def difference(self, record: Record) -> str | None:
        """Return in what a record is another than this origin makes, None where it is not."""
        if record.get("model") != self.model:
            return f"by {_model_name(record)}" + (f", not {self.name}" if self.name else "")
        wording = record.get("wording") or {}
        for name in {**wording, **self.wording}:
            if wording.get(name) != self.wording.get(name):
                return _difference(name, wording.get(name), self.wording.get(name))
        search = record.get("search")
        search = {**search} if isinstance(search, dict) else {}
        for name, value in _RETIRED.items():
            if name not in self.search and search.get(name) == value:
                del search[name]
        for name in {**search, **self.search}:
            if search.get(name) != self.search.get(name):
                return _difference(name, search.get(name), self.search.get(name))
        for name, wanted in (("attention", self.attention and self.needed), ("heads", self.heads)):
            if wanted and name not in record:
                return f"without {name}"
        return None


def _difference(name: str, recorded: object, wanted: object) -> str:
    """Return in words how a setting differs; one that a side does not have, or that is just on, has no value."""

    def shown(value: object) -> str:
        return repr(printable(value)) if isinstance(value, str) and name != "method" else str(value)

    if recorded is None:
        return f"without {name}, not with it"
    setting = name if recorded is True else f"{name} {shown(recorded)}"
    return f"with {setting}, not {'without' if wanted is None else shown(wanted)}"


def _model_name(record: Record) -> str:
    """Return what a record's model is called; records of earlier versions hold its digest alone."""
    if isinstance(name := record.get("model_name"), str):
        return printable(name)
    from captioner.model.checkpoint import load_checkpoint  # which takes torch, and a moment

    digests = ((name, load_checkpoint(find_model(name)).digest) for name in bundled_models())
    return next((name for name, digest in digests if digest == record.get("model")), "another model")


def caption_record(
    name: str, captions: Sequence[Caption], origin: Origin, file: Mapping[str, Any] | None = None
) -> Record:
    """Return the record of an image's captions, the best first; the others are its `alternatives`.

    `file` is what tells whether the image is still the same, see `captioner.images.sources.Stamp`.
    """
    best, *others = (caption.to_dict(attention=origin.attention) for caption in captions)
    geometry = {"geometry": best.pop("geometry")} if origin.attention else {}
    record = {**_name_fields(name), **best}
    if others:  # of the same image, and so of the same geometry
        kept = [key for key in best if key != "confidence"]  # which the first alone has
        record["alternatives"] = [{key: other[key] for key in kept} for other in others]
    made = {
        "model": origin.model,
        "model_name": origin.name,
        "search": origin.search,
        "wording": origin.wording,
        "file": dict(file or {}),
    }
    return {**record, **geometry, **{key: value for key, value in made.items() if value}}


def error_record(name: str, reason: str) -> Record:
    """Return the record of an image that has no caption."""
    return {**_name_fields(name), "error": reason}


def _name_fields(name: str) -> Record:
    try:
        name.encode()
    except UnicodeEncodeError:  # no JSON reader but Python's takes surrogates
        plain = os.fsencode(name)
        return {"file_name": plain.decode("utf-8", "backslashreplace"), "file_name_bytes": plain.hex()}
    return {"file_name": name}


def record_name(record: Record) -> str:
    """Return the name of the image that a record is of, undecodable bytes as surrogates."""
    if "file_name_bytes" in record:
        return os.fsdecode(bytes.fromhex(record["file_name_bytes"]))
    name: str = record["file_name"]
    return name


def to_line(record: Record) -> bytes:
    """Return a record as one line of UTF-8."""
    return json.dumps(record, ensure_ascii=False).translate(_LINE_ENDS).encode() + b"\n"


@dataclass(frozen=True)
class Line:
    """One line of a file of records, and where it lies."""

    name: str
    record: Record
    offset: int
    length: int


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file of records, none where there is no file; half a line at the end is left out."""
    if not path.exists():
        return
    offset = 0
    for number, line in files.read_lines(path, longest=LONGEST):
        if not line.endswith(b"\n"):
            return
        try:
            record = files.plain_json(line)
            name = record_name(record)
            os.fsencode(name)
            _check(record)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{path}:{number} is damaged: not a record; remove that line to continue") from None
        yield Line(name, record, offset, len(line))
        offset += len(line)


def _check(record: Record) -> None:
    """Raise ValueError where a record has not what its readers rely on; what figures need is looked at for these."""
    others = record.get("alternatives", [])
    is_sound = (
        isinstance(record["file_name"], str)
        and is_text(record["error"] if "error" in record else record["text"])
        and is_text(record.get("model_text", ""))
        and isinstance(others, list)
        and all(isinstance(other, dict) and is_text(other["text"]) for other in others)
        and all(isinstance(record.get(name) or {}, dict) for name in ("search", "wording", "file"))
        and all(isinstance(record.get(name) or "", str) for name in ("model", "model_name"))
    )
    if not is_sound:
        raise ValueError("its fields are not those of a record")


class RecordFile:
    """A file that records are added to."""

    def __init__(self, path: Path) -> None:
        refuse_link(path)
        check_regular(path)
        self.path = path
        self.file = path.open("ab")
        self.file.truncate(_whole_length(path))
        self.synced = time.monotonic()

    def append(self, record: Record) -> None:
        """Add a record; it is there whatever happens to the process, and after a power cut once a second is over."""
        with naming_the_disk(self.path):
            self.file.write(to_line(record))
            self.file.flush()
            now = time.monotonic()
            if now - self.synced > SYNC_SECONDS:
                os.fsync(self.file.fileno())
                self.synced = now

    def close(self) -> None:
        """Add no more, and return when everything is on disk."""
        with naming_the_disk(self.path), self.file:  # what a full disk refused is written once more
            os.fsync(self.file.fileno())


def refuse_link(path: Path) -> None:
    """Raise ValueError where a file to be written is a symlink, which may lead anywhere."""
    if path.is_symlink():
        raise ValueError(f"{path} is a symlink, which may lead out of its folder; remove it")


def _whole_length(path: Path) -> int:
    """Return how many bytes of a file are whole lines."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def gather_records(
    target: Path, parts: Sequence[Path], *, by_name: bool = False, leave_out: Collection[bytes] = ()
) -> None:
    """Put the records of some files, `target` among them or not, into `target`: the last of each image.

    They stand in the order in which their images first came, or `by_name` in that in which a folder is read.
    `leave_out` are the keys of images whose records go.
    """
    places: dict[bytes, tuple[str, int, int, int]] = {}  # of each image: what orders it, part, offset, length
    for number, part in enumerate(parts):
        for line in read_lines(part):
            key = name_key(line.name)
            if key not in leave_out:
                # A folder's files and folders are read by their names, so that a slash comes before any letter.
                order = line.name.replace("/", "\0") if by_name else ""
                places[key] = (order, number, line.offset, line.length)
    ordered = sorted(places.values()) if by_name else list(places.values())
    with replacing(target) as output, ExitStack() as files:
        opened = {number: files.enter_context(parts[number].open("rb")) for number in {place[1] for place in ordered}}
        for _, number, offset, length in ordered:
            opened[number].seek(offset)
            output.write(opened[number].read(length))
