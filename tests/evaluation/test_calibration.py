"""Confidence fitted on scored captions: the mathematics, and the command that writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_captioner import make_toy, save_toy, write_images
from helpers.toy_captions import flat
from helpers.toy_judge import ToyJudge

import captioner
from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.datasets.dataset import load_dataset
from captioner.evaluation.calibration import (
    QUANTILE,
    calibrate,
    calibration_error,
    cross_validated,
    describe,
    fit_logistic,
    human_scores,
)
from captioner.evaluation.metrics import judge
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD
from captioner.evaluation.scoring import Evaluation, Evaluator, Protocol, take_split
from captioner.model.confidence import CONFIDENCE, read_calibration
from captioner.model.encoders.encoder import Encoder

BEAM = {"method": "beam", "beam": 5}


def draw(count: int, intercept: float, slope: float) -> tuple[Any, Any, Any]:
    """Return values, how likely each is accepted, and whether it was."""
    chance = np.random.default_rng(0)
    values = -chance.gamma(4.0, 0.2, count)
    likely = 1 / (1 + np.exp(-intercept - slope * values))
    return values, likely, chance.random(count) < likely


def test_a_known_curve_is_found_again() -> None:
    values, _, accepted = draw(40_000, 3.0, 4.0)
    assert fit_logistic(values, accepted) == pytest.approx((3.0, 4.0), abs=0.15)


def test_the_curve_is_the_likeliest() -> None:
    """At the maximum both derivatives of the log likelihood are zero: means agree, plain and weighted by the values."""
    values, _, accepted = draw(500, 3.0, 4.0)
    intercept, slope = fit_logistic(values, accepted)
    residual = accepted - 1 / (1 + np.exp(-intercept - slope * values))
    assert abs(residual.mean()) < 1e-6
    assert abs((residual * values).mean()) < 1e-5  # but for what keeps the slope finite


def test_captions_that_are_told_apart_have_a_finite_curve() -> None:
    values = np.linspace(-2, 0, 60)
    intercept, slope = fit_logistic(values, values > -0.7)
    likely = 1 / (1 + np.exp(-intercept - slope * values))
    assert slope < 1000
    assert ((likely > 0.5) == (values > -0.7)).all()


@pytest.mark.parametrize(
    ("values", "accepted", "message"),
    [
        ([-1.0, -2.0], [True, True], "all captions are accepted"),
        ([-1.0, -2.0], [False, False], "no captions are accepted"),
        ([-1.0, -1.0], [True, False], "equally probable"),
        ([-1.0, -2.0, -3.0, -4.0], [False, True, False, True], "are not better"),
    ],
)
def test_what_has_no_curve(values: list[float], accepted: list[bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_logistic(np.array(values), np.array(accepted))


def test_the_error_by_hand() -> None:
    likely = np.array([0.1, 0.3, 0.8, 0.8])
    accepted = np.array([False, False, True, False])
    # Two bins: means 0.2 against 0, and 0.8 against 0.5.
    assert calibration_error(likely, accepted, bins=2) == pytest.approx((0.2 + 0.3) / 2)
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


def test_the_error_is_small_where_the_curve_is_right_and_large_where_it_is_not() -> None:
    values, likely, accepted = draw(20_000, 3.0, 4.0)
    assert calibration_error(likely, accepted) < 0.02
    assert calibration_error(cross_validated(values, accepted), accepted) < 0.02
    assert calibration_error(likely**3, accepted) > 0.1


def test_people_are_scored_by_the_others() -> None:
    references = [["a dog runs", "a dog runs fast", "the cat"], ["a boat", "a red boat"], ["two men", "two men sit"]]
    found = human_scores(references)
    assert found.shape == (6,)  # two turns of three images
    first = CiderD([own[1:] for own in references]).score([own[0] for own in references])
    assert found[:3] == pytest.approx(100 * first)
    with pytest.raises(ValueError, match="one reference"):
        human_scores([["a dog"], ["a cat", "cats"]])


@pytest.fixture
def scored(tmp_path: Path) -> tuple[Evaluation, Protocol]:
    """Two hundred captions, of which the more probable half is what people said, but for some."""
    paths = write_images(tmp_path / "data", 200)
    subjects, places = ("dog", "cat", "man", "boat", "child"), ("beach", "street", "table", "hill")
    lines, captions, texts = [], [], []
    for number, path in enumerate(paths):
        subject, place = subjects[number % 5], places[number % 4]
        said = [f"a {subject} on the {place}", f"the {subject} is on a {place}", f"one {subject} at a {place} today"]
        lines += [json.dumps({"file_name": path.name, "text": text, "split": "val"}) for text in said]
        good = (number < 100) != (number % 10 == 0)
        texts.append(said[0] if good else "nobody knows what this is")
        captions.append(replace(flat(5, (20, 10)), text=texts[-1], log_prob=-6 * (0.2 + number / 200)))
    (tmp_path / "data" / "metadata.jsonl").write_text("\n".join(lines))
    split = take_split(load_dataset(tmp_path / "data"), "val")
    evaluator = Evaluator(ToyJudge(), split, resamples=2)  # type: ignore[arg-type]
    about = {"checksum": "0123456789abcdef"}
    return evaluator.evaluate("toy", texts, captions=captions, about=about), evaluator.protocol(BEAM)


def test_a_calibration_of_scored_captions(scored: tuple[Evaluation, Protocol]) -> None:
    found = calibrate(*scored)
    assert (found.model, found.data, found.split, found.images) == ("0123456789abcdef", "data", "val", 200)
    assert found.search == BEAM
    humans = human_scores(scored[0].references)
    assert (humans < found.accepted_from).mean() <= QUANTILE <= (humans <= found.accepted_from).mean()
    assert 80 < found.low.images < 120
    assert found.low.accepted is not None
    assert found.low.accepted < 0.3
    assert found.others.accepted is not None
    assert found.others.accepted > 0.7
    assert found.confidence(-6 * 0.3, 5) > 0.6 > 0.4 > found.confidence(-6 * 1.1, 5)
    assert describe(found).startswith("50% of 200 captions accepted (CIDEr-D of ")
    assert f"of the {found.low.images} of low confidence" in describe(found)


def test_what_cannot_be_calibrated(scored: tuple[Evaluation, Protocol]) -> None:
    evaluation, protocol = scored
    assert evaluation.captions is not None
    refused: list[tuple[Evaluation, Protocol, str]] = [
        (replace(evaluation, captions=None), protocol, "beam search"),
        (evaluation, replace(protocol, search={"method": "sample"}), "beam search"),
        (replace(evaluation, captions=evaluation.captions[:9]), protocol, "9 images are too few; at least 50"),
        (replace(evaluation, captions=evaluation.captions[::-1]), protocol, "more probable captions are not better"),
        (replace(evaluation, references=(("a b c d", "e f g h"),) * 200), protocol, "too little in common"),
    ]
    for captions, about, message in refused:
        with pytest.raises(ValueError, match=f"toy cannot be calibrated: .*{message}"):
            calibrate(captions, about)


def test_from_evaluation_to_captions(
    lite0: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model is evaluated, calibrated, exported with what was found, and then tells its confidence."""
    monkeypatch.setattr("captioner.model.checkpoint.load_encoder", lambda config, **_: lite0)
    monkeypatch.setattr(judge, "Judge", ToyJudge)
    monkeypatch.chdir(tmp_path)
    save_toy(tmp_path / "model", lite0)
    paths = write_images(tmp_path / "data", 60)
    said = Captioner(make_toy(lite0), device="cpu").caption(paths)
    sure = [caption.log_prob / (len(caption.words) + 1) for caption in said]
    with (tmp_path / "data" / "metadata.jsonl").open("w") as lines:
        for number, (path, caption) in enumerate(zip(paths, said, strict=True)):
            good = sure[number] > np.median(sure)
            text = caption.text if good else f"number {number} shows something else"
            for reference in (text, text + " now", text + " again"):
                lines.write(json.dumps({"file_name": path.name, "text": reference, "split": "val"}) + "\n")
    command = ["evaluate", "model", "data", "--split", "val", "--out", "out", "--resamples", "2", "--device", "cpu"]
    assert main([*command, "--calibrate"]) == 0
    assert "of 60 captions accepted (CIDEr-D of" in capsys.readouterr().err
    calibration = read_calibration(tmp_path / "out" / CONFIDENCE, make_toy(lite0).digest)
    assert main(["export", "model", "calibrated", "--full-precision", "--confidence", f"out/{CONFIDENCE}"]) == 0
    model = captioner.load(tmp_path / "calibrated", device="cpu")
    assert model.digest == make_toy(lite0).digest  # so that what was captioned before stays
    found = model.caption(paths)
    assert [caption.words for caption in found] == [caption.words for caption in said]
    assert [caption.confidence for caption in found] == [
        calibration.confidence(caption.log_prob, len(caption.words)) for caption in found
    ]
    assert main(["evaluate", "calibrated", *command[2:]]) == 0  # what was evaluated before is still this model's
    assert "calibrated: 0 captioned, 60 there already" in capsys.readouterr().err
    (tmp_path / "calibrated" / CONFIDENCE).write_text("{")
    with pytest.raises(ValueError, match=r"confidence\.json is not valid JSON"):
        captioner.load(tmp_path / "calibrated", device="cpu")


@pytest.mark.parametrize("arguments", [["data", "--human"], ["coco-fast", "data", "--sample"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["evaluate", *arguments, "--calibrate", "--out", str(tmp_path / "out")]) == 2
    assert "--calibrate needs a model, and a beam search" in capsys.readouterr().err


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="calibrate needs a model, a beam search, and a folder out"):
        captioner.evaluate("coco-fast", tmp_path, calibrate=True)
