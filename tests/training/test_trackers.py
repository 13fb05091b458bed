from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.toy_training import Recorder, read_log, toy_recipe, write_toy_data

from captioner.training.log import tagged
from captioner.training.recipe import recipe_to_dict
from captioner.training.trackers import start_tracker
from captioner.training.train import train


class FakeRun:
    """What Weights & Biases is told of a run."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, Any]]] = []
        self.finished = False

    def log(self, values: dict[str, Any], step: int) -> None:
        self.lines.append((step, values))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FakeRun, dict[str, Any]]]:
    """The runs that are begun at a stand-in for wandb, with what they are begun with."""
    found: list[tuple[FakeRun, dict[str, Any]]] = []

    def init(**options: Any) -> FakeRun:
        found.append((FakeRun(), options))
        return found[-1][0]

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    module.Image = lambda path, caption: ("image", path, caption)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return found


def test_numbers_are_tagged_by_what_they_are_of() -> None:
    assert tagged({"step": 3, "epoch": 1, "loss": 2.0, "gradient": "inf"}) == {"train/epoch": 1, "train/loss": 2.0}
    line = {"step": 3, "bleu4": 9.0, "validation_loss": 2.5, "samples": []}
    assert tagged(line) == {"validation/bleu4": 9.0, "validation/loss": 2.5}
    assert tagged({"step": 3, "set": "A b", "bleu4": 9.0}) == {"validation/A b/bleu4": 9.0}


@pytest.mark.usefixtures("quick")
def test_wandb_is_told_every_line_and_a_run_that_resumes_is_one(
    tmp_path: Path, begun: list[tuple[FakeRun, dict[str, Any]]]
) -> None:
    data = write_toy_data(tmp_path / "data")
    recipe = toy_recipe(data, epochs=1, validation={"beam": 1, "overlays": 1})
    train(recipe, tmp_path / "run", track=["wandb"])
    [(run, options)] = begun
    assert run.finished
    assert (options["project"], options["name"], options["resume"]) == ("captioner", "run", "allow")
    assert options["config"] == recipe_to_dict(recipe)
    lines = read_log(tmp_path / "run")
    assert [step for step, _ in run.lines] == [line["step"] for line in lines] == [1, 2, 3, 4, 4]
    assert run.lines[0][1]["train/loss"] == pytest.approx(lines[0]["loss"])
    picture = run.lines[-1][1]["validation/overlays/00"]
    assert picture == ("image", str(tmp_path / "run/overlays/epoch-001/00.png"), lines[-1]["samples"][0]["caption"])
    train(
        toy_recipe(data, epochs=2, validation={"beam": 1, "overlays": 1}),
        tmp_path / "run",
        track=["wandb"],
        resume=True,
    )
    assert begun[1][1]["id"] == options["id"]
    assert [step for step, _ in begun[1][0].lines] == [5, 6, 7, 8, 8]


@pytest.mark.usefixtures("quick")
def test_a_tracker_that_is_not_installed_is_said_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    recorder = Recorder()
    recipe = toy_recipe(write_toy_data(tmp_path / "data"), epochs=1)
    outcome = train(recipe, tmp_path / "run", listener=recorder, track=["wandb"])
    assert outcome.steps == 4
    told = "wandb is not installed: pip install 'captioner[wandb]'; training continues without it"
    assert recorder.warned[0] == told
    assert not (tmp_path / "run" / "wandb-id.txt").exists()


def test_what_wandb_refuses_is_one_line(
    tmp_path: Path, begun: list[tuple[FakeRun, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("no API key\nconfigured")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(ValueError, match=r"^wandb: no API key configured$"):
        start_tracker("wandb", tmp_path, toy_recipe(tmp_path))
    with pytest.raises(ValueError, match=r"^no tracker is called 'x'; choose from tensorboard, wandb$"):
        start_tracker("x", tmp_path, toy_recipe(tmp_path))
