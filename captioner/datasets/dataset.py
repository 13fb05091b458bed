"""Data sets of captioned images: recognise the format of a folder, read it, find the images, split them."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from captioner.datasets import own_captions, parquet, readers
from captioner.datasets.annotations import (
    IMAGE_KINDS,
    LINE_KINDS,
    MALFORMED_IMAGE,
    MISSING_IMAGE,
    NO_CAPTIONS,
    Problem,
    Problems,
    Reading,
)
from captioner.datasets.seeded_splits import splits_by_name
from captioner.datasets.vocabulary import tokenize
from captioner.images.finding import find_images

__all__ = ["FORMATS", "CaptionDataset", "CaptionedImage", "Format", "Problem", "Problems", "load_dataset"]

SPLIT_ORDER = ("train", "restval", "val", "test")


@dataclass(frozen=True, slots=True)
class CaptionedImage:
    """One image of one split with its captions.

    `file_name` is relative to the data root, with forward slashes, and is the image's identity in caches and results.
    `tokens` is None unless the annotation file brings its own, one tuple for each caption.
    """

    file_name: str
    path: Path
    image_id: int | str
    split: str
    captions: tuple[str, ...]
    tokens: tuple[tuple[str, ...], ...] | None

    def tokenized(self) -> tuple[tuple[str, ...], ...]:
        """Return the words of each caption: the annotation file's own tokens where it has some."""
        return self.tokens if self.tokens is not None else tuple(tuple(tokenize(caption)) for caption in self.captions)


@dataclass(frozen=True, slots=True)
class CaptionDataset:
    """The usable images of a data folder, with what was found wrong and short notes for the reader of a report.

    An image that the annotation files put into two splits is there twice, once for each split.
    """

    name: str
    format: str
    root: Path
    images: tuple[CaptionedImage, ...]
    problems: Problems
    notes: tuple[str, ...]

    def splits(self) -> dict[str, int]:
        """Return the number of images by split, in the order train, restval, val, test, then others by name."""
        return _count_splits(image.split for image in self.images)

    def split(self, name: str) -> tuple[CaptionedImage, ...]:
        """Return the images of one split."""
        images = tuple(image for image in self.images if image.split == name)
        if not images:
            raise ValueError(f"{self.name} has no split {name!r}, only {', '.join(self.splits())}")
        return images


@dataclass(frozen=True, slots=True)
class Format:
    """An annotation format: one line on what it looks like, its recogniser and its reader.

    A format that is not `automatic` is used only when asked for by name; one that is `last` only where no other is
    recognised, as it takes looking through all files.
    """

    looks_like: str
    recognises: Callable[[Path], object]
    read: Callable[[Path], Reading]
    automatic: bool = True
    last: bool = False


def _coco_format(year: str) -> Format:
    looks_like = f"annotations/captions_{{train,val}}{year}.json and train{year}/, val{year}/"
    return Format(looks_like, partial(readers.coco_files, year=year), partial(readers.read_coco, year=year), False)


FORMATS = {
    "flickr8k": Format(
        "Flickr8k_text/Flickr8k.token.txt, Flickr_8k.{train,dev,test}Images.txt and Flicker8k_Dataset/",
        readers.flickr8k_text_folder,
        readers.read_flickr8k,
    ),
    "captions-txt": Format(
        "captions.txt with the header 'image,caption' and Images/",
        lambda root: (root / "captions.txt").is_file(),
        readers.read_captions_txt,
    ),
    "coco": Format(
        "annotations/captions_{train,val}{2014,2017}.json and train2017/ or images/train2017/ and the like",
        readers.coco_files,
        readers.read_coco,
    ),
    "coco2014": _coco_format("2014"),
    "coco2017": _coco_format("2017"),
    "karpathy": Format(
        f"{' or '.join(readers.KARPATHY_FILES)} and the image folders it names",
        readers.karpathy_files,
        readers.read_karpathy,
    ),
    "metadata": Format(
        "metadata.jsonl or metadata.csv with file_name, text and perhaps split, here or in train/, validation/, test/",
        own_captions.metadata_files,
        own_captions.read_metadata,
    ),
    "parquet": Format(
        "train-00000-of-00001.parquet and the like, also in data/, with image and text",
        parquet.parquet_files,
        parquet.read_parquet,
    ),
    "txt": Format(
        "images with a text file beside each, cat.txt beside cat.jpg",
        own_captions.has_texts,
        own_captions.read_texts,
        last=True,
    ),
}


def load_dataset(
    folder: str | os.PathLike[str],
    format: str | None = None,
    *,
    restval_to_train: bool = False,
    tolerance: float = 0.01,
    seed: int | None = None,
) -> CaptionDataset:
    """Read the captioned images of a folder, whose format is recognised unless it is named.

    `tolerance` (0..1) is the share of unusable annotation lines, and of unusable images, above which it is an error.
    `seed` (default 0) is that of the split into 80 % train, 10 % val and 10 % test where the files name none.
    """
    root = Path(folder)
    if not root.is_dir():
        what = "not a folder" if root.exists() else "not there"
        raise ValueError(f"{root} is {what}, expected a folder with a data set")
    if not 0 <= tolerance <= 1:
        raise ValueError(f"tolerance is {tolerance}, expected a share between 0 and 1")
    format = _choose_format(root, format)
    reading = FORMATS[format].read(root)
    images = _usable_images(root, reading)
    _check_tolerance(root, reading, tolerance)
    if not images:
        raise ValueError(f"no usable image in {root}, read as {format}")
    if any(not image.split for image in images):
        splits = splits_by_name(root, [image.file_name for image in images], seed, reading.notes)
        images = [replace(image, split=split) for image in images for split in splits[image.file_name]]
    if restval_to_train:
        images = [replace(image, split="train") if image.split == "restval" else image for image in images]
    return CaptionDataset(reading.name, format, root, tuple(images), reading.problems, tuple(reading.notes))


def _choose_format(root: Path, asked: str | None) -> str:
    if asked is not None:
        if asked not in FORMATS:
            raise ValueError(f"unknown format {asked!r}, expected one of {', '.join(FORMATS)}")
        if not FORMATS[asked].recognises(root):
            raise ValueError(f"{root} is not of the format {asked}, which looks like {FORMATS[asked].looks_like}")
        return asked
    automatic = {name: candidate for name, candidate in FORMATS.items() if candidate.automatic}
    found = [name for name, candidate in automatic.items() if not candidate.last and candidate.recognises(root)]
    if not found:
        found = [name for name, candidate in automatic.items() if candidate.last and candidate.recognises(root)]
    if not found and any(find_images([root], recursive=True)):
        add = "a metadata.csv or metadata.jsonl with file_name and text, or a text file beside each image"
        raise ValueError(f"{root} has images but no captions that are known; add {add}")
    if not found:
        formats = "; ".join(f"{name}: {candidate.looks_like}" for name, candidate in FORMATS.items())
        raise ValueError(f"no known data set in {root}, expected one of these: {formats}")
    if len(found) > 1:
        raise ValueError(f"{root} looks like {' and '.join(found)}: choose one with the format argument (--format)")
    return found[0]


def _usable_images(root: Path, reading: Reading) -> list[CaptionedImage]:
    """Return the images that have captions and whose file is there; count the others as problems."""
    images = []
    listings: dict[str, frozenset[str]] = {}
    for listed in reading.images.values():
        candidates = (posixpath.join(folder, listed.reference) for folder in listed.folders)
        file_name = next((name for name in candidates if _is_listed(root, name, listings)), None)
        if file_name is None:
            first = posixpath.join(listed.folders[0], listed.reference)
            others = f", nor in {len(listed.folders) - 1} other usual folders" if len(listed.folders) > 1 else ""
            reading.problems.add(MISSING_IMAGE, listed.where, f"no file {first}{others}")
        elif not listed.captions:
            reading.problems.add(NO_CAPTIONS, listed.where, f"no usable caption for {listed.reference}")
        else:
            captions, tokens = tuple(listed.captions), tuple(listed.tokens) or None
            path, split = root / file_name, listed.split or ""
            images.append(CaptionedImage(file_name, path, listed.image_id, split, captions, tokens))
    return images


def _is_listed(root: Path, file_name: str, listings: dict[str, frozenset[str]]) -> bool:
    # One listing for each folder: a system call for each of 120,000 images is slow, above all over a network.
    folder, name = posixpath.split(file_name)
    if folder not in listings:
        try:
            with os.scandir(root / folder) as entries:
                listings[folder] = frozenset(entry.name for entry in entries if entry.is_file())
        except OSError:
            listings[folder] = frozenset()
    return name in listings[folder]


def _check_tolerance(root: Path, reading: Reading, tolerance: float) -> None:
    problems = reading.problems
    image_records = len(reading.images) + problems.count(MALFORMED_IMAGE)
    for kinds, total, what in (
        (LINE_KINDS, reading.lines, "annotation lines"),
        (IMAGE_KINDS, image_records, "images"),
    ):
        unusable = problems.count(*kinds)
        if unusable <= tolerance * total:
            continue
        counts = ", ".join(f"{problems.count(kind)} x {kind}" for kind in kinds if problems.count(kind))
        # Of lines that are wrong in the same way, as where a file is not UTF-8, the first is enough.
        alike = {re.sub(r"\d+", "", problem.detail): problem for problem in reversed(problems.first(*kinds))}
        first = [problem for problem in problems.first(*kinds) if problem in alike.values()][: Problems.kept]
        examples = "; ".join(f"{problem.where}: {problem.detail}" for problem in first)
        raise ValueError(
            f"{unusable} of {total} {what} in {root} are unusable ({unusable / total:.1%}, "
            f"the tolerance is {tolerance:.1%}): {counts}. First: {examples}"
        )


def _count_splits(names: Iterable[str]) -> dict[str, int]:
    counts = Counter(names)
    return {name: counts[name] for name in (*SPLIT_ORDER, *sorted(counts.keys() - set(SPLIT_ORDER))) if name in counts}
