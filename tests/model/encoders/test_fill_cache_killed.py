"""Killed at random points, a cache ends up as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

from helpers.forked import Forks
from helpers.holding import wait_until
from helpers.photo_folders import write_photo_folder

KILLS, BATCH = 10, 32
PHOTOS = 1200
APPENDED = "captioner.model.encoders.fill_cache:Writer.write"  # a batch


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_ten_times_equals_never_killed(tmp_path: Path) -> None:
    photos = write_photo_folder(tmp_path / "photos", PHOTOS)
    forks = Forks(tmp_path)
    command = ["features", str(photos), "--encoder", "efficientnet-lite0", "--size", "64", "--quiet", "--out"]
    assert forks.run([*command, str(tmp_path / "whole")]) == [0]
    (whole,) = (tmp_path / "whole").iterdir()

    index = tmp_path / "killed" / whole.name / "index.jsonl"
    chance = random.Random(0)
    counts = []
    for _ in range(KILLS):
        before = lines_in(index)
        (child,) = forks.start([*command, str(tmp_path / "killed")], holds=[(APPENDED, 3)])
        # Some kills come before the next record, most after some of those up to where the command waits.
        wanted = before + chance.choice([0, *range(1, 3 * BATCH, 20)])
        wait_until(lambda wanted=wanted: lines_in(index) >= wanted)
        os.kill(child, signal.SIGKILL)
        assert forks.wait() == [-9]
        counts.append(lines_in(index))
    assert counts == sorted(counts)  # nothing is lost from one run to the next
    assert 0 < counts[-1] < PHOTOS, "the kills came too late or too early to mean anything"

    assert forks.run([*command, str(tmp_path / "killed")]) == [0]
    forks.close()
    for name in ("cache.json", "index.jsonl", "regions.f16"):
        assert (index.parent / name).read_bytes() == (whole / name).read_bytes(), name
    rows = [json.loads(line)["row"] for line in index.read_text().splitlines()]
    assert rows == list(range(PHOTOS))
