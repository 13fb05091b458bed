from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.data_folders import write_json
from helpers.toy_captions import GRID, caption_of

from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.analysis.analysis import Analysis, analyse, write_analysis
from captioner.evaluation.analysis.diversity import measure_diversity
from captioner.evaluation.comparison import Comparison
from captioner.evaluation.scoring import Evaluation, Protocol
from captioner.images.preprocessing import Preprocessing

SIZE = (90, 70)  # ten pixels a cell
PROTOCOL = Protocol("toy", "coco", "val", "01", 2, 2, (), (1, 1), 0, "PTB", None, 0, 20, 0.95, "v1")


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


def write(folder: Path, *evaluations: Evaluation, root: Path | None = None) -> Analysis:
    """Analyse evaluations into a folder for each."""
    analysis = analyse(Comparison(PROTOCOL, evaluations), root)
    write_analysis(folder, {own.name: folder / own.name for own in evaluations}, analysis)
    return analysis


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}


@pytest.mark.parametrize(("known", "share"), [(2, 0.5), (1, 1.0)])
def test_diagnostics_and_grounding(tmp_path: Path, known: int, share: float) -> None:
    write_instances(tmp_path / "data", known)
    analysis = write(tmp_path / "out", evaluation(), root=tmp_path / "data")
    diagnostics = json.loads((tmp_path / "out" / "toy" / "diagnostics.json").read_text())
    assert (diagnostics["captions"], diagnostics["regions"]) == (2, 63)
    grounding = json.loads((tmp_path / "out" / "toy" / "grounding.json").read_text())
    assert grounding["captions"] == known
    assert grounding["overall"]["pointing"]["attention"]["value"] == pytest.approx(share)
    assert (tmp_path / "out" / "toy" / "grounding.txt").read_text() == analysis.grounding["toy"].to_text() + "\n"
    assert (tmp_path / "out" / "toy" / "diagnostics.txt").read_text() == analysis.diagnostics["toy"].to_text() + "\n"


def test_no_grounding_without_objects(tmp_path: Path) -> None:
    write_instances(tmp_path / "data")
    write(tmp_path / "out", evaluation(folder="photos"), root=tmp_path / "data")
    write_instances(tmp_path / "none", 0)
    write(tmp_path / "other", evaluation(), root=tmp_path / "none")
    known = {"lengths.json", "lengths.txt", "toy/diagnostics.json", "toy/diagnostics.txt"}
    assert files(tmp_path / "out") == files(tmp_path / "other") == known


def test_captions_of_others_have_no_attention(tmp_path: Path) -> None:
    analysis = write(tmp_path, replace(evaluation(), captions=None), root=tmp_path)
    assert files(tmp_path) == {"lengths.json", "lengths.txt"}
    assert analysis.errors["toy"].captions == 2


def test_people_alone_leave_no_files(tmp_path: Path) -> None:
    people = replace(evaluation("people"), kind="humans", captions=None)
    analysis = analyse(Comparison(PROTOCOL, (), people), tmp_path)
    write_analysis(tmp_path, {}, analysis)
    assert files(tmp_path) == set()
    assert list(analysis.errors) == ["people"]


def test_a_caption_without_words_and_without_a_grid(tmp_path: Path) -> None:
    write_instances(tmp_path / "data")
    own = evaluation()
    assert own.captions is not None
    none = np.zeros(0, dtype=np.float32)
    silent = replace(
        own.captions[0], text="", words=(), probabilities=none, beta=none, attention=np.zeros((0, 1, 1), np.float32)
    )
    analysis = write(tmp_path, replace(own, captions=(silent, own.captions[1])), root=tmp_path / "data")
    assert (analysis.diagnostics["toy"].regions, analysis.diagnostics["toy"].empty) == (63, 1)
    assert analysis.grounding["toy"].overall.words == 1


def test_lengths_of_several(tmp_path: Path) -> None:
    write(tmp_path, evaluation("first"), evaluation("second"))
    content = json.loads((tmp_path / "lengths.json").read_text())
    assert list(content["models"]) == ["first", "second"]
    assert [bucket["images"] for bucket in content["buckets"]] == [1, 1]
    assert "second minus first" in (tmp_path / "lengths.txt").read_text()
