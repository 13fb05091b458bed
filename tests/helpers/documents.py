"""The commands and programs in Markdown files, and a folder to run them in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from helpers.data_folders import write_json
from helpers.detections import detect, write_tsv
from helpers.photo_folders import EXAMPLES, ROOT
from helpers.tar_files import write_tar

CAPTIONS = (
    "A dog runs along a beach .",
    "A brown dog near the sea .",
    "A dog .",
    "The dog plays .",
    "One wet dog runs .",
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the heading it stands under."""

    language: str
    text: str
    heading: str


def documents() -> list[Path]:
    """Return every Markdown file of the project."""
    named = (ROOT, ROOT / "data", ROOT / "experiments", ROOT / "experiments" / "translation")
    folders = (*named, *sorted(path for path in (ROOT / "captioner").rglob("*/")))
    return [path for folder in folders for path in sorted(folder.glob("*.md"))]


def read_blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a file."""
    blocks, heading, language, lines = [], "", "", None
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            if lines is None:
                language, lines = line.removeprefix("```"), []
            else:
                blocks.append(Block(language, "\n".join(lines) + "\n", heading))
                lines = None
        elif lines is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    assert lines is None, f"a block of {path} is not closed"
    return blocks


def read_commands(block: Block) -> Iterator[str]:
    """Yield the commands of a block of shell lines, each on one line and without its comment."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"\s+#\s.*$", "", line)
        command = re.sub(r"\s+", " ", command).strip()
        if command and not command.startswith("#"):
            yield command


def split_pipe(command: str) -> list[list[str]]:
    """Return the arguments of each program of a pipe."""
    return [shlex.split(part) for part in command.split(" | ")]


def write_world(folder: Path) -> Path:
    """Make what the commands of the READMEs speak of: photographs, an archive, and stand-ins for the data sets."""
    (folder / "data").mkdir(parents=True)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "data" / "examples").symlink_to(EXAMPLES)
    photos = sorted(EXAMPLES.glob("*.jpg"))
    for name, example in (("photo.jpg", "coffee.jpg"), ("a.jpg", "cat.jpg"), ("b.jpg", "rocket.jpg")):
        (folder / name).write_bytes((EXAMPLES / example).read_bytes())
    _write_own(folder / "photos", photos)
    correction = {"image": "photos/cat.jpg", "caption": "Our cat asleep on the red sofa."}
    (folder / "corrections.jsonl").write_text(json.dumps(correction) + "\n")
    _write_flickr8k(folder / "data" / "flickr8k", photos)
    _write_coco(folder / "data", photos)
    _write_detections(folder, photos)
    (folder / "shards").mkdir()
    write_tar(folder / "shards" / "00012.tar", {path.name: path.read_bytes() for path in photos[:2]})
    return folder


def _write_own(folder: Path, photos: list[Path]) -> None:
    folder.mkdir()
    captions = [json.loads(line) for line in (EXAMPLES / "metadata.jsonl").read_text().splitlines()]
    for path in photos:  # small: figures of them are drawn by the dozen
        with Image.open(path) as photo:
            photo.thumbnail((240, 240))
            photo.save(folder / path.name)
    validation = {path.name for path in photos[:2]}
    lines = [{**each, "split": "val" if each["file_name"] in validation else "train"} for each in captions]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_flickr8k(root: Path, photos: list[Path]) -> None:
    images, text = root / "Flicker8k_Dataset", root / "Flickr8k_text"
    images.mkdir(parents=True)
    text.mkdir()
    for path in photos:
        (images / path.name).symlink_to(path)
    tokens = (f"{path.name}#{number}\t{caption}\n" for path in photos for number, caption in enumerate(CAPTIONS))
    (text / "Flickr8k.token.txt").write_text("".join(tokens))
    for stem, split in (("train", photos[:3]), ("dev", photos[3:5]), ("test", photos[5:])):
        (text / f"Flickr_8k.{stem}Images.txt").write_text("".join(f"{path.name}\n" for path in split))


def _write_detections(folder: Path, photos: list[Path]) -> None:
    """Write the regions that a detector found, of Flickr8k's photographs by their names and of COCO's by their ids."""
    for number, path in enumerate(photos):
        with Image.open(path) as photo:
            size = photo.size
        found = detect(number, 3 + number, size)
        write_tsv(folder / "frcnn.tsv", {path.stem: found}, size)
        write_tsv(folder / ("trainval.tsv" if number < 5 else "test.tsv"), {str(number): found}, size)


def _write_coco(data: Path, photos: list[Path]) -> None:
    """Write a stand-in for COCO in Karpathy's splits, and one for COCO 2017 with the boxes of its objects."""
    images, annotations, records, boxes = [], [], [], []
    for number, path in enumerate(photos):
        name = f"{number:012d}.jpg"
        for folder in (data / "coco" / "val2014", data / "coco2017" / "val2017"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(path)
        split = ("train", "train", "restval", "val", "val", "test", "test")[number]
        sentences = [{"raw": caption, "tokens": caption.lower().rstrip(" .").split()} for caption in CAPTIONS]
        image = {"filename": name, "filepath": "val2014", "imgid": number, "cocoid": number, "split": split}
        images.append({**image, "sentences": sentences})
        records.append({"id": number, "file_name": name, "width": 512, "height": 512})
        annotations += [
            {"id": 10 * number + place, "image_id": number, "caption": caption}
            for place, caption in enumerate(CAPTIONS)
        ]
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [50, 50, 200, 200], "iscrowd": 0})
    write_json(data / "coco" / "dataset_coco.json", {"images": images, "dataset": "coco"})
    folder = data / "coco2017" / "annotations"
    write_json(folder / "captions_val2017.json", {"images": records, "annotations": annotations})
    categories = [{"id": 1, "name": "cup"}]
    write_json(folder / "instances_val2017.json", {"images": records, "annotations": boxes, "categories": categories})
