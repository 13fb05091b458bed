"""A description's numbers against values worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from captioner.datasets.dataset import CaptionDataset, CaptionedImage, Problems, load_dataset
from captioner.datasets.describe import SAMPLE_BYTES, Spread, describe, length_histogram


def write_image(path: Path, shade: int) -> None:
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(path, "JPEG")


@pytest.fixture
def dataset(tmp_path) -> CaptionDataset:
    lines = [
        ("a.jpg", "train", "A dog runs."),
        ("a.jpg", "train", "a dog runs"),
        ("a.jpg", "train", "A big dog sleeps here."),
        ("b.jpg", "train", "The dog!"),
        ("c.jpg", "test", "A zebra runs"),
        ("a.jpg", "test", "A dog"),
        ("d.jpg", "val", "one two three four five six seven eight nine ten"),
        ("gone.jpg", "val", "A missing picture"),
    ]
    for shade, name in enumerate("abc"):
        write_image(tmp_path / f"{name}.jpg", 80 * shade)
    (tmp_path / "d.jpg").write_bytes((tmp_path / "b.jpg").read_bytes())
    records = [{"file_name": name, "split": split, "text": text} for name, split, text in lines]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, records)))
    return load_dataset(tmp_path, tolerance=0.3)


def test_counts_and_lengths(dataset):
    # Images: a (train, 3 captions), b (train, 1), c (test, 1), a (test, 1), d (val, 1).
    # Lengths in words: 3, 3, 5, 2, 3, 2, 10.
    description = describe(dataset, minimum_count=2)
    assert (description.images, description.captions) == (5, 7)
    assert description.captions_per_image == Spread(1, 7 / 5, 1.0, 3, 3)
    assert description.caption_length == Spread(2, 4.0, 3.0, 10, 10)


def test_vocabulary_and_rate_of_unknown_words(dataset):
    # Train: dog 4, a 3, runs 2, and big, sleeps, here, the 1 each -> three words at a count of 2; 4 of 13 unknown.
    # Test: a zebra runs, a dog -> 1 of 5 unknown. Val: all 10 unknown. Distinct: 7 of train, zebra and ten numbers.
    description = describe(dataset, minimum_count=2)
    assert (description.vocabulary_size, description.vocabulary_source) == (3, "train")
    assert describe(dataset, minimum_count=1).vocabulary_size == 7
    assert description.distinct_words == 18
    assert list(description.splits) == ["train", "val", "test"]
    train, test, val = (description.splits[name] for name in ("train", "test", "val"))
    assert (train.images, train.captions, train.words, train.out_of_vocabulary) == (2, 4, 13, 4 / 13)
    assert (test.images, test.captions, test.words, test.out_of_vocabulary) == (2, 2, 5, 1 / 5)
    assert (val.images, val.captions, val.words, val.out_of_vocabulary) == (1, 1, 10, 1.0)


def test_problems_duplicates_and_overlap(dataset):
    description = describe(dataset)
    assert description.problems["missing image"].count == 1
    assert description.problems["missing image"].first == ("metadata.jsonl:8: no file gone.jpg",)
    assert description.duplicate_images == (("b.jpg", "d.jpg"),)
    assert description.duplicate_captions == (("a.jpg", "a dog runs"),)
    assert description.shared_by_name == ("a.jpg",)
    assert description.shared_by_content == (("b.jpg", "d.jpg"),)


def test_identical_images_of_one_split_are_not_shared(tmp_path):
    images = []
    for name in "ab":
        write_image(tmp_path / name, 0)
        images.append(CaptionedImage(name, tmp_path / name, name, "train", ("a dog",), None))
    description = describe(CaptionDataset("twins", "metadata", tmp_path, tuple(images), Problems(), ()))
    assert description.duplicate_images == (("a", "b"),)
    assert description.shared_by_content == ()


def test_files_that_differ_outside_the_sampled_middle_are_not_identical(tmp_path):
    images = []
    for name in ("a", "b", "c"):
        content = (b"c" if name == "c" else b"a") + bytes(3 * SAMPLE_BYTES)
        (tmp_path / name).write_bytes(content)
        images.append(CaptionedImage(name, tmp_path / name, name, "train", ("a dog",), None))
    description = describe(CaptionDataset("large", "metadata", tmp_path, tuple(images), Problems(), ()))
    assert description.duplicate_images == (("a", "b"),)


def test_unreadable_image_is_noted(tmp_path):
    image = CaptionedImage("gone.jpg", tmp_path / "gone.jpg", 1, "train", ("a dog",), None)
    description = describe(CaptionDataset("odd", "metadata", tmp_path, (image,), Problems(), ()))
    assert description.notes == ("not compared with the others: 1 unreadable images, first gone.jpg",)


def test_own_tokens_are_used_and_all_images_stand_in_for_a_missing_train_split(tmp_path):
    write_image(tmp_path / "a.jpg", 0)
    tokens = (("own", "tokens", "here"),)
    image = CaptionedImage("a.jpg", tmp_path / "a.jpg", 1, "test", ("Other words",), tokens)
    description = describe(CaptionDataset("own", "karpathy", tmp_path, (image,), Problems(), ()), minimum_count=1)
    assert description.caption_length.maximum == 3
    assert (description.vocabulary_size, description.vocabulary_source) == (3, "all images")
    assert description.splits["test"].out_of_vocabulary == 0.0


def test_spread_of_hundred_numbers():
    assert Spread.of(range(100, 0, -1)) == Spread(1, 50.5, 50.5, 95, 100)
    assert Spread.of([4]) == Spread(4, 4.0, 4.0, 4, 4)


def test_report_survives_json_and_names_what_was_found(dataset):
    description = describe(dataset, minimum_count=2)
    content = json.loads(json.dumps(description.to_dict()))
    assert content["splits"]["test"] == {"images": 2, "captions": 2, "words": 5, "out_of_vocabulary": 0.2}
    assert content["duplicate_images"] == [["b.jpg", "d.jpg"]]
    report = description.to_text()
    for line in (
        "captions            7",
        "caption length      min 2, mean 4.00, median 3, 95 % 10, max 10 words",
        "test                 2           2           5              20.00%",
        "missing image: 1",
        "    metadata.jsonl:8: no file gone.jpg",
        "    b.jpg = d.jpg",
        "images named in two splits: 1",
    ):
        assert line in report.splitlines()


def test_report_names_at_most_five_of_a_kind(tmp_path):
    write_image(tmp_path / "a.jpg", 0)
    image = CaptionedImage("a.jpg", tmp_path / "a.jpg", 1, "train", ("a dog",) * 9, None)
    report = describe(CaptionDataset("many", "metadata", tmp_path, (image,), Problems(), ("a note",))).to_text()
    assert report.count("    a.jpg: a dog\n") == 5
    assert "captions repeated for the same image: 8\n" in report
    assert "    and 3 more\n" in report
    assert "problems: none\n" in report
    assert report.endswith("\nnote: a note")


def test_histogram_is_a_png_with_a_panel_for_each_split(dataset, tmp_path):
    path = tmp_path / "lengths.png"
    length_histogram(dataset, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        width, three_panels = image.size
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20) or []}
    assert width == 1050
    assert (0x4C, 0x72, 0xB0) in colours
    only_train = CaptionDataset("one", dataset.format, dataset.root, dataset.split("train"), Problems(), ())
    length_histogram(only_train, path)
    with Image.open(path) as image:
        assert image.size[1] < three_panels
