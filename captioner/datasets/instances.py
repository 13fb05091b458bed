"""COCO's object annotations: which objects an image holds, and the boxes around them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.annotations import (
    MALFORMED_IMAGE,
    UNKNOWN_IMAGE_ID,
    Problems,
    list_of_records,
    load_json,
    shown,
)
from captioner.datasets.dataset import CaptionedImage
from captioner.images.geometry import Box

MALFORMED_BOX = "malformed box"
MALFORMED_CATEGORY = "malformed category"
TOLERANCE = 0.01  # share of a file's records that may be unusable
FARTHEST = 1e9  # pixels; what lies beyond, or is not a number, is no edge of a box
ImageId = int | str


@dataclass(frozen=True, slots=True)
class Instance:
    """One object: its category, its box on the image, and whether it stands for a crowd of them in one box."""

    category: str
    box: Box
    is_crowd: bool


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """The objects of one image of `width` x `height` pixels."""

    width: int
    height: int
    instances: tuple[Instance, ...]

    def boxes(self, category: str) -> NDArray[np.float64]:
        """Return the boxes (n, 4) of a category, crowds included, each as left, top, right, bottom in pixels."""
        found = [instance.box for instance in self.instances if instance.category == category]
        return np.array(found, dtype=np.float64).reshape(-1, 4)


@dataclass(frozen=True, slots=True)
class Instances:
    """The annotated images by id, the names of all categories, and the records that could not be used."""

    images: dict[ImageId, AnnotatedImage]
    categories: tuple[str, ...]
    problems: Problems


def instance_files(root: Path, images: Iterable[CaptionedImage]) -> list[Path]:
    """Return the files under `root` with the objects of these images, by the images' folders or by their splits.

    "val2017/000000000139.jpg" of the split "val" asks for annotations/instances_val2017.json, or else for
    annotations/instances_val.json, which lies beside Karpathy's file. The list is empty where a file that is needed is
    not there, as with every data set but COCO.
    """
    folder, images = root / "annotations", list(images)
    by_folder = {folder / f"instances_{PurePosixPath(image.file_name).parent.name}.json" for image in images}
    by_split = {folder / f"instances_{image.split}.json" for image in images}
    joined = folder / "instances_restval.json"
    if folder / "instances_train.json" in by_split and joined.is_file():  # restval may have joined train
        by_split.add(joined)
    return next((sorted(paths) for paths in (by_folder, by_split) if all(path.is_file() for path in paths)), [])


def read_instances(paths: Sequence[Path], image_ids: Container[ImageId] | None = None) -> Instances:
    """Read COCO instance files, of all images or of those whose ids are asked for.

    A record that makes no sense is counted in `problems`; files of which more than 1 % makes none are an error.
    """
    images: dict[ImageId, AnnotatedImage] = {}
    categories: dict[str, None] = {}
    problems = Problems()
    total = 0
    for path in paths:
        content = load_json(path)
        names = _read_categories(content, path, problems)
        categories.update(dict.fromkeys(names.values()))
        images |= _read_images(content, path, names, problems, image_ids)
        total += len(content["images"]) + len(content["annotations"])
    if len(problems) > TOLERANCE * total:
        first = problems.first(*problems.counts())[0]
        raise ValueError(
            f"{len(problems)} of {total} records in {', '.join(map(str, paths))} are unusable, more than "
            f"{TOLERANCE:.0%}; first: {first.where}: {first.detail}"
        )
    return Instances(images, tuple(categories), problems)


def _read_categories(content: dict[str, Any], path: Path, problems: Problems) -> dict[int, str]:
    """Return the names of the categories by id."""
    names: dict[int, str] = {}
    records = list_of_records(content, "categories", path)
    for position, record in enumerate(records):
        if isinstance(record, dict) and type(record.get("id")) is int and isinstance(record.get("name"), str):
            names[record["id"]] = record["name"]
        else:
            where = f"{path.name}: categories[{position}]"
            problems.add(MALFORMED_CATEGORY, where, f"expected 'id' and 'name', found {shown(record)}")
    if not names:
        raise ValueError(f"{path} names no categories, expected a list of 'id' and 'name'")
    return names


def _read_images(
    content: dict[str, Any],
    path: Path,
    names: dict[int, str],
    problems: Problems,
    image_ids: Container[ImageId] | None,
) -> dict[ImageId, AnnotatedImage]:
    sizes: dict[ImageId, tuple[int, int]] = {}
    listed = list_of_records(content, "images", path)
    for position, record in enumerate(listed):
        image = _image_size(record)
        if image is None:
            where = f"{path.name}: images[{position}]"
            problems.add(MALFORMED_IMAGE, where, f"expected 'id', 'width' and 'height', found {shown(record)}")
        else:
            sizes[image[0]] = image[1:]
    found: dict[ImageId, list[Instance]] = {
        image_id: [] for image_id in sizes if image_ids is None or image_id in image_ids
    }
    annotations = list_of_records(content, "annotations", path)
    for position, record in enumerate(annotations):
        where = f"{path.name}: annotations[{position}]"
        instance = _instance(record, names)
        if instance is None:
            detail = f"expected 'image_id', a known 'category_id' and a 'bbox', found {shown(record)}"
            problems.add(MALFORMED_BOX, where, detail)
        elif record["image_id"] not in sizes:
            problems.add(UNKNOWN_IMAGE_ID, where, f"no image has the id {shown(record['image_id'])}")
        elif record["image_id"] in found:
            found[record["image_id"]].append(instance)
    return {image_id: AnnotatedImage(*sizes[image_id], tuple(objects)) for image_id, objects in found.items()}


def _image_size(record: Any) -> tuple[ImageId, int, int] | None:
    """Return the id, the width and the height of an image record, or None where it lacks one."""
    fields = record if isinstance(record, dict) else {}
    image_id, width, height = fields.get("id"), fields.get("width"), fields.get("height")
    if not isinstance(image_id, int | str) or type(width) is not int or type(height) is not int:
        return None
    return (image_id, width, height) if min(width, height) > 0 and image_id is not True else None


def _instance(record: Any, names: dict[int, str]) -> Instance | None:
    """Return the object of an annotation record, or None where the record makes no sense."""
    if not isinstance(record, dict) or type(record.get("image_id")) not in (int, str):
        return None
    category, box = record.get("category_id"), record.get("bbox")
    if type(category) is not int or category not in names or not isinstance(box, list) or len(box) != 4:
        return None
    if not all(type(value) in (int, float) and abs(value) < FARTHEST for value in box) or min(box[2:]) < 0:
        return None
    left, top, width, height = map(float, box)
    # Some boxes of COCO have no width; they hold nothing and are met by no point, and do no harm.
    return Instance(names[category], (left, top, left + width, top + height), record.get("iscrowd") == 1)
