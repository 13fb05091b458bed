"""Killed at random points, a process that saves checkpoint after checkpoint always leaves the newest one whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from captioner.model.checkpoint import load_checkpoint, load_training_state, save_checkpoint

KILLS = 50

# The first process imports once and forks a child for every kill, so that the test waits for torch only once. Each
# child saves one step after the other until it is killed, every tensor filled with the step's number.
RUNNER = """
import os, sys
from dataclasses import replace
from itertools import count
import torch
from captioner.model.checkpoint import TrainingState, save_checkpoint
from helpers.toy_checkpoints import make_checkpoint

torch.set_num_threads(1)  # a child would wait for threads that it did not inherit
model = make_checkpoint(metrics={})
moments = {"first": torch.zeros(200_000), "second": torch.zeros(200_000)}
for line in sys.stdin:
    folder, first_step = line.rstrip().rsplit(" ", 1)
    child = os.fork()
    if child == 0:
        for step in count(int(first_step)):
            for tensor in (*model.weights.values(), *moments.values()):
                tensor.fill_(step)
            checkpoint = replace(model, progress={"step": step})
            save_checkpoint(folder, checkpoint, TrainingState(moments, {"step": step}))
            os.write(1, f"saved {step}\\n".encode())
    print("child", child, flush=True)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class Runner:
    """Children that save, one at a time, until they are killed."""

    def __init__(self) -> None:
        self.saved = 0  # the last step that was reported
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self, folder: Path, first_step: int) -> int:
        """Let a child save from `first_step` on, and return its process id."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder} {first_step}\n")
        return int(self.read_until("child"))

    def read_until(self, word: str) -> str:
        """Return what follows `word` in the line that starts with it, and note the steps reported before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == "saved":
                self.saved = int(rest)
            if first == word:
                return rest
        raise AssertionError("the runner ended")

    def close(self) -> None:
        """Let the runner end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def test_killed_fifty_times_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    chance = random.Random(0)
    runner = Runner()
    step, littered, kills = 0, 0, 0
    # Until enough kills have come within a save to mean something.
    while kills < KILLS or littered <= KILLS // 10:
        kills += 1
        before = step
        child = runner.start(tmp_path, before + 1)
        # Some kills come at any point of a child's first save, the others later; the first needs something to find.
        if before == 0 or chance.random() < 0.5:
            runner.read_until("saved")
        time.sleep(chance.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        assert runner.read_until("ended") == "-9"
        checkpoint, training = load_checkpoint(tmp_path), load_training_state(tmp_path)
        step = checkpoint.progress["step"]
        reported = max(before, runner.saved)
        assert reported <= step <= reported + 1
        assert all(torch.all(weight == step) for weight in checkpoint.weights.values())
        assert training is not None
        assert training.values == {"step": step}
        assert all(torch.all(moment == step) for moment in training.tensors.values())
        littered += len(list(tmp_path.iterdir())) > 3
    runner.close()
    save_checkpoint(tmp_path, checkpoint)
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["checkpoint.json", "decoder"]
