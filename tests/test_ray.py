"""Data sets captioned by a real cluster of two workers, of which one is killed, and started again."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.holding import PATIENCE, wait_until
from helpers.tar_files import write_tar
from helpers.toy_captioner import save_toy, write_images

import captioner
from captioner.captioning.output.parts import Parts
from captioner.captioning.records import Origin
from captioner.captioning.units import Unit, Units
from captioner.cli import main
from captioner.images.key_set import KeySet
from captioner.model.encoders.encoder import Encoder
from captioner.ray import ATTEMPTS, Progress, Report, _Run, caption_dataset

PHOTOS, UNIT = 60, 4
BAD = "0007.jpg"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """This machine, as a cluster of two cores."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'captioner[ray]'")
    # Workers would step back behind everything else on the machine, other tests among it.
    settings = {
        "worker_niceness": "0",
        "worker_register_timeout_seconds": str(int(PATIENCE)),
        "agent_register_timeout_ms": str(int(1000 * PATIENCE)),
        "raylet_start_wait_time_s": str(int(PATIENCE)),
    }
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", **{f"RAY_{name}": value for name, value in settings.items()}}
    # Ray gives its own parts some seconds to start, which a very busy machine does not keep.
    for left in reversed(range(5)):
        try:
            ray.init(
                num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000
            )
            break
        except Exception:
            ray.shutdown()
            if not left:
                raise
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Path:
    """A model, photographs of which one is bad, and a shard of three with one that is bad."""
    folder = tmp_path_factory.mktemp("ray")
    save_toy(folder / "model", lite0)
    paths = write_images(folder / "photos", PHOTOS)
    (folder / "photos" / BAD).write_bytes(b"no image")
    members = {f"{number}.jpg": paths[number].read_bytes() for number in (0, 1)}
    write_tar(folder / "shard.tar", {**members, "bad.jpg": b""})
    return folder


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(out.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


def check(out: Path, folder: Path) -> None:
    """Check that every photograph has one row: what one process says of it, or why there is nothing to say."""
    rows = {row["file_name"]: row for row in read(out)}
    assert len(rows) == len(read(out)) == PHOTOS
    for result in captioner.caption_images(folder / "photos", folder / "model", beam=2):
        row = rows[result.name]
        assert row.get("text") == (result.captions[0].text if result.captions else None)
        assert ("error" in row) == result.name.endswith(BAD)


def has_stopped(pid: int) -> bool:
    """Tell whether all threads of a process have, which the signal alone is not."""
    states = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(state.read_text().rpartition(")")[2].split()[0] == "T" for state in states)


class Killer:
    """Stops the worker that is first heard of, which has its next unit then; kills it after two units of the other."""

    def __init__(self) -> None:
        self.workers: Counter[str] = Counter()
        self.killed = False

    def __call__(self, progress: Progress) -> None:
        self.workers[progress.worker] += 1
        victim, *others = self.workers
        pid = int(victim.rpartition(":")[2])
        if not others:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: has_stopped(pid))
        elif not self.killed and self.workers[others[0]] == 2:
            os.kill(pid, signal.SIGKILL)
            self.killed = True


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_nothing(folder: Path) -> None:
    killer = Killer()
    done = caption_dataset(
        folder / "photos", folder / "killed", folder / "model", format="jsonl", unit=UNIT, beam=2, listen=killer
    )
    assert killer.killed
    assert done.deaths == 1
    assert (done.captioned, done.failed, done.skipped, done.unfinished) == (PHOTOS - 1, 1, 0, ())
    # A worker has one model for all of its units.
    assert len(killer.workers) <= 3
    assert sum(killer.workers.values()) == PHOTOS / UNIT
    check(folder / "killed", folder)


class Stop(Exception):
    """The run ends in the middle."""


@pytest.mark.usefixtures("cluster")
def test_a_run_that_ended_early_is_resumed_without_repeating(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "resumed"

    def stop(progress: Progress) -> None:
        if progress.captioned + progress.failed >= 5 * UNIT:
            raise Stop

    with pytest.raises(Stop):
        caption_dataset(
            folder / "photos", out, folder / "model", format="jsonl", unit=UNIT, workers=1, beam=2, listen=stop
        )
    before = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert len(before) == 5
    # The command takes it up, with units of another size, and what was not there before.
    monkeypatch.chdir(folder)
    shard = f"file://{folder}/shard.tar"
    arguments = ["cluster", str(folder / "photos"), shard, "--out", str(out), "--model", "model", "--beam", "2"]
    assert main([*arguments, "--format", "jsonl", "--unit", "7", "--workers", "1"]) == 1
    assert f", {5 * UNIT} skipped, " in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows = [row for row in read(out) if "shard" in row]
    assert [(row["file_name"], "error" in row) for row in rows] == [
        (f"{shard}/0.jpg", False),
        (f"{shard}/1.jpg", False),
        (f"{shard}/bad.jpg", True),
    ]
    for path in [path for path in out.glob("part-*") if "shard" in path.read_text()]:
        path.unlink()
    check(out, folder)
    # All is done: nothing is started, and nothing changes.
    done = caption_dataset(folder / "photos", out, folder / "model", format="jsonl", beam=2)
    assert (done.captioned, done.failed, done.skipped) == (0, 0, PHOTOS)


@pytest.mark.usefixtures("cluster")
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the cluster has no room for a worker of 9 cores"):
        caption_dataset(folder / "photos", tmp_path / "a", folder / "model", cores=9)
    with pytest.raises(ValueError, match="workers is 0; it must be at least 1"):
        caption_dataset(folder / "photos", tmp_path / "a", folder / "model", workers=0)
    with pytest.raises(ValueError, match="there are no images in what was given"):
        caption_dataset([], tmp_path / "b", folder / "model")


# What happens without a cluster, which the loop does not tell from one


class _Error(Exception):
    pass


class _Died(_Error):
    pass


class Later:
    """What a worker's method will give; it is computed when it is asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


RAY = SimpleNamespace(
    wait=lambda refs, num_returns: (refs[:1], refs[1:]),
    get=lambda ref: ref.compute(),
    kill=lambda worker: None,
    exceptions=SimpleNamespace(RayError=_Error, RayActorError=_Died),
)


def method(compute: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(remote=lambda *given: Later(lambda: compute(*given)))


def run(names: list[str], out: Path, caption: Callable[[Unit], Any], name: Callable[[], str] = str) -> Report:
    """Run two workers that do as they are told."""
    with Parts(str(out), Origin("0123", {}), format="jsonl") as parts:
        units = Units(names, KeySet(), size=8)
        worker = SimpleNamespace(name=method(name), caption=method(caption))
        return _Run(RAY, lambda: worker, parts, units, lambda progress: None).caption(2)


def rows_of(unit: Unit) -> tuple[str, list[dict[str, Any]]]:
    return "worker", [{"file_name": name, "text": "a dog"} for name in unit.names]


def test_an_image_that_kills_its_workers_is_found_and_named(tmp_path: Path) -> None:
    def caption(unit: Unit) -> Any:
        if "5.jpg" in unit.names:
            raise _Died
        return rows_of(unit)

    done = run([f"{number}.jpg" for number in range(20)], tmp_path, caption)
    assert (done.captioned, done.failed) == (19, 1)
    rows = read(tmp_path)
    assert sorted(row["file_name"] for row in rows) == sorted(f"{number}.jpg" for number in range(20))
    assert [row for row in rows if "error" in row] == [
        {"file_name": "5.jpg", "error": f"its worker died, {ATTEMPTS} times"}
    ]


def test_a_shard_that_cannot_be_read_is_left_to_the_next_run(tmp_path: Path) -> None:
    def caption(unit: Unit) -> Any:
        if unit.is_shard:
            raise _Error("a traceback\nConnectionError: reset by peer")
        return rows_of(unit)

    done = run(["a.jpg", "s.tar"], tmp_path, caption)
    assert done.unfinished == (("s.tar", "ConnectionError: reset by peer"),)
    assert [row["file_name"] for row in read(tmp_path)] == ["a.jpg"]


def test_a_cluster_where_no_worker_starts_is_given_up(tmp_path: Path) -> None:
    def fail() -> str:
        raise _Died("a traceback\nValueError: no such model")

    with pytest.raises(ValueError, match="no worker can start: ValueError: no such model"):
        run(["a.jpg"], tmp_path, rows_of, fail)
