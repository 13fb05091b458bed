"""Several processes that share a run do what one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.holding import PATIENCE, wait_until
from helpers.toy_training import (
    assert_same_runs,
    make_quick,
    read_log,
    run_toy,
    tensors_of,
    toy_recipe,
    write_toy_boxes,
    write_toy_data,
)
from helpers.warm_process import WarmProcess

from captioner.training.recipe import recipe_to_dict, to_yaml

# Odd numbers of images to train and to validate on, of one to three captions.
CAPTIONS = (1, 2, 3, 2, 2, 1, 2)
KINDS: dict[str, dict[str, Any]] = {
    "soft": {"decoder": {"dropout": 0.4}, "loss": {"reduction": "mean"}},
    "hard": {"attention": {"mode": "hard", "width": 8}, "decoder": {"dropout": 0.2}, "loss": {"reduction": "sum"}},
    "glimpse": {"attention": {"mode": "glimpse", "glimpses": 2}, "loss": {"reduction": "sum"}},
    "self-critical": {"epochs": 1, "self_critical": {"epochs": 1, "samples": 2, "rate": 0.01}},
    "tuned": {"epochs": 1, "tuning": {"from_epoch": 1, "rate": 1e-4}},
    "some blocks tuned": {"epochs": 1, "tuning": {"from_epoch": 1, "rate": 1e-4, "blocks": 3}},
    "boxes": {
        "epochs": 1,
        "attention": {"mode": "hard", "width": 8},
        "loss": {"guide": 0.5, "objects": 0.5},
        "tuning": {"from_epoch": 1, "rate": 1e-4, "blocks": 3},
        "batches": {"flips": True, "captions": 4, "captions_per_image": 2},
    },
    "mixed rewards": {
        "epochs": 1,
        "loss": {"guide": 0.5, "objects": 0.5, "reduction": "sum"},
        "self_critical": {"epochs": 1, "samples": 2, "rate": 0.01, "cross_entropy": 0.3, "repeats": 0.2},
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_toy_data(tmp_path_factory.mktemp("toy") / "data", CAPTIONS)
    write_toy_boxes(folder, 5)
    return folder


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmProcess]:
    warm = WarmProcess()
    yield warm
    warm.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def assert_near(one: Path, other: Path) -> None:
    """Check that two runs have the same numbers, but for the order in which sums were made."""
    first, second = read_log(one), read_log(other)
    assert len(first) == len(second)
    for line, same in zip(first, second, strict=True):
        assert line.keys() == same.keys()
        for name in line.keys() - {"captions_per_second", "memory_mb", "seconds"}:
            assert same[name] == pytest.approx(line[name], rel=1e-5, abs=1e-6), (line["step"], name)
    weights = tensors_of(one / "best")
    for name, tensor in tensors_of(other / "best").items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_processes_do_what_one_does(kind: str, data: Path, warm: WarmProcess, tmp_path: Path) -> None:
    recipe = toy_recipe(data, **KINDS[kind])
    run_toy(recipe, tmp_path / "one")
    job = {"recipe": recipe_to_dict(recipe), "folder": str(tmp_path / "two")}
    assert warm.run(processes=2, **job) == [0, 0]
    assert_near(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("kind", ["soft", "hard", "glimpse", "self-critical", "mixed rewards"])
def test_a_batch_may_have_fewer_images_than_there_are_processes(
    kind: str, data: Path, warm: WarmProcess, tmp_path: Path
) -> None:
    batches = {"captions": 2, "captions_per_image": 2}
    recipe = toy_recipe(data, **{**KINDS[kind], "epochs": 1}, batches=batches)
    run_toy(recipe, tmp_path / "one")
    job = {"recipe": recipe_to_dict(recipe), "folder": str(tmp_path / "three")}
    assert warm.run(processes=3, **job) == [0, 0, 0]
    assert_near(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize(("images", "shares"), [(0, [3, 2]), (1, [1, 0])])
def test_each_image_is_validated_once(
    images: int, shares: list[int], data: Path, warm: WarmProcess, tmp_path: Path
) -> None:
    """Processes have different numbers of images and of batches of them, or none at all."""
    recipe = toy_recipe(data, epochs=1, validation={"images": images, "overlays": 0})
    run_toy(recipe, tmp_path / "one")
    job = {"recipe": recipe_to_dict(recipe), "folder": str(tmp_path / "two"), "validation_batch": 2}
    assert warm.run(processes=2, **job) == [0, 0]
    assert_near(tmp_path / "one", tmp_path / "two")
    for rank, share in enumerate(shares):
        shown = json.loads((tmp_path / f"two-{rank}.json").read_text())["shown"]
        done = [done for what, done, total in shown if what == "validation"]
        assert max(done, default=0) == share


def test_a_wish_to_stop_in_one_process_stops_all_and_one_process_goes_on(
    data: Path, warm: WarmProcess, tmp_path: Path
) -> None:
    recipe = toy_recipe(data, **KINDS["hard"])
    run_toy(recipe, tmp_path / "one")
    job = {"recipe": recipe_to_dict(recipe), "folder": str(tmp_path / "two")}
    # A process that is not the first has no listener that counts steps: it wishes to stop from the beginning.
    assert warm.run(processes=2, stop_at={"1": 1}, **job) == [130, 130]
    assert len(read_log(tmp_path / "two")) == 1
    outcome, recorder = run_toy(recipe, tmp_path / "two", resume=True)
    assert outcome is not None
    assert recorder.steps[0][0].step == 2
    assert_near(tmp_path / "one", tmp_path / "two")


def test_only_the_first_process_speaks_and_fills_caches(data: Path, warm: WarmProcess, tmp_path: Path) -> None:
    values = recipe_to_dict(toy_recipe(data, epochs=1))
    values["data"][0]["features"] = str(tmp_path / "regions")
    assert warm.run(processes=2, recipe=values, folder=str(tmp_path / "two")) == [0, 0]
    told = [json.loads((tmp_path / f"two-{rank}.json").read_text()) for rank in range(2)]
    assert ["regions" in [what for what, _, _ in own["shown"]] for own in told] == [True, False]
    assert [bool(own["said"]) for own in told] == [True, False]


def find_worker(launcher: int, rank: int) -> int | None:
    """Return the process id of a child of torchrun."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if f"RANK={rank}".encode() in environment:
            return int(child)
    return None


def lines_in(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
def test_a_killed_worker_comes_back_and_the_run_ends_as_if_nothing_had_happened(
    data: Path, warm: WarmProcess, tmp_path: Path
) -> None:
    settings = {**KINDS["hard"], "epochs": 6, "save_every": 7, "validation": {"every": 3, "overlays": 0}}
    recipe = toy_recipe(data, **settings)
    run, log = tmp_path / "run", tmp_path / "run" / "log.jsonl"
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    command = ["-m", "helpers.holding", "--", "train", str(tmp_path / "recipe.yaml"), "--run", str(run), "--resume"]
    with (tmp_path / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [*launch, *command],
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HOLD": "captioner.training.run_folder:RunFolder.log=16"},
        )
        try:
            wait_until(lambda: lines_in(log) >= 12, lambda: process.poll() is None)
            worker = find_worker(process.pid, 0)
            assert worker is not None
            os.kill(worker, signal.SIGKILL)
            killed_at = lines_in(log)
            assert process.wait(timeout=PATIENCE) == 0, (tmp_path / "output.txt").read_text()
        finally:
            process.kill()
            process.wait()
    whole = tmp_path / "whole"
    assert warm.run(processes=2, recipe=recipe_to_dict(recipe), folder=str(whole)) == [0, 0]
    assert 12 <= killed_at < lines_in(whole / "log.jsonl"), "the kill came too late to mean anything"
    assert_same_runs(whole, run)
