"""The real data sets, where they are at hand: CAPTIONER_FLICKR8K and CAPTIONER_COCO name their folders."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from captioner.datasets.dataset import CaptionDataset, load_dataset
from captioner.datasets.describe import describe


def folder(variable: str) -> Path:
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set to the folder of the data set")
    return Path(os.environ[variable])


@pytest.fixture(scope="module")
def flickr8k() -> CaptionDataset:
    return load_dataset(folder("CAPTIONER_FLICKR8K"))


@pytest.fixture(scope="module")
def coco() -> CaptionDataset:
    return load_dataset(folder("CAPTIONER_COCO"))


def test_flickr8k_has_its_official_splits(flickr8k):
    assert flickr8k.format == "flickr8k"
    assert flickr8k.splits() == {"train": 6000, "val": 1000, "test": 1000}
    assert {len(image.captions) for image in flickr8k.images} == {5}
    assert len(flickr8k.problems) == 0
    assert all(image.path.is_file() for image in flickr8k.images[::100])


def test_flickr8k_description_agrees_with_a_plain_count(flickr8k):
    text = flickr8k.root / "Flickr8k_text"
    training = set((text / "Flickr_8k.trainImages.txt").read_text().split())
    counts: Counter[str] = Counter()
    for line in (text / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        key, caption = line.split("\t")
        if key.split("#")[0] in training:
            # Captions of letters and spaced punctuation alone; the rest is what the tokenizer is for.
            counts.update(word for word in caption.lower().split() if re.fullmatch("[a-z]+", word))
    description = describe(flickr8k)
    assert (description.images, description.captions) == (8000, 40000)
    assert sum(split.words for split in description.splits.values()) == round(description.caption_length.mean * 40000)
    plain = sum(count >= 5 for count in counts.values())
    assert plain <= description.vocabulary_size <= 1.05 * plain
    assert 0 < description.splits["train"].out_of_vocabulary < description.splits["test"].out_of_vocabulary < 0.05
    assert description.shared_by_name == description.shared_by_content == ()
    for group in description.duplicate_images:
        assert len({(flickr8k.root / name).read_bytes() for name in group}) == 1


def test_coco_description_agrees_with_the_annotation_files(coco):
    assert coco.format == "coco"
    assert coco.splits() == {"train": 80, "val": 39}
    description = describe(coco, minimum_count=1)
    for split in ("train", "val"):
        content = json.loads((coco.root / "annotations" / f"captions_{split}2017.json").read_text(encoding="utf-8"))
        assert description.splits[split].captions == len(content["annotations"])
        expected = {(record["image_id"], record["caption"].strip()) for record in content["annotations"]}
        assert {(image.image_id, text) for image in coco.split(split) for text in image.captions} == expected
    assert description.splits["train"].out_of_vocabulary == 0.0
    assert description.splits["val"].out_of_vocabulary > 0.0
    contents = {(coco.root / image.file_name).read_bytes() for image in coco.images}
    duplicates = sum(len(group) - 1 for group in description.duplicate_images)
    assert len(contents) == len(coco.images) - duplicates
