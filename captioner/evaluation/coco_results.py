"""COCO results: a JSON list of {"image_id": ..., "caption": ...}, read with care, matched to images, and written."""

from __future__ import annotations

import codecs
import csv
import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.captioning.records import to_line
from captioner.datasets.annotations import is_text, read_json, shown
from captioner.datasets.dataset import CaptionedImage
from captioner.files import replacing, write_whole

LISTED = 5  # ids that a message names
RESULTS, IMAGES, IMAGES_CSV = "captions.json", "images.jsonl", "images.csv"

ImageKey = int | str


def read_results(path: Path, images: Sequence[CaptionedImage], others: Iterable[CaptionedImage] = ()) -> dict[str, str]:
    """Return the caption of each of `images`, by its file name, from a file of COCO results.

    An image is named by its id, a number or its digits, or by its file name with or without folders, under `image_id`
    or `file_name`, which comes first where there are both. Captions of `others` are put up with and left out.
    Raises ValueError, in one line that lists some, where images are missing, repeated or unknown, or entries malformed.
    """
    entries = _read_entries(path)
    wrong = [problem for place, entry in enumerate(entries) if (problem := _problem(place, entry))]
    if wrong:
        raise ValueError(
            f"{path}: entries that cannot be used: {len(wrong):,} of {len(entries):,} ({_some(wrong, '; ')})"
        )
    index = _Index([*images, *others])
    found = [index.find(entry) for entry in entries]
    unknown = [_name(entry) for entry, name in zip(entries, found, strict=True) if name is None]
    repeated = [name for name, count in Counter(name for name in found if name is not None).items() if count > 1]
    captions = {
        name: entry["caption"] for name, entry in zip(found, entries, strict=True) if name is not None
    }  # by file name
    missing = [image for image in images if image.file_name not in captions]
    problems = []
    if missing:
        ids = _some([str(image.image_id) for image in missing])
        problems.append(f"images without a caption: {len(missing):,} of {len(images):,} ({ids})")
    if repeated:
        ids = _some([str(index.ids[name]) for name in repeated])
        problems.append(f"images with several captions: {len(repeated):,} ({ids})")
    if unknown:
        problems.append(f"captions of images that are not in the split: {len(unknown):,} ({_some(unknown)})")
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    return {image.file_name: captions[image.file_name] for image in images}


def _read_entries(path: Path) -> list[Any]:
    content = read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}, expected a list of results")
    if not content:
        raise ValueError(f"{path} holds an empty list, expected a caption for each image")
    return content


def _problem(place: int, entry: object) -> str | None:
    """Return what is wrong with an entry, None where it is right."""
    if not isinstance(entry, dict):
        return f"entry {place} is {shown(entry)}, not an object"
    names = [entry[key] for key in ("image_id", "file_name") if key in entry]
    if not names:
        return f"entry {place} has no image_id"
    for name in names:
        if type(name) not in (int, str) or (isinstance(name, str) and not is_text(name)):
            return f"entry {place} names the image {shown(name)}, expected a number or a text"
    if "caption" not in entry:
        return f"entry {place} has no caption"
    if not is_text(entry["caption"]):
        return f"entry {place} has the caption {shown(entry['caption'])}, which is no text"
    return None


def _name(entry: dict[str, Any]) -> str:
    return shown(entry.get("image_id", entry.get("file_name")))


def _some(items: Sequence[str], between: str = ", ") -> str:
    more = len(items) - LISTED
    return between.join(items[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


class _Index:
    """Finds the file name of the image that an entry is of."""

    def __init__(self, images: Sequence[CaptionedImage]) -> None:
        self.ids = {image.file_name: image.image_id for image in images}
        self.by_id = {_plain(image.image_id): image.file_name for image in images}
        bases = Counter(posixpath.basename(image.file_name) for image in images)
        self.by_base = {
            base: image.file_name for image in images if bases[base := posixpath.basename(image.file_name)] == 1
        }

    def find(self, entry: Mapping[str, Any]) -> str | None:
        """Return the file name, None where there is no such image."""
        # The name of a file comes first: an id beside it may be its place in somebody's list.
        for key in ("file_name", "image_id"):
            if key in entry and (found := self._by_name(entry[key])) is not None:
                return found
        return None

    def _by_name(self, name: ImageKey) -> str | None:
        if name in self.ids:
            return str(name)
        return self.by_id.get(_plain(name)) or self.by_base.get(posixpath.basename(str(name)))


def _plain(key: ImageKey) -> ImageKey:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 18 else key


def write_results(path: Path, images: Sequence[CaptionedImage], texts: Sequence[str]) -> None:
    """Write one caption per image as COCO results, which `read_results` and COCO's own tools read."""
    lines = [
        json.dumps({"image_id": image.image_id, "caption": text}) for image, text in zip(images, texts, strict=True)
    ]
    write_whole(path, "[\n" + ",\n".join(lines) + "\n]\n")


def write_image_scores(
    folder: Path,
    images: Sequence[CaptionedImage],
    texts: Sequence[str],
    scores: Mapping[str, NDArray[np.float64]],
) -> None:
    """Write each image's caption, references and scores (I,): images.jsonl, and without references images.csv."""
    rows = [
        (image, text, {name: round(float(values[place]), 4) for name, values in scores.items()})
        for place, (image, text) in enumerate(zip(images, texts, strict=True))
    ]
    with replacing(folder / IMAGES) as file:
        for image, text, image_scores in rows:
            names = {"image_id": image.image_id, "file_name": image.file_name}
            file.write(to_line({**names, "caption": text, "references": list(image.captions), "scores": image_scores}))
    with replacing(folder / IMAGES_CSV) as file:
        table = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        table.writerow(["image_id", "file_name", "caption", *scores])
        for image, text, image_scores in rows:
            table.writerow([image.image_id, image.file_name, text, *image_scores.values()])
