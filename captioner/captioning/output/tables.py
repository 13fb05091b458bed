"""Tables that are derived from a record of captions, and the names of files that are made for each image.

Files named after images lie in a tree that mirrors their names. A name is percent-encoded where it would leave the
tree or share a file with another: a slash at its start or after a slash, the dots of `..`, control characters, bytes
that are no UTF-8, the percent sign. What decodes URLs gives the name back.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from captioner.captioning.recorded_captions import recorded_confidence
from captioner.captioning.records import CAPTIONS, Record, read_lines
from captioner.model.confidence import is_low

FORMATS = ("jsonl", "txt", "csv", "coco", "xmp", "exiftool")
SIDECARS = ("txt", "xmp")  # those of which each image has a file
NAMINGS = ("full", "stem")  # cat.jpg.txt, cat.txt
COLUMNS = ("file_name", "text", "log_prob")
CONFIDENCE_COLUMNS = ("confidence", "low_confidence")  # where the model can tell

_MAX_PART = 220  # bytes of a file's or folder's name; 255 are allowed, but a file being written has a longer one
_MAX_PATH = 1000  # bytes of a path below the tree's top
_RESERVED = '<>:"|?*\\' if os.name == "nt" else ""


def tree_path(name: str, suffix: str) -> str:
    """Return the path, below the top of a tree, of the file for an image; no two names share one.

    `a/b.jpg` with the suffix ".txt" is `a/b.jpg.txt`. No part of it is "..", and what would be too long is cut short
    and told apart by a hash.
    """
    parts: list[str] = []
    slashes = ""
    *folders, last = name.split("/")
    for folder in folders:
        if folder:
            # A file `a.txt` must not meet a folder of that name, so that no folder has the suffix.
            escaped = _escape(folder)
            if escaped.endswith(suffix):
                escaped = f"{escaped[: -len(suffix)]}%2E{suffix[1:]}"
            parts.append(_shorten(slashes + escaped, ""))
            slashes = ""
        else:
            slashes += "%2F"
    parts.append(_shorten(slashes + _escape(last), suffix))
    path = "/".join(parts)
    return path if len(path.encode()) <= _MAX_PATH else f"%/{_hash(name)}{suffix}"


def _escape(part: str) -> str:
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return "".join(
        "".join(f"%{byte:02X}" for byte in os.fsencode(character))
        if character < " " or character in f"%\x7f{_RESERVED}" or "\ud800" <= character <= "\udfff"
        else character
        for character in part
    )


def _shorten(part: str, suffix: str) -> str:
    if len(part.encode()) + len(suffix) <= _MAX_PART:
        return part + suffix
    return part.encode()[: _MAX_PART - 40].decode("utf-8", "ignore") + "%" + _hash(part) + suffix


def _hash(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=12).hexdigest()


def make_parent(top: Path, path: Path) -> None:
    """Make the folder of a file below `top`; raise ValueError where a symlink on the way leads out of it."""
    existing = path.parent
    while not existing.exists():
        existing = existing.parent
    if not existing.resolve().is_relative_to(top.resolve()):
        raise ValueError(f"{existing} leads out of {top}; nothing is written there")
    path.parent.mkdir(parents=True, exist_ok=True)


def write_csv(out: Path, file: IO[bytes]) -> None:
    """Write the table of the captions recorded in `out`, so that spreadsheets know its letters: UTF-8 with a mark.

    Where a record has a confidence, all rows have columns for it, and those of low confidence say "yes" in the last.
    """
    file.write(codecs.BOM_UTF8)
    rows: Iterable[list[object]] = ([record.get(column) for column in COLUMNS] for record in _records(out))
    columns: tuple[str, ...] = COLUMNS
    if any("confidence" in record for record in _records(out)):
        columns = (*COLUMNS, *CONFIDENCE_COLUMNS)
        sure = map(recorded_confidence, _records(out))
        rows = ([*row, each, "yes" if is_low(each) else None] for row, each in zip(rows, sure, strict=True))
    _write_table(file, columns, rows)


def write_exiftool(out: Path, file: IO[bytes]) -> None:
    """Write a table that `exiftool -csv=` takes captions from into the images."""
    rows = ([record["file_name"], record["text"], record["text"]] for record in _records(out))
    _write_table(file, ("SourceFile", "XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility"), rows)


def _write_table(file: IO[bytes], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = codecs.getwriter("utf-8")(file)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)


def write_coco(out: Path, file: IO[bytes]) -> None:
    """Write the captions recorded in `out` as COCO results.

    An image's id is the number that its name ends in, as COCO's files are named, where all have one and no two the
    same; else its place in the record, from 1.
    """
    ids = [_number(record["file_name"]) for record in _records(out)]
    by_name = None not in ids and len(set(ids)) == len(ids)
    for place, (number, record) in enumerate(zip(ids, _records(out), strict=True), start=1):
        result = {"image_id": number if by_name else place, "caption": record["text"]}
        line = json.dumps({**result, "file_name": record["file_name"]})
        file.write(f"{',' if place > 1 else '['}\n{line}".encode())
    file.write(b"\n]\n" if ids else b"[]\n")


def _number(file_name: str) -> int | None:
    digits = re.search(r"[0-9]{1,18}$", os.path.splitext(file_name)[0])
    return int(digits[0]) if digits else None


def _records(out: Path) -> Iterator[Record]:
    return (line.record for line in read_lines(out / CAPTIONS))


# The tables that are made of a record, and their files.
TABLES: Mapping[str, tuple[str, Callable[[Path, IO[bytes]], None]]] = {
    "csv": ("captions.csv", write_csv),
    "coco": ("captions-coco.json", write_coco),
    "exiftool": ("captions-exiftool.csv", write_exiftool),
}
