"""What is derived from a record of captions: a CSV table, COCO results, and a text file for each image.

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from captioner.captioning.records import CAPTIONS, Record, read_lines, record_name, refuse_link
from captioner.files import replacing, write_whole

FORMATS = ("jsonl", "txt", "csv", "coco")
CSV, COCO, SIDECARS = "captions.csv", "captions-coco.json", "txt"
COLUMNS = ("file_name", "text", "log_prob")

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


def write_csv(out: Path) -> None:
    """Write the table of the captions recorded in `out`."""
    refuse_link(out / CSV)
    with replacing(out / CSV) as file:
        rows = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        rows.writerow(COLUMNS)
        for record in _records(out):
            rows.writerow([record.get(column) for column in COLUMNS])


def write_coco(out: Path) -> None:
    """Write the captions recorded in `out` as COCO results.

    An image's id is the number that its name ends in, as COCO's files are named, where all have one and no two the
    same; else its place in the record, from 1.
    """
    refuse_link(out / COCO)
    ids = [_number(record["file_name"]) for record in _records(out)]
    by_name = None not in ids and len(set(ids)) == len(ids)
    with replacing(out / COCO) as file:
        for place, (number, record) in enumerate(zip(ids, _records(out), strict=True), start=1):
            result = {"image_id": number if by_name else place, "caption": record["text"]}
            line = json.dumps({**result, "file_name": record["file_name"]})
            file.write(f"{',' if place > 1 else '['}\n{line}".encode())
        file.write(b"\n]\n" if ids else b"[]\n")


def _number(file_name: str) -> int | None:
    digits = re.search(r"[0-9]{1,18}$", os.path.splitext(file_name)[0])
    return int(digits[0]) if digits else None


def write_sidecars(out: Path) -> None:
    """Bring the tree of text files in `out` up to date with its record."""
    top = out / SIDECARS
    for record in _records(out):
        path = top / tree_path(record_name(record), ".txt")
        text = f"{record['text']}\n".encode()
        with suppress(OSError):
            if not path.is_symlink() and path.read_bytes() == text:
                continue
        make_parent(out, path)
        # There are as many as images, and the record makes them anew: no need to wait for the disk each time.
        write_whole(path, text, unfinished=out / "sidecar.unfinished", sync=False)


def write_beside(image: Path, text: str, *, overwrite: bool) -> None:
    """Write a caption beside its image, unless there is such a file that must not be overwritten."""
    path = image.with_name(f"{image.name}.txt")
    if overwrite or not os.path.lexists(path):
        unfinished = path.with_name(f".captioner-{os.getpid()}.unfinished")
        write_whole(path, f"{text}\n", unfinished=unfinished, sync=False)


def _records(out: Path) -> Iterator[Record]:
    return (line.record for line in read_lines(out / CAPTIONS))
