"""Killed at random points, a cache ends up as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import write_photo_folder

KILLS = 10
PHOTOS = 1200

# The first process imports once and forks a child for every run, so that the test waits for torch only once. A child
# that the parent kills has started no threads before the fork.
RUNNER = """
import os, sys
import captioner.features, captioner.encoder, captioner.engines, captioner.onnx_graph, onnxruntime
from captioner.cli import main
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.stdin.close()
        code = main(line.split())
        sys.stdout.flush()
        os._exit(code)
    print("child", child, flush=True)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class Runner:
    """Commands run one after the other, each in a process of its own that may be killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self, arguments: list[str]) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(arguments) + "\n")
        return int(self.read("child"))

    def read(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
        raise AssertionError("the runner ended")


def test_killed_ten_times_equals_never_killed(tmp_path: Path) -> None:
    photos = write_photo_folder(tmp_path / "photos", PHOTOS)
    runner = Runner()
    command = ["features", str(photos), "--encoder", "efficientnet-lite0", "--size", "64", "--quiet", "--out"]
    runner.start([*command, str(tmp_path / "whole")])
    assert runner.read("ended") == "0"
    (whole,) = (tmp_path / "whole").iterdir()

    index = tmp_path / "killed" / whole.name / "index.jsonl"
    chance = random.Random(0)
    counts = []
    for _ in range(KILLS):
        before = index.stat().st_size if index.exists() else 0
        child = runner.start([*command, str(tmp_path / "killed")])
        # Some kills come before the first record, most after the next one, at any point of what follows.
        if chance.random() < 0.8:
            deadline = time.monotonic() + 60
            while (index.stat().st_size if index.exists() else 0) <= before:
                assert time.monotonic() < deadline, "no progress"
                time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        assert runner.read("ended") == "-9"
        counts.append(index.read_bytes().count(b"\n") if index.exists() else 0)
    assert counts == sorted(counts)  # nothing is lost from one run to the next
    assert 0 < counts[-1] < PHOTOS, "the kills came too late or too early to mean anything"

    runner.start([*command, str(tmp_path / "killed")])
    assert runner.read("ended") == "0"
    for name in ("cache.json", "index.jsonl", "regions.f16"):
        assert (index.parent / name).read_bytes() == (whole / name).read_bytes(), name
    rows = [json.loads(line)["row"] for line in index.read_text().splitlines()]
    assert rows == list(range(PHOTOS))
