"""A run that was stopped or killed, and went on, ends as if nothing had happened."""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_training import (
    Recorder,
    assert_same_runs,
    at_step,
    in_validation,
    read_log,
    run_toy,
    step_lines,
    toy_recipe,
    write_toy_boxes,
    write_toy_data,
)
from helpers.warm_process import WarmProcess

from captioner.files import CAN_LOCK
from captioner.model.checkpoint import TrainingState, load_checkpoint, load_training_state, save_checkpoint
from captioner.training.recipe import Recipe, recipe_to_dict
from captioner.training.run_folder import RunFolder

FLIPS = {"captions": 4, "captions_per_image": 2, "flips": True}
KILLS = 8
# Each has epochs of four steps, a validation after each of them.
KINDS: dict[str, dict[str, Any]] = {
    "averaged and flipped": {"optimiser": {"average": 0.9, "rate": 0.02}, "batches": FLIPS},
    "hard": {"attention": {"mode": "hard", "width": 8}, "optimiser": {"name": "rmsprop", "rate": 0.01}},
    "gumbel": {"attention": {"mode": "gumbel", "width": 8}, "optimiser": {"name": "adam", "rate": 0.01}},
    "glimpse": {
        "epochs": 1,
        "attention": {"mode": "glimpse", "glimpses": 2},
        "self_critical": {"epochs": 1, "samples": 2, "rate": 0.01},
    },
    "self-critical": {"epochs": 1, "self_critical": {"epochs": 1, "samples": 2, "rate": 0.01}},
    "tuned": {"tuning": {"from_epoch": 2, "rate": 1e-3}, "optimiser": {"average": 0.9}, "batches": FLIPS},
    "some blocks tuned": {"tuning": {"from_epoch": 2, "rate": 1e-3, "blocks": 3}, "batches": FLIPS},
    "boxes and mixed rewards": {
        "epochs": 1,
        "loss": {"guide": 0.5, "objects": 0.5},
        "tuning": {"from_epoch": 1, "rate": 1e-3, "blocks": 3},
        "optimiser": {"average": 0.9},
        "batches": FLIPS,
        "self_critical": {"epochs": 1, "samples": 2, "rate": 0.01, "cross_entropy": 0.3, "repeats": 0.2},
    },
}
STOPS: dict[str, Callable[[Recorder], bool]] = {
    "in the middle of an epoch": at_step(2),
    "at the last step of an epoch": at_step(4),
    "within a validation": in_validation(1),
    "in the second epoch": at_step(7),
    "within the last validation": in_validation(2),
}


pytestmark = pytest.mark.usefixtures("quick")


WholeRuns = Callable[[str], tuple[Recipe, Path]]


@pytest.fixture(scope="module")
def whole_runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> WholeRuns:
    """Runs that nothing interrupted, each made when it is first asked for."""
    write_toy_boxes(data)
    done: dict[str, tuple[Recipe, Path]] = {}

    def get(kind: str) -> tuple[Recipe, Path]:
        if kind not in done:
            done[kind] = toy_recipe(data, **KINDS[kind]), tmp_path_factory.mktemp("whole") / "run"
            outcome, recorder = run_toy(*done[kind])
            assert outcome is not None
            assert [position.step for position, _, _ in recorder.steps] == list(range(1, 9))
        return done[kind]

    return get


# Most are stopped where what they add could be lost; those that are not named here, everywhere.
PLACES = {
    "hard": ("in the middle of an epoch", "within a validation"),
    "gumbel": ("in the middle of an epoch", "in the second epoch"),
    "glimpse": ("in the middle of an epoch", "within the last validation"),
    "self-critical": ("at the last step of an epoch", "within a validation", "in the second epoch"),
    "tuned": ("at the last step of an epoch", "in the second epoch"),
    "some blocks tuned": ("in the second epoch", "within the last validation"),
}


@pytest.mark.parametrize(("kind", "stop"), [(kind, stop) for kind in KINDS for stop in PLACES.get(kind, STOPS)])
def test_a_stopped_run_goes_on_to_the_bit(kind: str, stop: str, whole_runs: WholeRuns, tmp_path: Path) -> None:
    recipe, whole = whole_runs(kind)
    outcome, before = run_toy(recipe, tmp_path / "run", stop=STOPS[stop])
    assert outcome is None
    outcome, after = run_toy(recipe, tmp_path / "run", resume=True)
    assert outcome is not None
    assert len(before.steps) + len(after.steps) == 8  # no step is done twice
    assert_same_runs(whole, tmp_path / "run")


def test_a_tuned_run_goes_on_with_the_caches_it_began_with(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, epochs=1, tuning={"from_epoch": 1, "rate": 1e-3})
    recipe = replace(recipe, data=(replace(recipe.data[0], features=str(tmp_path / "regions")),))
    run_toy(recipe, tmp_path / "run", stop=at_step(3))
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True)
    assert recorder.shown[0] == ("regions", 13, 13)  # all of them were there
    assert len(list((tmp_path / "regions").iterdir())) == 1


def test_stopped_after_every_single_step(whole_runs: WholeRuns, tmp_path: Path) -> None:
    recipe, whole = whole_runs("hard")

    def stop(recorder: Recorder) -> bool:
        # Not within a validation, which begins anew each time and would never end.
        return bool(recorder.shown) and (recorder.shown[-1][0] != "validation" or bool(recorder.steps))

    outcome, rounds = None, 0
    while outcome is None:
        rounds += 1
        assert rounds <= 8
        outcome, _ = run_toy(recipe, tmp_path / "run", resume=True, stop=stop)
    assert rounds == 8
    assert_same_runs(whole, tmp_path / "run")


def test_a_crash_goes_back_to_what_was_saved_last(whole_runs: WholeRuns, tmp_path: Path) -> None:
    """The log is longer than the checkpoint knows when a process dies; the lines in between are written anew."""
    recipe, whole = whole_runs("averaged and flipped")

    def fail(recorder: Recorder) -> bool:
        if len(recorder.steps) == 6:
            raise ConnectionResetError
        return False

    with pytest.raises(ConnectionResetError):
        run_toy(recipe, tmp_path / "run", stop=fail)
    assert len(step_lines(tmp_path / "run")) == 6
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True)
    assert [position.step for position, _, _ in recorder.steps] == [5, 6, 7, 8]  # saved after the first epoch
    assert_same_runs(whole, tmp_path / "run")


def test_a_crash_before_anything_was_saved_starts_anew(whole_runs: WholeRuns, tmp_path: Path) -> None:
    recipe, whole = whole_runs("gumbel")

    def fail(recorder: Recorder) -> bool:
        if len(recorder.steps) == 2:
            raise ConnectionResetError
        return False

    with pytest.raises(ConnectionResetError):
        run_toy(recipe, tmp_path / "run", stop=fail)
    run_toy(recipe, tmp_path / "run", resume=True)
    assert_same_runs(whole, tmp_path / "run")


def test_a_finished_run_has_nothing_left_to_do(whole_runs: WholeRuns) -> None:
    recipe, whole = whole_runs("hard")
    before = (whole / "log.jsonl").read_bytes()
    outcome, recorder = run_toy(recipe, whole, resume=True)
    assert outcome is not None
    assert outcome.steps == 8
    assert recorder.steps == []
    assert (whole / "log.jsonl").read_bytes() == before
    assert outcome.best == pytest.approx(max(line["bleu4"] for line in read_log(whole) if "bleu4" in line))


def test_saving_every_few_steps_changes_nothing_but_what_a_crash_loses(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, epochs=1, save_every=3)

    def fail(recorder: Recorder) -> bool:
        if len(recorder.steps) == 3:
            raise ConnectionResetError
        return False

    with pytest.raises(ConnectionResetError):
        run_toy(recipe, tmp_path / "run", stop=fail)
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True)
    assert [position.step for position, _, _ in recorder.steps] == [4]
    run_toy(toy_recipe(data, epochs=1), tmp_path / "other")
    assert_same_runs(tmp_path / "run", tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"decoder": {"hidden": 13}}, "decoder.hidden 12, not 13"),
        ({"optimiser": {"rate": 0.5}}, "optimiser.rate 0.01, not 0.5"),
        ({"attention": {"mode": "hard"}}, "attention.mode 'soft', not 'hard'"),
        ({"start": "elsewhere"}, "start None, not 'elsewhere'"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    run_toy(toy_recipe(data, epochs=1), tmp_path / "run", stop=at_step(2))
    before = (tmp_path / "run" / "log.jsonl").read_bytes()
    with pytest.raises(ValueError, match=rf"^\S*run was begun with {message}; .*--run \("):
        run_toy(toy_recipe(data, **{"epochs": 1, **changes}), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == before


def test_a_finished_run_is_extended(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1), tmp_path / "run")
    assert first is not None
    assert first.best_epoch == 1
    outcome, recorder = run_toy(toy_recipe(data, epochs=3), tmp_path / "run", resume=True)
    assert outcome is not None
    assert [position.step for position, _, _ in recorder.steps] == list(range(5, 13))
    assert recorder.said[0].startswith("epochs: 3 instead of 1, and the learning rate follows")
    validations = [line for line in read_log(tmp_path / "run") if "bleu4" in line]
    assert [line["epoch"] for line in validations] == [1, 2, 3]
    best = max(validations, key=lambda line: line["bleu4"])
    assert (outcome.best_epoch, outcome.best) == (best["epoch"], pytest.approx(best["bleu4"]))
    with pytest.raises(ValueError, match=r"run has trained 3 epochs already; epochs=2 is fewer$"):
        run_toy(toy_recipe(data, epochs=2), tmp_path / "run", resume=True)


def test_where_things_lie_may_change(data: Path, tmp_path: Path) -> None:
    run_toy(toy_recipe(data, epochs=1), tmp_path / "run", stop=at_step(2))
    (tmp_path / "moved").symlink_to(data)
    moved = toy_recipe(tmp_path / "moved", epochs=1, save_every=2, validation={"overlays": 1})
    outcome, recorder = run_toy(moved, tmp_path / "run", resume=True)
    assert outcome is not None
    assert len(recorder.steps) == 2


@pytest.mark.skipif(not CAN_LOCK, reason="this system has no file locks")
def test_a_run_that_is_being_trained_is_left_alone(data: Path, tmp_path: Path) -> None:
    recipe, run = toy_recipe(data, epochs=1), tmp_path / "run"
    told = r"^\S*run is being trained by another process; wait for it, or name another --run$"

    def look(recorder: Recorder) -> bool:
        if len(recorder.steps) < 2:
            return False
        log = (run / "log.jsonl").read_bytes()
        with pytest.raises(ValueError, match=told):
            run_toy(recipe, run, resume=True)
        with pytest.raises(ValueError, match=told):
            RunFolder(run).begin(recipe, 0)  # of one that found the folder empty
        assert log == (run / "log.jsonl").read_bytes() != b""
        return True

    assert run_toy(recipe, run, stop=look)[0] is None
    assert run_toy(recipe, run, resume=True)[0] is not None  # it was let go of


def test_a_run_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, epochs=1)
    run_toy(recipe, tmp_path / "run")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"^\S*run has a run already; .*--resume.*--run"):
        run_toy(recipe, tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_to_resume_where_there_is_nothing_is_to_begin(data: Path, tmp_path: Path) -> None:
    outcome, recorder = run_toy(toy_recipe(data, epochs=1), tmp_path / "run", resume=True)
    assert outcome is not None
    assert len(recorder.steps) == 4


def test_a_wish_to_stop_while_caches_are_filled_begins_no_run(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        run_toy(recipe, tmp_path / "run", stop=lambda recorder: True)
    assert not (tmp_path / "run").exists()
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None


def test_killed_at_random_points_a_run_ends_as_if_nothing_had_happened(data: Path, tmp_path: Path) -> None:
    settings = KINDS["averaged and flipped"] | {"epochs": 6, "save_every": 3}
    values = recipe_to_dict(toy_recipe(data, **settings))
    warm, chance = WarmProcess(), random.Random(0)
    assert warm.run(recipe=values, folder=str(tmp_path / "whole")) == [0]
    total = len(read_log(tmp_path / "whole"))
    run, log = tmp_path / "run", tmp_path / "run" / "log.jsonl"
    lengths = []
    for _ in range(KILLS):
        # Some kills come before a run has gone on at all, the others within a save or between two lines of the log.
        assert warm.run(recipe=values, folder=str(run), call=chance.randint(1, 180)) == [-signal.SIGKILL]
        lengths.append(log.read_bytes().count(b"\n") if log.exists() else 0)
    assert 0 < lengths[-1] < total, "the kills came too late or too early to mean anything"
    assert warm.run(recipe=values, folder=str(run)) == [0]
    warm.close()
    assert_same_runs(tmp_path / "whole", run)


SPOILED: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "no position": (lambda values, tensors: values.pop("position"), "it has no position"),
    "no baseline": (lambda values, tensors: values.pop("baseline"), "it has no baseline"),
    "another shape": (
        lambda values, tensors: tensors.update({"optimiser.0.exp_avg": torch.zeros(2)}),
        r"optimiser.0.exp_avg is \(2,\) of torch.float32, expected",
    ),
    "half a moment": (lambda values, tensors: tensors.pop("optimiser.0.exp_avg"), "its optimiser has exp_avg_sq, step"),
}


def test_a_damaged_state_is_refused_with_the_way_on(data: Path, tmp_path: Path) -> None:
    recipe, run = toy_recipe(data), tmp_path / "run"
    run_toy(recipe, run, stop=at_step(2))
    checkpoint, state = load_checkpoint(run / "last"), load_training_state(run / "last")
    assert state is not None
    for spoil, message in SPOILED.values():
        values, tensors = copy.deepcopy(state.values), {name: value.clone() for name, value in state.tensors.items()}
        spoil(values, tensors)
        save_checkpoint(run / "last", checkpoint, TrainingState(tensors, values))
        way_on = f"put a copy of {run}/last in its place, or remove it to train from the beginning"
        with pytest.raises(ValueError, match=f"^the training state in {run}/last is damaged: {message}.*; {way_on}$"):
            run_toy(recipe, run, resume=True)
    save_checkpoint(run / "last", checkpoint, state)
    outcome, _ = run_toy(recipe, run, resume=True)
    assert outcome is not None


def test_regions_that_are_no_numbers_are_refused_by_training(tmp_path: Path) -> None:
    recipe = toy_recipe(write_toy_data(tmp_path / "data"))
    run_toy(recipe, tmp_path / "first", stop=at_step(2))
    [regions] = tmp_path.glob("data-regions/*/regions.f16")
    halves = np.fromfile(regions, np.float16)
    halves[7] = np.nan
    halves.tofile(regions)
    with pytest.raises(ValueError, match=r"^the regions of 000\.png in .* are not finite numbers; to fill it anew"):
        run_toy(recipe, tmp_path / "second")
