"""What is common to all formats: recognition, problems, tolerance, splits."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from helpers.data_folders import (
    captions_by_name,
    flickr8k,
    karpathy,
    metadata,
    write_json,
)

from captioner.datasets.dataset import FORMATS, CaptionDataset, Problems, load_dataset

# --- formats, problems and tolerance


def test_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not there"):
        load_dataset(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is not a folder"):
        load_dataset(tmp_path / "file")


def test_unrecognised_folder_names_what_each_format_looks_like(tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))) as caught:
        load_dataset(tmp_path)
    for name, format in FORMATS.items():
        assert f"{name}: {format.looks_like}" in str(caught.value)


def test_ambiguous_folder_asks_for_a_choice_and_obeys_it(tmp_path):
    flickr8k(tmp_path)
    karpathy(tmp_path)
    with pytest.raises(ValueError, match=r"flickr8k and karpathy: choose one .*--format"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path, "karpathy").format == "karpathy"
    assert load_dataset(tmp_path, "flickr8k").format == "flickr8k"


def test_forced_format_must_exist_and_fit(tmp_path):
    flickr8k(tmp_path)
    with pytest.raises(ValueError, match=r"unknown format 'imagenet', expected one of flickr8k, .*metadata"):
        load_dataset(tmp_path, "imagenet")
    with pytest.raises(ValueError, match=r"not of the format coco2017, .*captions_\{train,val\}2017\.json"):
        load_dataset(tmp_path, "coco2017")


def test_tolerance_is_a_share_of_images_for_missing_images(tmp_path):
    lines: list[dict[str, object]] = [
        {"file_name": f"{number}.jpg", "text": "A dog", "split": "train"} for number in range(10)
    ]
    metadata(tmp_path, lines)
    (tmp_path / "3.jpg").unlink()
    assert load_dataset(tmp_path, tolerance=0.1).splits() == {"train": 9}
    with pytest.raises(ValueError, match="1 of 10 images") as caught:
        load_dataset(tmp_path, tolerance=0.09)
    for part in ("10.0%", "9.0%", "1 x missing image", "metadata.jsonl:4: no file 3.jpg"):
        assert part in str(caught.value)


def test_tolerance_is_a_share_of_lines_for_line_problems(tmp_path):
    lines: list[dict[str, object]] = [{"file_name": "a.jpg", "text": f"Dog {n}", "split": "train"} for n in range(18)]
    path = metadata(tmp_path, [*lines, {"file_name": "a.jpg", "text": "", "split": "train"}])
    path.write_text(path.read_text() + "broken\n")
    assert load_dataset(tmp_path, tolerance=0.1).splits() == {"train": 1}
    with pytest.raises(ValueError, match="2 of 20 annotation lines") as caught:
        load_dataset(tmp_path)
    for part in ("10.0%", "1.0%", "metadata.jsonl:20", "metadata.jsonl:19"):
        assert part in str(caught.value)


def test_folder_or_dangling_link_in_place_of_an_image_is_a_missing_image(tmp_path):
    names = ("good.jpg", "folder.jpg", "link.jpg")
    metadata(tmp_path, [{"file_name": name, "text": "A dog", "split": "train"} for name in names])
    for name in names[1:]:
        (tmp_path / name).unlink()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    dataset = load_dataset(tmp_path, tolerance=0.9)
    assert list(captions_by_name(dataset)) == ["good.jpg"]
    assert dataset.problems.counts() == {"missing image": 2}


def test_nothing_usable_is_an_error_even_when_everything_is_tolerated(tmp_path):
    path = metadata(tmp_path, [{"file_name": "a.jpg", "text": "A dog"}])
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(ValueError, match="no usable image"):
        load_dataset(tmp_path, tolerance=1.0)
    path.write_text("")
    with pytest.raises(ValueError, match="no usable image"):
        load_dataset(tmp_path)


def test_unknown_split_and_bad_arguments_name_the_choices(tmp_path):
    flickr8k(tmp_path)
    with pytest.raises(ValueError, match="no split 'dev', only train, val, test"):
        load_dataset(tmp_path).split("dev")
    with pytest.raises(ValueError, match="tolerance is 2"):
        load_dataset(tmp_path, tolerance=2)


def test_problems_keep_the_first_five_of_a_kind():
    problems = Problems()
    for number in range(7):
        problems.add("odd", f"file:{number}", "detail")
    problems.add("even", "file:8", "detail")
    assert problems.counts() == {"odd": 7, "even": 1}
    assert (len(problems), problems.count("odd", "even", "none")) == (8, 8)
    assert [problem.where for problem in problems.first("odd")] == [f"file:{number}" for number in range(5)]


# --- seeded splits


def twenty_images(root: Path) -> None:
    metadata(root, [{"file_name": f"{number}.jpg", "text": "A dog"} for number in range(20)])


def split_of(dataset: CaptionDataset) -> dict[str, str]:
    return {image.file_name: image.split for image in dataset.images}


def test_seeded_split_follows_the_hash_and_is_written_down(tmp_path):
    twenty_images(tmp_path)
    dataset = load_dataset(tmp_path)
    order = sorted((f"{n}.jpg" for n in range(20)), key=lambda name: hashlib.sha256(b"0:" + name.encode()).hexdigest())
    expected = {name: "train" if place < 16 else "val" if place < 18 else "test" for place, name in enumerate(order)}
    assert split_of(dataset) == expected
    assert dataset.notes == ("wrote splits.json: train 16, val 2, test 2 (seed 0)",)
    written = json.loads((tmp_path / "splits.json").read_text())
    assert (written["seed"], written["fractions"]) == (0, [0.8, 0.1, 0.1])
    assert {name: split for split, names in written["splits"].items() for name in names} == expected
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".jpg") == [
        "metadata.jsonl",
        "splits.json",
    ]
    again = load_dataset(tmp_path)
    assert split_of(again) == expected
    assert again.notes == ("splits read from splits.json",)


def test_the_seed_changes_the_split(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        root.mkdir()
        twenty_images(root)
    zero, three = load_dataset(first), load_dataset(second, seed=3)
    assert zero.splits() == three.splits() == {"train": 16, "val": 2, "test": 2}
    assert {name for name, split in split_of(three).items() if split == "train"} - {
        name for name, split in split_of(zero).items() if split == "train"
    }


def test_existing_splits_are_obeyed(tmp_path):
    twenty_images(tmp_path)
    splits = {"train": ["1.jpg"], "val": ["2.jpg", "gone.jpg"], "test": ["3.jpg", "2.jpg"]}
    write_json(tmp_path / "splits.json", {"seed": 9, "fractions": [0.5, 0.25, 0.25], "splits": splits})
    dataset = load_dataset(tmp_path, seed=9)
    assert {image.file_name for image in dataset.split("test")} == {"2.jpg", "3.jpg"}
    assert {image.file_name for image in dataset.split("val")} == {"2.jpg"}
    assert dataset.splits()["train"] == 18
    assert "put into train: 17 images that are not in splits.json" in dataset.notes
    assert "named in splits.json but not in the data set: 1 images" in dataset.notes


def test_existing_splits_made_otherwise_are_an_error(tmp_path):
    twenty_images(tmp_path)
    load_dataset(tmp_path, seed=1)
    with pytest.raises(ValueError, match=r"splits\.json was made with seed 1, not 2"):
        load_dataset(tmp_path, seed=2)
    assert load_dataset(tmp_path, seed=1).splits() == {"train": 16, "val": 2, "test": 2}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"splits": []}', '{"splits": {"train": [1]}}', '{"splits": {"train": 1}}']
)
def test_broken_splits_file_is_an_error_that_names_it(tmp_path, content):
    twenty_images(tmp_path)
    (tmp_path / "splits.json").write_text(content)
    with pytest.raises(ValueError, match=r"splits\.json"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_read_only_folder_still_gives_the_same_split(tmp_path, monkeypatch, failing):
    # Permissions would not stop a test that runs as root, so the write itself is made to fail.
    twenty_images(tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(failing, refuse)
        dataset = load_dataset(tmp_path)
    assert dataset.notes == (
        "could not write splits.json (Read-only file system): train 16, val 2, test 2 (seed 0, the same at every load)",
    )
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".jpg") == ["metadata.jsonl"]
    assert split_of(dataset) == split_of(load_dataset(tmp_path))
