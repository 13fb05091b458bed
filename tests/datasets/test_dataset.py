"""What is common to all formats: recognition, problems, tolerance, splits."""

from __future__ import annotations

import re

import pytest
from helpers.data_folders import (
    captions_by_name,
    flickr8k,
    karpathy,
    metadata,
)

from captioner.datasets.dataset import FORMATS, Problems, load_dataset

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
