"""Files of detected regions: for each image boxes in pixels, and a vector for each box.

    NAME.jsonl   a line of JSON per image: {"file_name": ..., "boxes": [[left, top, right, bottom], ...]}, and where
                 the boxes are of a copy of another size, "width" and "height". The vectors of all boxes of all lines
                 are one tensor (boxes, D) called "features" in NAME.safetensors, in the same order.
    NAME.tsv     the bottom-up attention features' own (Anderson et al., 2018): image_id, image_w, image_h, num_boxes,
                 boxes and features, between tabs, the last two base64 of little-endian float32.

A file is read twice: once for the number of boxes of each image, and once for the rest, image by image.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.files import check_regular, read_lines

SUFFIXES = (".jsonl", ".tsv")
LONGEST = 1 << 26  # bytes of a line: a hundred vectors of 2,048 numbers have a fiftieth of it
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Detection:
    """The regions of one image."""

    key: str  # a file name, its end, or an image's id
    boxes: Floats  # (n, 4): left, top, right, bottom
    vectors: Floats  # (n, D)
    size: tuple[int, int] | None  # width and height of the image that the boxes are of, where the file tells


class DetectionFile(ABC):
    """A file of detections."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def survey(self) -> tuple[dict[str, int], int]:
        """Return the number of boxes of each image by its key, and D."""

    @abstractmethod
    def read(self) -> Iterator[Detection]:
        """Yield the detections, in the file's order."""

    def damaged(self, line: int, reason: str) -> ValueError:
        """Return the error of a line, from 1."""
        return ValueError(f"{self.path}:{line} is damaged: {reason}")


def open_detections(path: Path) -> DetectionFile:
    """Return a file of detections by its suffix."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; expected detected regions, {' or '.join(SUFFIXES)}")
    if path.suffix == ".jsonl":
        return _JsonLines(path)
    if path.suffix == ".tsv":
        return _BottomUp(path)
    raise ValueError(f"{path.name} has the suffix {path.suffix!r}; detected regions are {' or '.join(SUFFIXES)}")


class _JsonLines(DetectionFile):
    """Boxes as lines of JSON, and beside them all vectors as one tensor."""

    def survey(self) -> tuple[dict[str, int], int]:
        """Return the number of boxes of each image by its key, and D."""
        counts = {key: len(boxes) for key, boxes, _ in self._lines()}
        with ExitStack() as stack:
            rows, dimensions = self._open(stack).get_shape()
        if rows != sum(counts.values()):
            raise ValueError(f"{self._vectors} has {rows:,} vectors for {sum(counts.values()):,} boxes in {self.path}")
        return counts, dimensions

    def read(self) -> Iterator[Detection]:
        """Yield the detections, in the file's order."""
        with ExitStack() as stack:
            vectors = self._open(stack)
            start = 0
            for key, boxes, size in self._lines():
                yield Detection(key, boxes, vectors[start : start + len(boxes)].float().numpy(), size)
                start += len(boxes)

    @property
    def _vectors(self) -> Path:
        return self.path.with_suffix(".safetensors")

    def _open(self, stack: ExitStack) -> Any:
        """Return the tensor of all vectors, of which parts are read."""
        from safetensors import SafetensorError, safe_open

        if self._vectors.exists():
            check_regular(self._vectors)
        try:
            tensors = stack.enter_context(safe_open(self._vectors, framework="pt"))
            found = tensors.get_slice("features")
        except FileNotFoundError:
            raise ValueError(f"{self._vectors} is missing: the vectors of the boxes in {self.path.name}") from None
        except SafetensorError as error:
            raise ValueError(f"{self._vectors} cannot be read: {error}") from None
        if len(found.get_shape()) != 2:
            raise ValueError(f"{self._vectors}: features has the shape {tuple(found.get_shape())}; expected (boxes, D)")
        return found

    def _lines(self) -> Iterator[tuple[str, Floats, tuple[int, int] | None]]:
        for number, line in read_lines(self.path, longest=LONGEST):
            try:
                values = json.loads(line)
                key, boxes = values["file_name"], np.array(values["boxes"], np.float32).reshape(-1, 4)
                size = (int(values["width"]), int(values["height"])) if "width" in values else None
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                expected = '{"file_name": ..., "boxes": [[left, top, right, bottom], ...]}'
                raise self.damaged(number, f"expected {expected}") from None
            yield str(key), boxes, size


class _BottomUp(DetectionFile):
    """The tab-separated values of bottom-up attention."""

    def survey(self) -> tuple[dict[str, int], int]:
        """Return the number of boxes of each image by its key, and D."""
        counts: dict[str, int] = {}
        dimensions = 0
        for number, fields in self._lines():
            counts[fields[0].decode("utf-8", "replace")] = count = self._number(number, fields[3])
            if not dimensions and count:
                dimensions = len(self._floats(number, fields[5], count, None)[0])
        return counts, dimensions

    def read(self) -> Iterator[Detection]:
        """Yield the detections, in the file's order."""
        for number, fields in self._lines():
            width, height, count = (self._number(number, field) for field in fields[1:4])
            boxes = self._floats(number, fields[4], count, 4)
            vectors = self._floats(number, fields[5], count, None)
            yield Detection(fields[0].decode("utf-8", "replace"), boxes, vectors, (width, height))

    def _lines(self) -> Iterator[tuple[int, list[bytes]]]:
        for number, line in read_lines(self.path, longest=LONGEST):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 6:
                names = "image_id, image_w, image_h, num_boxes, boxes, features"
                raise self.damaged(number, f"it has {len(fields)} fields; expected {names}")
            if not (number == 1 and fields[0] == b"image_id"):  # some files have a head
                yield number, fields

    def _number(self, line: int, field: bytes) -> int:
        if not field.isdigit():
            raise self.damaged(line, f"{field[:20]!r} is no number")
        return int(field)

    def _floats(self, line: int, field: bytes, count: int, columns: int | None) -> Floats:
        """Return numbers (count, columns)."""
        try:
            flat = np.frombuffer(base64.b64decode(field, validate=True), np.dtype("<f4"))
            table: Floats = flat.reshape(count, columns or (len(flat) // count if count else 0))
        except (ValueError, binascii.Error):
            raise self.damaged(line, f"its base64 does not hold {count} rows of numbers") from None
        return table
