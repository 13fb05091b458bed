"""Splits that a seed draws, and splits.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from helpers.data_folders import metadata, write_json

from captioner.datasets.dataset import CaptionDataset, load_dataset


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
