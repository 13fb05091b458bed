from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_judge import ToyJudge, ToyScores

from captioner.datasets.annotations import Problems
from captioner.datasets.dataset import CaptionDataset, CaptionedImage
from captioner.evaluation import scoring
from captioner.evaluation.scoring import Evaluator, code_version, take_split

WORDS = ["a dog runs on the beach", "a cat sits on a chair", "two men ride red bikes", "a child plays in the snow"]


def dataset(references: int = 3, images: int = 4) -> CaptionDataset:
    chance = np.random.default_rng(0)

    def captions(number: int) -> tuple[str, ...]:
        ends = chance.choice(["again now", "now here", "here"], references)
        return tuple(f"{WORDS[number % 4]} {end}." for end in ends)

    own = [
        CaptionedImage(f"{number}.jpg", Path(f"{number}.jpg"), number, "val", captions(number), None)
        for number in range(images)
    ]
    training = CaptionedImage("t.jpg", Path("t.jpg"), 99, "train", ("A dog runs on the beach.", "x"), None)
    return CaptionDataset("toy", "metadata", Path(), (*own, training), Problems(), ())


def evaluator(data: CaptionDataset, **settings: Any) -> Evaluator:
    judge: Any = ToyJudge()
    return Evaluator(judge, take_split(data, "val"), **settings)


def test_scores_are_the_judges_and_intervals_are_around_them() -> None:
    found = evaluator(dataset(), resamples=200).evaluate("toy", WORDS, about={"checksum": "1"})
    expected = ToyScores(WORDS, [ToyJudge().tokenize(image.captions) for image in found.images])
    assert found.scores == expected.corpus
    assert np.array_equal(found.image_scores["cider"], expected.images["cider"])
    assert found.resampled["cider"].shape == (200,)
    for name, interval in found.intervals().items():
        assert interval.low < np.mean(found.image_scores[name]) < interval.high
    assert found.diversity.novel == 3  # of four, the first is a training caption but for its full stop
    assert found.to_dict()["intervals"]["cider"] == [found.intervals()["cider"].low, found.intervals()["cider"].high]
    assert found.to_dict()["checksum"] == "1"


def test_the_same_images_are_drawn_for_every_system() -> None:
    own = evaluator(dataset(images=30), resamples=100)
    worse = own.evaluate("worse", ["a dog"] * 30)
    better = own.evaluate("better", [image.captions[0] for image in own.split.images])
    differences = better.against(worse)
    assert differences["cider"].value == pytest.approx(better.scores["cider"] - worse.scores["cider"])
    assert differences["cider"].p == pytest.approx(2 / 101)
    again = own.evaluate("again", ["a dog"] * 30).against(worse)
    assert all((each.value, each.p) == (0, 1) for each in again.values())


def test_people_are_scored_by_each_other_in_turn() -> None:
    own = evaluator(dataset(references=3), resamples=50)
    found = own.evaluate_humans()
    turns = []
    for turn in range(3):
        texts = [image.captions[turn] for image in own.split.images]
        others = [[text for place, text in enumerate(image.captions) if place != turn] for image in own.split.images]
        turns.append(ToyJudge().score(texts, others))
    for name in found.scores:
        assert found.scores[name] == pytest.approx(np.mean([each.corpus[name] for each in turns]))
        assert found.image_scores[name] == pytest.approx(np.mean([each.images[name] for each in turns], axis=0))
    assert found.resampled["cider"].shape == (50,)
    assert (found.kind, found.about["turns"]) == ("humans", 3)
    with pytest.raises(ValueError, match="4 of 4 images have one reference; people need two"):
        evaluator(dataset(references=1)).evaluate_humans()


def test_people_have_as_many_turns_as_the_image_with_fewest_references() -> None:
    data = dataset(references=3)
    first = data.images[0]
    data = CaptionDataset(
        data.name,
        data.format,
        data.root,
        (CaptionedImage(first.file_name, first.path, 0, "val", first.captions[:2], None), *data.images[1:]),
        data.problems,
        (),
    )
    found = evaluator(data)
    assert found.evaluate_humans().about["turns"] == 2
    assert found.protocol().references == (2, 3)


def test_limits_are_spread_over_the_split_and_told() -> None:
    data = dataset(images=10)
    split = take_split(data, "val", 4)
    assert [image.image_id for image in split.images] == [0, 2, 5, 7]
    assert take_split(data, "val", 99).images == take_split(data, "val").images
    assert split.digest == take_split(data, "val").digest
    assert split.digest != take_split(dataset(images=9), "val").digest
    with pytest.raises(ValueError, match="limit is 0"):
        take_split(data, "val", 0)
    with pytest.raises(ValueError, match="no split 'test', only train, val"):
        take_split(data, "test")


def test_the_protocol_tells_what_there_is_to_know() -> None:
    judge: Any = ToyJudge()
    split = take_split(dataset(images=10), "val", 5).leave_out(["2.jpg", "4.jpg"])
    protocol = Evaluator(judge, split, resamples=7, seed=3).protocol({"beam": 5})
    assert (protocol.data, protocol.format, protocol.split) == ("toy", "metadata", "val")
    assert (protocol.images, protocol.split_images) == (3, 10)
    assert protocol.left_out == ("2.jpg", "4.jpg")
    assert protocol.references == (3, 3)
    assert (protocol.training_captions, protocol.tokenizer) == (2, "toy")
    assert (protocol.seed, protocol.resamples, protocol.level) == (3, 7, 0.95)
    assert protocol.search == {"beam": 5}
    with pytest.raises(ValueError, match="none of the 3 images of val could be captioned"):
        split.leave_out(["0.jpg", "6.jpg", "8.jpg"])


def test_without_training_captions_nothing_is_called_novel() -> None:
    data = dataset()
    alone = CaptionDataset(data.name, data.format, data.root, data.images[:-1], data.problems, ())
    assert evaluator(alone, resamples=2).evaluate("toy", WORDS).diversity.novel is None


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_told_of_a_checkout_and_of_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "captioner" / "evaluation"
    package.mkdir(parents=True)
    (package / "scoring.py").write_text("1")
    monkeypatch.setattr(scoring, "__file__", str(package / "scoring.py"))
    assert code_version() == f"captioner {scoring.__version__}"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    clean = code_version()
    assert clean.startswith(f"captioner {scoring.__version__}, commit ")
    assert "changes" not in clean
    (package / "scoring.py").write_text("2")
    assert code_version() == f"{clean} with changes"
    inner = tmp_path / "lib" / "captioner" / "evaluation"
    inner.mkdir(parents=True)
    monkeypatch.setattr(scoring, "__file__", str(inner / "scoring.py"))
    assert code_version() == f"captioner {scoring.__version__}"

    def no_git(*_: Sequence[str], **__: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(scoring.subprocess, "run", no_git)
    assert code_version() == f"captioner {scoring.__version__}"
