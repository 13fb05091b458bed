"""Readers of the annotation files of published data sets, one function per format; own_captions.py has the others.

A reader looks at annotation files only. Whether the images exist, how many problems are too many and which split an
image falls into where the files name none is decided in `captioner.datasets.dataset`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any, TypeGuard

from captioner.datasets.annotations import (
    EMPTY_CAPTION,
    MALFORMED_IMAGE,
    UNKNOWN_IMAGE_ID,
    ListedImage,
    Reading,
    is_text,
    list_of_records,
    load_json,
    path_inside,
    read_lines,
    shown,
)

FLICKR8K_LISTS = {"train": "trainImages", "val": "devImages", "test": "testImages"}
FLICKR8K_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset")
KARPATHY_FILES = ("dataset_coco.json", "dataset_flickr8k.json", "dataset_flickr30k.json")
KARPATHY_FOLDERS = (
    "", "images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k_images", "flickr8k-images",
    "flickr30k_images", "flickr30k-images", "Flickr30k", "flickr30k",
)  # fmt: skip


def flickr8k_text_folder(root: Path) -> Path | None:
    """Return the folder that holds Flickr8k.token.txt: Flickr8k_text, or the data folder itself."""
    folders = (root / "Flickr8k_text", root)
    return next((folder for folder in folders if (folder / "Flickr8k.token.txt").is_file()), None)


def read_flickr8k(root: Path) -> Reading:
    """Read the official Flickr8k text files; an image named in two split lists is kept in both."""
    reading = Reading("Flickr8k")
    text_folder = flickr8k_text_folder(root) or root
    captions: dict[str, list[str]] = {}
    for where, line in read_lines(root, text_folder / "Flickr8k.token.txt", reading):
        key, tab, text = line.partition("\t")
        name, _, number = key.rpartition("#")
        reference = path_inside(name)
        if not tab or not number.isdigit() or reference is None:
            reading.malformed(where, f"expected 'name.jpg#0<TAB>caption', found {shown(line)}")
            continue
        kept = captions.setdefault(reference, [])
        if (caption := reading.usable_caption(text, where)) is not None:
            kept.append(caption)
    lists = {split: text_folder / f"Flickr_8k.{stem}.txt" for split, stem in FLICKR8K_LISTS.items()}
    if not any(path.is_file() for path in lists.values()):
        raise ValueError(f"no split list in {text_folder}, expected {', '.join(path.name for path in lists.values())}")
    for split, path in lists.items():
        if not path.is_file():
            reading.notes.append(f"{path.name} is absent: no {split} split")
            continue
        for where, line in read_lines(root, path, reading):
            listed = path_inside(line.strip())
            if listed is None:
                reading.malformed(where, f"expected the name of an image, found {shown(line)}")
                continue
            image = reading.image(ListedImage(listed, split, listed, where, FLICKR8K_FOLDERS))
            image.captions = captions.get(listed, [])
    unlisted = len(captions.keys() - {reference for reference, _ in reading.images})
    if unlisted:
        reading.notes.append(f"left out {unlisted} of {len(captions)} captioned images: they are in no split list")
    return reading


def read_captions_txt(root: Path) -> Reading:
    """Read the single-file copy, captions.txt with an `image,caption` header; it names no splits."""
    reading = Reading(root.resolve().name)
    folders = tuple(sorted(entry.name for entry in root.iterdir() if entry.name.lower() == "images")) or ("Images",)
    rows = read_lines(root, root / "captions.txt", reading)
    _, header = next(rows, ("", ""))
    if [column.strip().lower() for column in header.split(",")] != ["image", "caption"]:
        raise ValueError(f"{root / 'captions.txt'} starts with {shown(header)}, expected the header 'image,caption'")
    reading.lines -= 1
    # One line at a time: a CSV reader over the whole file lets one unbalanced quote swallow the lines after it.
    layout = re.compile(r'("(?:[^"]|"")*"|[^,]*),(.*)', re.DOTALL)
    for where, line in rows:
        fields = layout.fullmatch(line)
        name, text = (_unquoted(part.strip()) for part in fields.groups()) if fields else ("", "")
        reference = path_inside(name) if name else None
        if reference is None or text is None:
            reading.malformed(where, f"expected 'name.jpg,caption', found {shown(line)}")
            continue
        image = reading.image(ListedImage(reference, None, reference, where, folders))
        if (caption := reading.usable_caption(text, where)) is not None:
            image.captions.append(caption)
    return reading


def _unquoted(text: str) -> str | None:
    """Undo CSV quoting where it is complete; None where a quoted field is not closed."""
    if re.fullmatch(r'"(?:[^"]|"")*"', text):
        return text[1:-1].replace('""', '"')
    return None if text.startswith('"') and text.count('"') % 2 else text


def coco_files(root: Path, year: str | None = None) -> dict[str, dict[str, Path]]:
    """Return the COCO caption files that are there, by year and then by split."""
    found: dict[str, dict[str, Path]] = {}
    for candidate in (year,) if year else ("2014", "2017"):
        for split in ("train", "val"):
            path = root / "annotations" / f"captions_{split}{candidate}.json"
            if path.is_file():
                found.setdefault(candidate, {})[split] = path
    return found


def read_coco(root: Path, year: str | None = None) -> Reading:
    """Read COCO's caption files of one year, which may be left out where only one is there."""
    files = coco_files(root, year)
    if len(files) > 1:
        choices = " or ".join(f"coco{found}" for found in files)
        years = " and ".join(files)
        raise ValueError(f"{root} holds COCO captions of {years}: choose {choices} with the format argument (--format)")
    [(year, paths)] = files.items()
    reading = Reading(f"COCO {year}")
    for split, path in paths.items():
        _read_coco_split(root, path, split, (f"{split}{year}", f"images/{split}{year}"), reading)
    return reading


def _read_coco_split(root: Path, path: Path, split: str, folders: tuple[str, ...], reading: Reading) -> None:
    place = path.relative_to(root).as_posix()
    content = load_json(path)
    images, annotations = [], []
    for position, record in enumerate(list_of_records(content, "images", path)):
        if isinstance(record, dict) and _is_id(record.get("id")) and path_inside(record.get("file_name")):
            images.append(record)
        else:
            where = f"{place}: images[{position}]"
            reading.problems.add(MALFORMED_IMAGE, where, f"expected 'id' and 'file_name', found {shown(record)}")
    for position, record in enumerate(list_of_records(content, "annotations", path)):
        reading.lines += 1
        if isinstance(record, dict) and _is_id(record.get("id")) and _is_id(record.get("image_id")):
            annotations.append(record)
        else:
            where = f"{place}: annotations[{position}]"
            reading.malformed(where, f"expected 'id', 'image_id' and 'caption', found {shown(record)}")
    index = _coco_index(images, annotations)
    for image_id, record in index.imgs.items():
        reference = str(path_inside(record["file_name"]))
        image = reading.image(ListedImage(reference, split, image_id, f"{place}: image {image_id}", folders))
        for annotation in index.imgToAnns.get(image_id, ()):
            where = f"{place}: annotation {annotation['id']}"
            if (caption := reading.usable_caption(annotation.get("caption"), where)) is not None:
                image.captions.append(caption)
    for annotation in annotations:
        if annotation["image_id"] not in index.imgs:
            where = f"{place}: annotation {annotation['id']}"
            reading.problems.add(UNKNOWN_IMAGE_ID, where, f"no image has the id {shown(annotation['image_id'])}")


def _coco_index(images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> Any:
    # pycocotools opens files in the locale's encoding and stops at the first bad record, so it gets checked records.
    from pycocotools.coco import COCO

    index = COCO()
    index.dataset = {"images": images, "annotations": annotations}
    with contextlib.redirect_stdout(io.StringIO()):
        index.createIndex()
    return index


def _is_id(value: object) -> TypeGuard[int | str]:
    return type(value) in (int, str)  # not isinstance: JSON's true would pass for 1


def karpathy_files(root: Path) -> list[Path]:
    """Return Karpathy's annotation files that lie in the folder."""
    return [root / name for name in KARPATHY_FILES if (root / name).is_file()]


def read_karpathy(root: Path) -> Reading:
    """Read one of Karpathy's files with his splits (train, restval, val, test) and his tokens."""
    path = _only(karpathy_files(root))
    content = load_json(path)
    reading = Reading(f"{content.get('dataset', path.stem.removeprefix('dataset_'))} (Karpathy)")
    for position, record in enumerate(list_of_records(content, "images", path)):
        where = f"{path.name}: images[{position}]"
        fields = record if isinstance(record, dict) else {}
        # Only COCO has a filepath ("val2014"); the Flickr files name images alone.
        folder, name, split = fields.get("filepath", ""), fields.get("filename"), fields.get("split")
        image_id = fields.get("cocoid", fields.get("imgid"))
        sentences = fields.get("sentences")
        reference = path_inside(f"{folder}/{name}" if folder else name) if is_text(name) else None
        if not (reference and is_text(split) and split and _is_id(image_id) and isinstance(sentences, list)):
            detail = f"expected 'filename', 'split', 'imgid' and 'sentences', found {shown(record)}"
            reading.problems.add(MALFORMED_IMAGE, where, detail)
            continue
        image = reading.image(ListedImage(reference, split, image_id, where, KARPATHY_FOLDERS))
        for number, sentence in enumerate(sentences):
            _read_karpathy_sentence(sentence, f"{where}.sentences[{number}]", image, reading)
    return reading


def _read_karpathy_sentence(sentence: object, where: str, image: ListedImage, reading: Reading) -> None:
    reading.lines += 1
    tokens = sentence.get("tokens") if isinstance(sentence, dict) else None
    if not isinstance(sentence, dict) or not isinstance(tokens, list) or not _are_words(tokens):
        reading.malformed(where, f"expected 'raw' and a list of 'tokens', found {shown(sentence)}")
        return
    caption = reading.usable_caption(sentence.get("raw"), where)
    if caption is None:
        return
    if not tokens:
        reading.problems.add(EMPTY_CAPTION, where, "no tokens")
        return
    image.captions.append(caption)
    # Interned: a data set has millions of tokens and only thousands of distinct ones.
    image.tokens.append(tuple(map(sys.intern, tokens)))


def _are_words(tokens: list[object]) -> bool:
    words = [token for token in tokens if isinstance(token, str)]
    return len(words) == len(tokens) and is_text(" ".join(words))


def _only(paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise ValueError(f"{paths[0].parent} holds {' and '.join(path.name for path in paths)}: keep only one of them")
    return paths[0]
