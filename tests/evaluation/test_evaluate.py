"""`captioner.evaluate`: the same as the command, from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_captioner import make_toy
from helpers.toy_evaluation import COUNT, make_home, write_some
from helpers.toy_judge import ToyJudge

import captioner
from captioner.captioning.caption import Result
from captioner.captioning.captioner import Captioner
from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics import judge
from captioner.model.encoders.encoder import Encoder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Path:
    return make_home(tmp_path_factory.mktemp("evaluate"), lite0)


@pytest.fixture
def place(home: Path, lite0: Encoder, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("captioner.model.checkpoint.load_encoder", lambda config, **_: lite0)
    monkeypatch.setattr(judge, "Judge", ToyJudge)
    return home


@pytest.fixture
def model(place: Path, lite0: Encoder) -> Captioner:
    return Captioner(make_toy(lite0), device="cpu", name="loaded")


def evaluate(*arguments: Any, **settings: Any) -> Any:
    return captioner.evaluate(*arguments, device="cpu", resamples=40, **settings)


def test_a_model_by_its_folder_or_loaded_gives_the_same(place: Path, model: Captioner, tmp_path: Path) -> None:
    by_folder = evaluate(place / "one", place / "data", out=tmp_path / "out")
    loaded = evaluate(model, load_dataset(place / "data"))
    assert by_folder.scores["one"] == loaded.scores["loaded"]
    assert by_folder.evaluations[0].about == loaded.evaluations[0].about
    assert by_folder.evaluations[0].texts == loaded.evaluations[0].texts
    assert str(by_folder) == by_folder.to_text() == (tmp_path / "out" / "comparison.txt").read_text()
    assert by_folder.intervals["one"]["cider"].low <= by_folder.scores["one"]["cider"]
    assert loaded.analysis.diagnostics["loaded"].captions == COUNT
    assert loaded.evaluations[0].captions[0].attention.shape[1:] == model.grid
    assert type(model.preprocessing).__name__ == "Preprocessing"  # the model given is left as it was


def test_nothing_is_kept_without_a_folder(
    place: Path, model: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    evaluate(model, place / "data", limit=3)
    assert list(tmp_path.iterdir()) == []


def test_systems_of_all_sorts_side_by_side(place: Path, model: Captioner, tmp_path: Path) -> None:
    theirs = write_some(tmp_path / "theirs.json")
    found = evaluate(
        [str(place / "one"), model], place / "data", out=tmp_path / "out", results=theirs, human=True, limit=8,
        report=tmp_path / "report",
    )  # fmt: skip
    assert list(found.scores) == ["one", "loaded", "theirs", "humans, one left out"]
    assert found.scores["one"] == found.scores["loaded"]
    assert found.protocol.images == 8
    for name in ("one", "loaded", "theirs"):
        assert json.loads((tmp_path / "out" / name / "metrics.json").read_text())["scores"] == found.scores[name]
    assert (tmp_path / "report" / "report.html").is_file()


def test_people_alone(place: Path) -> None:
    found = evaluate([], place / "data", human=True)
    assert list(found.scores) == ["humans, one left out"]
    assert found.protocol.search is None


def test_the_search_is_set_by_keywords(place: Path, model: Captioner) -> None:
    assert evaluate(model, place / "data", limit=2, beam=2, seed=7).protocol.search["beam"] == 2
    drawn = evaluate(model, place / "data", limit=2, sample=True, temperature=0.5, seed=7).protocol
    assert (drawn.search["temperature"], drawn.search["seed"], drawn.seed) == (0.5, 7, 7)
    with pytest.raises(ValueError, match="temperature"):
        evaluate(model, place / "data", temperature=0.5)


def test_callers_are_told_and_nothing_is_printed(
    place: Path, model: Captioner, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    results: list[Result] = []
    evaluate(
        model, place / "data", split="test", limit=4, features=tmp_path, listen=results.append, note=told.append,
        progress=lambda *each: told.append(each),
    )  # fmt: skip
    assert [result.error for result in results] == [None] * 4
    assert ("loaded", 4, 4) in told
    assert [each.split(":")[0] for each in told if isinstance(each, str)] == ["loaded"] * 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        ([], {}, "nothing to evaluate"),
        ("nowhere", {}, "model is 'nowhere'"),
        ([], {"results": "nowhere.json"}, r"nowhere\.json"),
        ([], {"human": True, "split": "val"}, "no split 'val'"),
        ([], {"human": True, "limit": 0}, "limit is 0"),
    ],
)
def test_what_is_wrong_is_a_value_error(place: Path, models: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        evaluate(models, place / "data", **settings)
