"""Tiny data sets in every format that is read, written into a folder of a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from captioner.datasets.dataset import CaptionDataset


def write_image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(path, "JPEG")


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def captions_by_name(dataset: CaptionDataset) -> dict[str, tuple[str, ...]]:
    return {image.file_name: image.captions for image in dataset.images}


def flickr8k(root: Path, text_folder: str = "Flickr8k_text") -> Path:
    names = ["a.jpg", "b.jpg", "c.jpg"]
    for name in names:
        write_image(root / "Flicker8k_Dataset" / name)
    text = root / text_folder
    text.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}#{number}\tA dog , {name[0]} {number} ." for name in [*names, "d.jpg"] for number in range(2)]
    (text / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    for stem, name in zip(("trainImages", "devImages", "testImages"), names, strict=True):
        (text / f"Flickr_8k.{stem}.txt").write_text(f"{name}\n")
    return text


def coco(root: Path, year: str = "2017", image_parent: str = "") -> None:
    for split, first in (("train", 1), ("val", 11)):
        numbers = (first, first + 1)
        images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in numbers]
        annotations = [{"id": 10 * number, "image_id": number, "caption": f"Caption {number}\n"} for number in numbers]
        content = {"images": images, "annotations": annotations}
        write_json(root / "annotations" / f"captions_{split}{year}.json", content)
        for image in images:
            write_image(root / image_parent / f"{split}{year}" / str(image["file_name"]))


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def karpathy(root: Path, name: str = "dataset_coco.json", filepath: str | None = "val2014") -> Path:
    images = []
    for number, split in enumerate(("train", "restval", "val", "test")):
        sentence = {"raw": f"A Dog, number {number}.", "tokens": ["a", "dog", "number", str(number)]}
        image = {"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": [sentence]}
        if filepath is not None:
            image |= {"filepath": filepath, "cocoid": 100 + number}
        images.append(image)
        write_image(root / (filepath or "flickr30k-images") / f"{number}.jpg")
    write_json(root / name, {"images": images, "dataset": "coco"})
    return root / name


def metadata(root: Path, lines: list[dict[str, object]]) -> Path:
    path = root / "metadata.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in lines:
        if not (root / str(line["file_name"])).exists():
            write_image(root / str(line["file_name"]))
    return path


def captions_txt(root: Path, content: bytes, names: str = "abcd", folder: str = "Images") -> None:
    for name in names:
        write_image(root / folder / f"{name}.jpg")
    (root / "captions.txt").write_bytes(content)
