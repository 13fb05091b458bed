from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_folders import write_json
from toy_captions import GRID, caption_of

from captioner.datasets import CaptionedImage
from captioner.evaluation import Evaluation
from captioner.images import Preprocessing
from captioner.measures.attention_files import write_attention, write_lengths
from captioner.measures.diversity import measure_diversity

SIZE = (90, 70)  # ten pixels a cell


def evaluation(name: str = "toy", folder: str = "val2017") -> Evaluation:
    """Two images with a dog in the first row and column, where one caption looks and the other does not."""
    attention = np.zeros((2, 2, *GRID))  # (images, T, rows, columns)
    attention[0, :, 0, 0] = 1
    attention[1, :, 3, 4] = 1
    geometry = Preprocessing(63).geometry(*SIZE)
    images = tuple(
        CaptionedImage(f"{folder}/{number}.jpg", Path("x"), number, "val", ("a dog",), None) for number in range(2)
    )
    texts = ("a dog", "a dog")
    return Evaluation(
        name,
        "model",
        images,
        texts,
        texts,
        (("a dog",), ("a dog runs",)),
        {"cider": 1.0},
        {"cider": np.ones(2)},
        {"cider": np.ones(3)},
        measure_diversity(texts),
        tuple(caption_of(own, geometry, ("a", "dog")) for own in attention),
    )


def write_instances(root: Path, images: int = 2) -> None:
    content = {
        "images": [{"id": number, "width": SIZE[0], "height": SIZE[1]} for number in range(images)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [0, 0, 10, 10], "iscrowd": 0}
            for number in range(images)
        ],
        "categories": [{"id": 1, "name": "dog"}],
    }
    write_json(root / "annotations" / "instances_val2017.json", content)


@pytest.mark.parametrize(("known", "share"), [(2, 0.5), (1, 1.0)])
def test_diagnostics_and_grounding(tmp_path: Path, known: int, share: float) -> None:
    write_instances(tmp_path / "data", known)
    write_attention(tmp_path, evaluation(), tmp_path / "data", resamples=20)
    diagnostics = json.loads((tmp_path / "diagnostics.json").read_text())
    assert (diagnostics["captions"], diagnostics["regions"]) == (2, 63)
    grounding = json.loads((tmp_path / "grounding.json").read_text())
    assert grounding["captions"] == known
    assert grounding["overall"]["pointing"]["attention"]["value"] == pytest.approx(share)
    for name in ("diagnostics", "grounding"):
        assert (tmp_path / f"{name}.txt").read_text().endswith("\n")


def test_no_grounding_without_objects(tmp_path: Path) -> None:
    write_instances(tmp_path / "data")
    write_attention(tmp_path, evaluation(folder="photos"), tmp_path / "data")
    assert not (tmp_path / "grounding.json").exists()
    assert (tmp_path / "diagnostics.json").exists()


def test_captions_of_others_have_no_attention(tmp_path: Path) -> None:
    own = evaluation()
    object.__setattr__(own, "captions", None)
    with pytest.raises(ValueError, match="toy has no attention"):
        write_attention(tmp_path, own, tmp_path)


def test_lengths_of_several(tmp_path: Path) -> None:
    write_lengths(tmp_path, [evaluation("first"), evaluation("second")], resamples=20)
    content = json.loads((tmp_path / "lengths.json").read_text())
    assert list(content["models"]) == ["first", "second"]
    assert [bucket["images"] for bucket in content["buckets"]] == [1, 1]
    assert "second minus first" in (tmp_path / "lengths.txt").read_text()
