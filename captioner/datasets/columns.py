"""What the columns of users' captions may be called, and what their values mean."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from captioner.datasets.annotations import Reading, is_text

SPLIT_ALIASES = {
    "training": "train",
    **dict.fromkeys(("validation", "valid", "dev"), "val"),
    **dict.fromkeys(("testing", "eval", "evaluation"), "test"),
}
SPLITS = ("train", "val", "test", *SPLIT_ALIASES)  # as folders and files are called
# Where a line has several of a kind, the first of these counts.
NAMES = ("file_name", "image", "filename", "file", "image_path", "path")
TEXTS = ("text", "caption", "captions")
EXPECTED = f"{NAMES[0]} (or {', '.join(NAMES[1:])}), {TEXTS[0]} (or {', '.join(TEXTS[1:])}) and perhaps split"


def lower_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its keys in lower case."""
    return {str(key).strip().lower(): value for key, value in record.items()}


def first_of(record: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """Return the first value that a record has under one of the keys, None where it has none."""
    return next((record[key] for key in keys if record.get(key) is not None), None)


def captions_of(record: Mapping[str, Any]) -> list[Any]:
    """Return the captions of a record: a list of them, also one written out in a field of a CSV file, or one alone."""
    value = first_of(record, TEXTS)
    if isinstance(value, str) and value.lstrip().startswith("["):
        for read in (json.loads, ast.literal_eval):  # as JSON, and as pandas writes lists
            try:
                value = read(value)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value if isinstance(value, list) else [value]


def split_name(value: object) -> str | None:
    """Return the split that a word means, such as val for validation; None where it is no word."""
    name = value.strip().lower() if is_text(value) else ""
    return SPLIT_ALIASES.get(name, name) or None


def split_by_folder(reading: Reading) -> Reading:
    """Take the folders train, validation and test for splits, where all images lie in them and not all in one."""
    images = list(reading.images.values())
    tops = [image.reference.partition("/")[0].lower() for image in images]
    if not set(tops) <= set(SPLITS) or len(set(tops)) < 2:
        return reading
    reading.images = {}
    for image, top in zip(images, tops, strict=True):
        image.split = split_name(top)
        reading.image(image)
    return reading
