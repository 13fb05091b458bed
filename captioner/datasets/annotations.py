"""What every reader of annotation files needs: images as they are listed, problems counted, lines and JSON checked."""

from __future__ import annotations

import codecs
import ntpath
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from captioner import files

MOST = 2_000_000_000  # bytes of an annotation file; COCO's largest has 450 million
LONGEST = 1_000_000  # bytes of a line in one
LONGEST_NAME = 100  # letters of a data set's name
MALFORMED_LINE = "malformed line"
EMPTY_CAPTION = "empty caption"
UNKNOWN_IMAGE_ID = "unknown image id"
MALFORMED_IMAGE = "malformed image record"
MISSING_IMAGE = "missing image"
NO_CAPTIONS = "image without captions"
LINE_KINDS = (MALFORMED_LINE, EMPTY_CAPTION, UNKNOWN_IMAGE_ID)
IMAGE_KINDS = (MALFORMED_IMAGE, MISSING_IMAGE, NO_CAPTIONS)


@dataclass(frozen=True, slots=True)
class Problem:
    """One unusable line or image: its kind, "file:line" or "file: annotation 123", and what is wrong with it."""

    kind: str
    where: str
    detail: str


class Problems:
    """Counts problems by kind and keeps the first few of each kind."""

    kept = 5

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[Problem]] = {}

    def add(self, kind: str, where: str, detail: str) -> None:
        """Count one problem."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        first = self._first.setdefault(kind, [])
        if len(first) < self.kept:
            first.append(Problem(kind, where, detail))

    def count(self, *kinds: str) -> int:
        """Return how many problems of these kinds there were."""
        return sum(self._counts.get(kind, 0) for kind in kinds)

    def counts(self) -> dict[str, int]:
        """Return the number of problems by kind, in the order in which the kinds first appeared."""
        return dict(self._counts)

    def first(self, *kinds: str) -> tuple[Problem, ...]:
        """Return the kept problems of these kinds, at most five of each."""
        return tuple(problem for kind in kinds for problem in self._first.get(kind, ()))

    def __len__(self) -> int:
        return sum(self._counts.values())


@dataclass(slots=True)
class ListedImage:
    """One image as an annotation file names it: `reference` is its path inside one of `folders`."""

    reference: str
    split: str | None
    image_id: int | str
    where: str
    folders: tuple[str, ...]
    captions: list[str] = field(default_factory=list)
    tokens: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """What a reader found: images by (reference, split), the number of annotation lines, problems and notes."""

    name: str
    lines: int = 0
    images: dict[tuple[str, str | None], ListedImage] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # An annotation file may name its data set as it likes; messages and folders are named after it.
        self.name = re.sub(r"[/\\]", "_", files.printable_line(self.name))[:LONGEST_NAME]

    def malformed(self, where: str, detail: str) -> None:
        """Count one malformed annotation line."""
        self.problems.add(MALFORMED_LINE, where, detail)

    def usable_caption(self, text: object, where: str) -> str | None:
        """Return the caption without surrounding space, or None after counting what is wrong with it."""
        if not is_text(text):
            self.malformed(where, f"the caption is not text but {shown(text)}")
            return None
        caption = text.strip()
        if not caption:
            self.problems.add(EMPTY_CAPTION, where, "nothing but white space")
            return None
        return caption

    def image(self, listed: ListedImage) -> ListedImage:
        """Return the image of this reference and split, which is `listed` if there was none before."""
        return self.images.setdefault((listed.reference, listed.split), listed)


def is_text(value: object) -> TypeGuard[str]:
    """Tell whether a value is a string that can be written out again."""
    # JSON can spell half a surrogate pair ("\ud800"), which no file name and no output file can hold.
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def shown(value: object) -> str:
    """Return a value as a short piece of one line."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def path_inside(name: object) -> str | None:
    """Return a relative path in its shortest form, or None where it does not stay inside the data folder."""
    if not is_text(name) or "\0" in name:
        return None
    portable = posixpath.normpath(name.replace("\\", "/"))
    if portable in (".", "..") or portable.startswith(("/", "../")) or ntpath.splitdrive(portable)[0]:
        return None
    return posixpath.normpath(name)


def read_lines(root: Path, path: Path, reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield (where, text) for every line that is not blank; a line that is not UTF-8 is counted as malformed."""
    place = path.relative_to(root).as_posix()
    for number, line in files.read_lines(path, longest=LONGEST, most=MOST):
        raw = line.removesuffix(b"\n")
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if not raw.strip():
            continue
        reading.lines += 1
        where = f"{place}:{number}"
        try:
            yield where, raw.decode()
        except UnicodeDecodeError as error:
            reading.malformed(where, f"byte {raw[error.start]:#04x} at position {error.start + 1} is not UTF-8")


def read_json(path: Path) -> Any:
    """Return what a UTF-8 file of JSON holds; a ValueError names the file and the position of what is wrong."""
    return files.read_json(path, most=MOST)


def load_json(path: Path) -> dict[str, Any]:
    """Return the JSON object a UTF-8 file holds; a ValueError names the file and what is wrong with it."""
    return files.read_json_object(path, most=MOST)


def list_of_records(content: dict[str, Any], key: str, path: Path) -> list[Any]:
    """Return the list under `key` of a file's JSON object; a ValueError names the file when there is none."""
    records = content.get(key)
    if not isinstance(records, list):
        raise ValueError(f"{path} has no list {key!r}, only {', '.join(map(shown, content)) or 'nothing'}")
    return records
