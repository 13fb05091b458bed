from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.instances import MALFORMED_BOX, instance_files, read_instances

CATEGORIES = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
IMAGES = [{"id": 7, "width": 640, "height": 480}, {"id": 8, "width": 100, "height": 200}]


def box(image_id: Any = 7, category_id: Any = 1, bbox: Any = (10, 20, 30.5, 40), **others: Any) -> dict[str, Any]:
    given = list(bbox) if isinstance(bbox, tuple) else bbox
    return {"id": 1, "image_id": image_id, "category_id": category_id, "bbox": given, **others}


def write(path: Path, annotations: list[Any], images: Any = IMAGES, categories: Any = CATEGORIES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))
    return path


def test_boxes_by_image_and_category(tmp_path: Path) -> None:
    path = write(tmp_path / "instances_val2017.json", [
        box(), box(category_id=18, bbox=(0, 0, 5, 5), iscrowd=1), box(bbox=(1, 2, 3, 4), iscrowd=0),
    ])  # fmt: skip
    found = read_instances([path])
    assert found.categories == ("person", "dog")
    assert (len(found.problems), list(found.images)) == (0, [7, 8])
    image = found.images[7]
    assert (image.width, image.height) == (640, 480)
    np.testing.assert_allclose(image.boxes("person"), [[10, 20, 40.5, 60], [1, 2, 4, 6]])
    assert [instance.is_crowd for instance in image.instances] == [False, True, False]
    assert image.boxes("cat").shape == (0, 4)
    assert found.images[8].instances == ()


def test_only_the_images_asked_for_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "instances_val2017.json", [box(), box(image_id=8)])
    found = read_instances([path], {8, 9})
    assert list(found.images) == [8]
    assert len(found.images[8].instances) == 1
    assert len(found.problems) == 0


def test_files_are_joined(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", [box()], images=IMAGES[:1])
    second = write(tmp_path / "b.json", [box(image_id=8)], images=IMAGES[1:], categories=[{"id": 1, "name": "person"}])
    found = read_instances([first, second])
    assert sorted(map(str, found.images)) == ["7", "8"]
    assert found.categories == ("person", "dog")


@pytest.mark.parametrize(
    "wrong",
    [
        None, "box", {}, box(image_id=True), box(image_id=99), box(category_id=2), box(category_id="person"),
        box(bbox=None), box(bbox=(1, 2, 3)), box(bbox=(1, 2, -3, 4)), box(bbox=(1, 2, "3", 4)),
        box(bbox=(1, 2, float("nan"), 4)), box(bbox=(float("inf"), 2, 3, 4)), box(bbox=(10**400, 2, 3, 4)),
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_counted_and_many_are_an_error(wrong: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "few.json", [wrong] + 200 * [box()])
    found = read_instances([path])
    assert len(found.problems) == 1
    assert len(found.images[7].instances) == 200
    (problem,) = found.problems.first(*found.problems.counts())
    assert problem.where == "few.json: annotations[0]"
    with pytest.raises(ValueError, match=r"1 of 3 records in .*many\.json are unusable.*annotations\[0\]") as error:
        read_instances([write(tmp_path / "many.json", [wrong])])
    assert "\n" not in str(error.value)


def test_a_box_without_width_is_no_problem(tmp_path: Path) -> None:
    found = read_instances([write(tmp_path / "a.json", [box(bbox=(1, 2, 0, 4))])])
    assert found.problems.count(MALFORMED_BOX) == 0
    np.testing.assert_array_equal(found.images[7].boxes("person"), [[1, 2, 1, 6]])


@pytest.mark.parametrize(
    ("images", "categories", "expected"),
    [
        ([{"id": 7}], CATEGORIES, "unusable"),
        ([{"id": 7, "width": 0, "height": 4}], CATEGORIES, "unusable"),
        (None, CATEGORIES, "has no list 'images'"),
        (IMAGES, None, "has no list 'categories'"),
        (IMAGES, [], "names no categories"),
        (IMAGES, [{"id": "1", "name": "person"}], "names no categories"),
    ],
)
def test_a_file_of_another_kind_is_named(images: Any, categories: Any, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "other.json", [], images=images, categories=categories)
    with pytest.raises(ValueError, match=expected) as error:
        read_instances([path])
    assert "other.json" in str(error.value)


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.json"
    path.write_text('{"images": [')
    with pytest.raises(ValueError, match=r"torn\.json is not valid JSON"):
        read_instances([path])


def listed(*names: str, split: str = "val") -> list[CaptionedImage]:
    return [CaptionedImage(name, Path(name), 1, split, ("a",), None) for name in names]


def test_files_are_found_by_the_folders_of_the_images(tmp_path: Path) -> None:
    images = listed("val2014/COCO_1.jpg", "images/train2014/COCO_2.jpg", "val2014/COCO_3.jpg")
    val = write(tmp_path / "annotations" / "instances_val2014.json", [])
    assert instance_files(tmp_path, images[:1]) == [val]
    assert instance_files(tmp_path, images) == []  # half of the images would have no objects
    train = write(tmp_path / "annotations" / "instances_train2014.json", [])
    assert instance_files(tmp_path, images) == [train, val]
    assert instance_files(tmp_path, listed("Flicker8k_Dataset/1.jpg")) == []
    assert instance_files(tmp_path, []) == []


def test_files_beside_karpathys_are_found_by_the_splits_of_the_images(tmp_path: Path) -> None:
    folder = tmp_path / "annotations"
    test, train = (write(folder / f"instances_{split}.json", []) for split in ("test", "train"))
    images = {split: listed("val2014/COCO_1.jpg", split=split) for split in ("train", "restval", "test", "val")}
    assert instance_files(tmp_path, images["test"]) == [test]
    assert instance_files(tmp_path, images["train"] + images["test"]) == [test, train]
    assert instance_files(tmp_path, images["val"] + images["test"]) == []
    restval = write(folder / "instances_restval.json", [])
    assert instance_files(tmp_path, images["restval"]) == [restval]
    assert instance_files(tmp_path, images["train"]) == [restval, train]  # they may have been joined
    whole = write(folder / "instances_val2014.json", [])
    assert instance_files(tmp_path, images["test"]) == [whole]  # COCO's own file, of all splits
