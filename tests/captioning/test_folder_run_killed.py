"""Killed at random points, interrupted, or shared among processes, a run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.forked import Forks
from helpers.holding import wait_until
from helpers.toy_captioner import save_toy, write_images

from captioner.model.encoders.encoder import Encoder

IMAGES, FEW, KILLS = 1000, 250, 20
BAD = ("0007.jpg", "0100.jpg", "0199.jpg")
ADDED = "captioner.captioning.output.folder:OutputFolder.add_caption"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Path:
    """A model, and two folders of photographs of which three are bad; one is the beginning of the other."""
    folder = tmp_path_factory.mktemp("killed")
    save_toy(folder / "model", lite0)
    for name, count in (("many", IMAGES), ("few", FEW)):
        write_images(folder / name, count)
        empty, truncated, no_image = (folder / name / bad for bad in BAD)
        empty.write_bytes(b"")
        truncated.write_bytes(truncated.read_bytes()[:-30])
        no_image.write_text("no image")
    return folder


@pytest.fixture(scope="module")
def forks(folder: Path) -> Iterator[Forks]:
    runner = Forks(folder)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def whole(folder: Path, forks: Forks) -> dict[str, Any]:
    """What a run of the few gives that nothing happened to."""
    assert forks.run(command("whole")) == [1]
    assert " 247 captioned" in forks.output()
    assert "0 skipped, 3 failed" in forks.output()
    return check(folder / "whole", FEW)


def command(out: str, *more: str, images: str = "few") -> list[str]:
    # Small batches, so that a kill finds some images done and others not.
    return ["caption", images, "--model", "model", "--beam", "2", "--batch-size", "16", "--out", out, "--quiet", *more]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def check(out: Path, images: int) -> dict[str, Any]:
    """Check that every image is there once, and return the records by the names of files."""
    names = [record["file_name"].rpartition("/")[2] for record in read(out / "captions.jsonl")]
    assert names == [name for name in map("{:04d}.jpg".format, range(images)) if name not in BAD]
    assert sorted(record["file_name"].rpartition("/")[2] for record in read(out / "errors.jsonl")) == list(BAD)
    assert not list(out.glob("parts*"))
    assert not list(out.glob("*.unfinished"))
    return dict(zip(names, read(out / "captions.jsonl"), strict=True))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that captions are the same; numbers may differ by what another batch does to their rounding."""
    assert found.keys() == expected.keys()
    different = [name for name in found if found[name]["words"] != expected[name]["words"]]
    assert not different
    for name, record in found.items():
        assert record["log_prob"] == pytest.approx(expected[name]["log_prob"], abs=1e-3)


def size(out: Path) -> int:
    return sum(path.stat().st_size for path in [*out.glob("captions.jsonl"), *out.glob("parts/captions-*.jsonl")])


def lines_in(out: Path) -> int:
    record = out / "captions.jsonl"
    return record.read_bytes().count(b"\n") if record.exists() else 0


def wait_for_more(out: Path, before: int) -> None:
    wait_until(lambda: size(out) > before)


def test_killed_twenty_times_equals_never_killed(folder: Path, forks: Forks, whole: dict[str, Any]) -> None:
    out = folder / "killed"
    chance = random.Random(0)
    counts = []
    again = command("killed", "--format", "csv,coco,txt", images="many")
    for _ in range(KILLS):
        before = lines_in(out)
        (child,) = forks.start(again, holds=[(ADDED, 40)])
        # Some kills come before the next caption, most after some of those up to where the command waits.
        wanted = before + chance.choice([0, *range(1, 41, 8)])
        wait_until(lambda wanted=wanted: lines_in(out) >= wanted)
        os.kill(child, signal.SIGKILL)
        assert forks.wait() == [-9]
        counts.append(lines_in(out))
    assert counts == sorted(counts)  # nothing is lost from one run to the next
    assert 0 < counts[-1] < IMAGES - 3, "the kills came too late or too early to mean anything"
    assert forks.run(again) == [1]
    assert f" {counts[-1]:,} skipped, 3 failed" in forks.output()
    records = check(out, IMAGES)
    assert_same({name: record for name, record in records.items() if name in whole}, whole)
    assert len((out / "captions.csv").read_text().splitlines()) == IMAGES - 3 + 1
    assert len(json.loads((out / "captions-coco.json").read_text())) == IMAGES - 3
    assert len(list((out / "txt" / "many").iterdir())) == IMAGES - 3


def test_killed_while_what_is_there_is_overwritten(folder: Path, forks: Forks, whole: dict[str, Any]) -> None:
    out, kills = folder / "overwritten", 3
    assert forks.run(command("overwritten")) == [1]
    for _ in range(kills):
        before = size(out)
        (child,) = forks.start(command("overwritten", "--existing", "overwrite"), holds=[(ADDED, 100)])
        wait_for_more(out, before)
        os.kill(child, signal.SIGKILL)
        assert forks.wait() == [-9]
    assert len(read(out / "captions.jsonl")) >= FEW - len(BAD) + kills  # each came after one more caption at least
    assert forks.run(command("overwritten")) == [1]
    assert "0 captioned, 247 skipped, 3 failed" in forks.output()
    assert_same(check(out, FEW), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_goes_on(
    folder: Path, forks: Forks, whole: dict[str, Any], number: signal.Signals
) -> None:
    out = folder / f"interrupted-{number}"
    (child,) = forks.start(command(out.name), holds=[(ADDED, 100)])
    wait_for_more(out, 0)
    os.kill(child, number)
    assert forks.wait() == [130]
    message = forks.errors().splitlines()[-1]
    assert message == "captioner: interrupted; finished work is kept, and the same command resumes"
    done = len(read(out / "captions.jsonl"))
    assert 0 < done < FEW - 3
    assert forks.run(command(out.name)) == [1]
    assert f" {done} skipped" in forks.output()
    assert_same(check(out, FEW), whole)


def test_two_processes_equal_one(folder: Path, forks: Forks, whole: dict[str, Any]) -> None:
    out = folder / "shared"
    assert forks.run(command("shared"), command("shared"), share=True) == [1, 1]
    assert "247 captioned" in forks.output(0)
    assert "0 skipped, 3 failed" in forks.output(0)
    assert forks.output(1) == ""
    assert forks.errors(0).count("\n") + forks.errors(1).count("\n") == 3
    records = check(out, FEW)
    assert_same(records, whole)
    # Another number of processes, or one alone, finds everything done.
    assert forks.run(*[command("shared")] * 3, share=True) == [1, 1, 1]
    assert "0 captioned, 247 skipped, 3 failed" in forks.output(0)
    assert forks.run(command("shared")) == [1]
    assert "0 captioned, 247 skipped, 3 failed" in forks.output(0)
    assert check(out, FEW) == records


def test_processes_that_are_killed_leave_their_parts_to_the_next(
    folder: Path, forks: Forks, whole: dict[str, Any]
) -> None:
    out = folder / "shared-killed"
    children = forks.start(command(out.name), command(out.name), share=True, holds=[(ADDED, 20)])
    # Lines that are whole: the last one may be half written when it is looked at.
    wait_until(lambda: [part.read_bytes().count(b"\n") for part in out.glob("parts/captions-*-of-2.jsonl")] == [20, 20])
    for child in children:
        os.kill(child, signal.SIGKILL)
    assert forks.wait() == [-9, -9]
    done = sum(len(read(part)) for part in out.glob("parts/captions-*-of-2.jsonl"))
    assert done == 40
    # One of the next two dies: the other says so, once it has done its own share.
    before, holds = size(out), [None, (ADDED, 20)]
    children = forks.start(command(out.name), command(out.name), share=True, holds=holds)
    wait_for_more(out, before)
    os.kill(children[1], signal.SIGKILL)
    assert forks.wait() == [1, -9]
    assert "another process ended early; run the same command again to resume" in forks.errors(0)
    assert len(read(out / "captions.jsonl")) == done  # what the first two had left
    assert forks.run(command(out.name), command(out.name), share=True) == [1, 1]
    assert_same(check(out, FEW), whole)
