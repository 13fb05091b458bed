"""The table of an evaluation, alone or of several side by side, and the paper's rows in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.analysis.diversity import Diversity
from captioner.evaluation.comparison import Comparison, PaperRows, find_paper_rows, write_comparison, write_evaluation
from captioner.evaluation.scoring import Evaluation, Protocol

SEARCH = {"beam": 5, "length_power": 0.7}
PROTOCOL = Protocol("toy", "metadata", "val", "01", 2, 10, (), (4, 6), 30_000, "PTB", SEARCH, 1, 101, 0.95, "v1")
IMAGES = tuple(CaptionedImage(f"{n}.jpg", Path("x"), n, "val", ("one", "two"), None) for n in range(2))


def evaluation(name: str, score: float, cider: float | None = 50.0, kind: str = "model") -> Evaluation:
    spread = np.linspace(-2, 2, 101)
    scores = {"cider": cider, "bleu4": score}
    return Evaluation(
        name,
        kind,
        IMAGES,
        ("a | b", "c"),
        ("a b", "c"),
        (("one", "two"),) * 2,
        {key: value for key, value in scores.items() if value is not None},
        {"bleu4": np.array([score, score])},
        {key: value + spread for key, value in scores.items() if value is not None},
        Diversity(200, 150, "a dog | *runs*", 9, 1234, 30, 12, 9.87),
        about={"checksum": f"sum-of-{name}"} if kind == "model" else {"turns": 4},
    )


def test_one_model_with_people_and_the_paper() -> None:
    paper = PaperRows({"paper, soft": {"bleu4": 24.3, "meteor": 23.9}}, "the paper's rows are of other images")
    people = evaluation("humans", 19.96, kind="humans")
    text = Comparison(PROTOCOL, (evaluation("ours", 22.14),), people, paper, "no METEOR").to_text()
    lines = text.splitlines()
    assert lines[0] == "toy, val        BLEU-4    CIDEr-D"
    assert lines[1] == "ours         22.1 ±1.9  50.0 ±1.9"  # 95 % of -2..2 is -1.9..1.9
    assert lines[2] == "humans       20.0 ±1.9  50.0 ±1.9"
    assert lines[3] == "paper, soft  24.3          -"
    assert " ".join(lines[5].split()) == (
        "diversity distinct novel repetitive vocabulary mean length commonest which is"
    )
    assert lines[6].split() == ["ours", "75.0%", "15.0%", "6.0%", "1,234", "9.9", "4.5%", *["a", "dog", "|", "*runs*"]]
    assert "missing: no METEOR" in lines
    assert "the paper's rows are of other images" in lines
    assert any(line.startswith("humans: ") and "over 4 turns" in line for line in lines)
    protocol = [" ".join(line.split()) for line in lines]
    assert "images 2 of 10" in protocol
    assert "references 4 to 6 per image" in protocol
    assert "search beam 5, length power 0.7" in protocol
    assert "bootstrap 101 resamples of the images, seed 1" in protocol
    assert "ours checksum sum-of-ours" in protocol
    assert "against ours" not in text


def test_several_are_compared_with_the_first() -> None:
    first, better, same = evaluation("first", 20), evaluation("better", 23), evaluation("same", 20, cider=None)
    comparison = Comparison(PROTOCOL, (first, better, same))
    lines = comparison.to_text().splitlines()
    assert lines[1:4] == [
        "first     20.0 ±1.9   50.0 ±1.9",
        "better    23.0 ±1.9*  50.0 ±1.9",
        "same      20.0 ±1.9      -",
    ]
    assert [line.split() for line in lines[5:14]] == [
        ["against", "first", "BLEU-4", "CIDEr-D"],
        ["better", "+3.0", "+0.0"],
        ["95", "%", "from", "+3.0", "+0.0"],
        ["95", "%", "to", "+3.0", "+0.0"],
        ["p", "0.020", "1.000"],
        ["same", "+0.0", "-"],
        ["95", "%", "from", "+0.0", "-"],
        ["95", "%", "to", "+0.0", "-"],
        ["p", "1.000", "-"],
    ]
    content = json.loads(json.dumps(comparison.to_dict()))
    assert [row["name"] for row in content["rows"]] == ["first", "better", "same"]
    assert "against" not in content["rows"][0]
    against = content["rows"][1]["against"]
    assert against["name"] == "first"
    assert against["differences"]["bleu4"] == {
        "difference": 3.0,
        "interval": [pytest.approx(3), pytest.approx(3)],
        "p": pytest.approx(2 / 102),
    }
    assert content["protocol"]["references"] == [4, 6]


def test_markdown_is_a_table_whatever_the_names() -> None:
    text = Comparison(PROTOCOL, (evaluation("a|b <img>\n", 20),)).to_markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| toy, val | BLEU-4 | CIDEr-D |"
    assert rows[1] == "| --- | ---: | ---: |"
    assert rows[2] == r"| 'a\|b \<img\>\\n' | 20.0 ±1.9 | 50.0 ±1.9 |"
    assert any(row.endswith(r"| a dog \| \*runs\* |") for row in rows)


def test_people_alone() -> None:
    comparison = Comparison(PROTOCOL, (), evaluation("humans", 20, kind="humans"))
    assert comparison.to_text().splitlines()[1].startswith("humans")
    assert [row["kind"] for row in comparison.to_dict()["rows"]] == ["humans"]


def test_files(tmp_path: Path) -> None:
    own = evaluation("ours", 20)
    comparison = Comparison(PROTOCOL, (own,), missing="no METEOR")
    write_comparison(tmp_path, comparison)
    write_evaluation(tmp_path / "ours", own, comparison)
    assert (tmp_path / "comparison.txt").read_text() == comparison.to_text()
    assert (tmp_path / "comparison.md").read_text() == comparison.to_markdown()
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"][0]["scores"]["bleu4"] == 20
    metrics = json.loads((tmp_path / "ours" / "metrics.json").read_text())
    assert metrics["scores"] == {"cider": 50, "bleu4": 20}
    assert metrics["intervals"]["bleu4"] == [pytest.approx(18.1), pytest.approx(21.9)]
    assert (metrics["missing"], metrics["checksum"], metrics["paper"]) == ("no METEOR", "sum-of-ours", None)
    assert metrics["protocol"]["tokenizer"] == "PTB"
    assert json.loads((tmp_path / "ours" / "captions.json").read_text())[0] == {"image_id": 0, "caption": "a | b"}
    assert len((tmp_path / "ours" / "images.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("data", "soft"),
    [
        (("Flickr8k", "flickr8k"), (67.0, 19.5, 18.93)),
        (("flickr8k (Karpathy)", "karpathy"), (67.0, 19.5, 18.93)),
        (("flickr30k (Karpathy)", "karpathy"), (66.7, 19.1, 18.49)),
        (("coco (Karpathy)", "karpathy"), (70.7, 24.3, 23.90)),
        (("COCO 2014", "coco"), (70.7, 24.3, 23.90)),
        (("Flickr30k", "captions-txt"), (66.7, 19.1, 18.49)),
    ],
)
def test_the_papers_rows_by_data_set(data: tuple[str, str], soft: tuple[float, ...]) -> None:
    found = find_paper_rows(*data, "test", 1000)
    assert found is not None
    first, second = found.rows.values()
    assert (first["bleu1"], first["bleu4"], first["meteor"]) == soft
    assert list(found.rows) == ["Xu et al. (2015), soft", "Xu et al. (2015), hard"]
    assert second != first


@pytest.mark.parametrize("data", [("coconuts", "captions-txt"), ("coco", "metadata"), ("toy", "coco")])
def test_other_data_has_no_rows_in_the_paper(data: tuple[str, str]) -> None:
    assert find_paper_rows(*data, "test", 1000) is None


def test_a_note_where_images_are_not_the_papers() -> None:
    def note(*data: Any) -> str | None:
        found = find_paper_rows(*data)
        assert found is not None
        return found.note

    assert note("Flickr8k", "flickr8k", "test", 1000) is None
    assert note("coco (Karpathy)", "karpathy", "test", 5000) is None
    other = note("Flickr8k", "flickr8k", "val", 1000)
    assert other is not None
    assert other.endswith("the official test split of Flickr8k (1,000 images), the others on 1,000 images of val")
    limited = note("coco (Karpathy)", "karpathy", "test", 200)
    assert limited is not None
    assert limited.endswith("Karpathy's test split of COCO (5,000 images), the others on 200 images of test")
    official = note("COCO 2017", "coco", "val", 5000)
    assert official is not None
    assert official.endswith("the others on 5,000 images of val as coco has it")
