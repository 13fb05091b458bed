"""Readers of captions that users bring: metadata files with a line per image, and text files beside the images."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.datasets.annotations import ListedImage, Reading, is_text, path_inside, read_lines, shown
from captioner.datasets.columns import (
    EXPECTED,
    NAMES,
    SPLITS,
    TEXTS,
    captions_of,
    first_of,
    lower_keys,
    split_by_folder,
    split_name,
)
from captioner.datasets.parquet import parquet_rows
from captioner.files import JSONError, parse_json
from captioner.images.finding import find_images

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
CAPTIONS_CSV = "captions.csv"  # what people call it who never heard of metadata.csv
Record = dict[str, Any]


def metadata_files(root: Path) -> list[Path]:
    """Return the metadata files of a folder, and of its folders train, validation and test."""
    folders = [root, *(path for path in sorted(root.iterdir()) if path.name.lower() in SPLITS and path.is_dir())]
    found = [folder / name for folder in folders for name in METADATA if (folder / name).is_file()]
    return found or [path for path in (root / CAPTIONS_CSV,) if path.is_file()]


def read_metadata(root: Path) -> Reading:
    """Read metadata.jsonl, .csv or .parquet, one for the folder or one for each of its splits.

    A line names an image, relative to the file, and has one caption or a list of them. Splits are those of the lines,
    on every line or on none, or else the folders train, validation and test.
    """
    files = metadata_files(root)
    folders = [path.parent for path in files]
    if len(set(folders)) < len(folders) or (root in folders and len(folders) > 1):
        names = " and ".join(path.relative_to(root).as_posix() for path in files)
        raise ValueError(f"{root} holds {names}: keep only one of them")
    reading = Reading(root.resolve().name)
    records: list[tuple[str, str, Record]] = []
    for path in files:
        folder = path.parent.relative_to(root).as_posix()
        records += [(where, folder, record) for where, record in _read_records(root, path, reading)]
    splits_expected = any(record.get("split") not in (None, "") for _, _, record in records)
    for where, folder, record in records:
        name, split = first_of(record, NAMES), split_name(record.get("split"))
        reference = path_inside(posixpath.join(folder, name)) if is_text(name) and path_inside(name) else None
        if reference is None:
            key = next((key for key in NAMES if key in record), NAMES[0])
            reading.malformed(where, f"expected a {key!r} that stays inside the folder, found {shown(name)}")
        elif splits_expected and split is None:
            found = shown(record.get("split"))
            reading.malformed(where, f"expected the name of a 'split', as there are some, found {found}")
        else:
            image = reading.image(ListedImage(reference, split, reference, where, ("",)))
            for text in captions_of(record):
                if (caption := reading.usable_caption(text, where)) is not None:
                    image.captions.append(caption)
    return reading if splits_expected else split_by_folder(reading)


def _read_records(root: Path, path: Path, reading: Reading) -> list[tuple[str, Record]]:
    """Return the lines of a file with their places; one error tells of a file none of whose lines has the keys."""
    read = {".csv": _csv_records, ".jsonl": _json_records, ".parquet": parquet_rows}[path.suffix]
    records = [(where, lower_keys(record)) for where, record in read(root, path, reading)]
    keys = dict.fromkeys(key for _, record in records for key in record)
    if records and not (keys.keys() & set(NAMES) and keys.keys() & set(TEXTS)):
        raise ValueError(f"{path} has {', '.join(map(shown, keys)) or 'nothing'}; expected {EXPECTED}")
    others = [key for key in TEXTS if key in keys][1:]
    if others:
        first = next(key for key in TEXTS if key in keys)
        reading.notes.append(f"captions are those of {first!r} in {path.name}, not of {' or '.join(map(repr, others))}")
    return records


def _json_records(root: Path, path: Path, reading: Reading) -> Iterator[tuple[str, Record]]:
    for where, line in read_lines(root, path, reading):
        try:
            record = parse_json(line, where)
        except JSONError as error:
            reading.malformed(where, error.reason)
            continue
        if isinstance(record, dict):
            yield where, record
        else:
            reading.malformed(where, f"expected an object, found {shown(record)}")


def _csv_records(root: Path, path: Path, reading: Reading) -> Iterator[tuple[str, Record]]:
    columns: list[str] = []
    delimiter = ","
    for where, line in read_lines(root, path, reading):
        if not columns:
            reading.lines -= 1
            columns, delimiter = _csv_header(path, line)
            continue
        try:
            # One line at a time, so that an unbalanced quote cannot swallow the lines after it.
            fields = next(csv.reader([line], strict=True, delimiter=delimiter))
        except csv.Error as error:
            reading.malformed(where, f"not valid CSV: {error}")
            continue
        if len(fields) != len(columns):
            reading.malformed(where, f"{len(fields)} fields, expected {len(columns)}")
        else:
            yield where, dict(zip(columns, fields, strict=True))


def _csv_header(path: Path, line: str) -> tuple[list[str], str]:
    """Return the columns that a first line names, and what separates them: a comma, a semicolon or a tab."""
    headers = {each: [name.strip() for name in line.replace('"', "").split(each)] for each in (",", ";", "\t")}
    for delimiter, columns in headers.items():
        known = {name.lower() for name in columns}
        if known & set(NAMES) and known & set(TEXTS):
            return columns, delimiter
    found = max(headers.values(), key=len)
    raise ValueError(f"{path} has the columns {', '.join(found)}; expected {EXPECTED}")


# ---------------------------------------------------------------------------------------------------- text files


def text_of(image: Path) -> Path | None:
    """Return the text file beside an image, cat.txt or cat.jpg.txt beside cat.jpg."""
    candidates = (image.with_suffix(".txt"), image.with_name(f"{image.name}.txt"))
    return next((path for path in candidates if path.is_file()), None)


def has_texts(root: Path) -> bool:
    """Tell whether some image in a folder or below it has a text file beside it."""
    return any(text_of(path) for path in find_images([root], recursive=True))


def read_texts(root: Path) -> Reading:
    """Read the text file beside each image, each line a caption; the folders train, validation and test are splits."""
    reading = Reading(root.resolve().name)
    for path in find_images([root], recursive=True):
        reference = path.relative_to(root).as_posix()
        image = reading.image(ListedImage(reference, None, reference, reference, ("",)))
        text = text_of(path)
        for where, line in read_lines(root, text, reading) if text is not None else ():
            if (caption := reading.usable_caption(line, where)) is not None:
                image.captions.append(caption)
    return split_by_folder(reading)
