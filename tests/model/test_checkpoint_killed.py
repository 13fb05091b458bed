"""Killed before any call that changes files, a process that saves checkpoints always leaves the newest one whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from helpers.holding import PATIENCE

from captioner.model.checkpoint import load_checkpoint, load_training_state, save_checkpoint

# The first process imports once and forks a child for every kill, so that the test waits for torch only once. Each
# child saves two steps, every tensor filled with the step's number, and is killed within the second save, before a
# call that is the one of that number.
RUNNER = """
import os, sys
from dataclasses import replace
import torch
from captioner.model.checkpoint import TrainingState, save_checkpoint
from helpers.holding import kill_before_call
from helpers.toy_checkpoints import make_checkpoint

torch.set_num_threads(1)  # a child would wait for threads that it did not inherit
model = make_checkpoint(metrics={})
moments = {"first": torch.zeros(200_000), "second": torch.zeros(200_000)}
for line in sys.stdin:
    folder, first_step, call = line.rstrip().rsplit(" ", 2)
    child = os.fork()
    if child == 0:
        for step in (int(first_step), int(first_step) + 1):
            for tensor in (*model.weights.values(), *moments.values()):
                tensor.fill_(step)
            checkpoint = replace(model, progress={"step": step})
            save_checkpoint(folder, checkpoint, TrainingState(moments, {"step": step}))
            os.write(1, f"saved {step}\\n".encode())
            kill_before_call(int(call))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class Runner:
    """Children that save, one at a time, and are killed."""

    def __init__(self) -> None:
        self.saved = 0  # the last step that was reported
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, folder: Path, first_step: int, call: int) -> int:
        """Let a child save `first_step` and the one after it, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder} {first_step} {call}\n")
        return int(self.read_until("ended"))

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
        assert self.process.wait(timeout=PATIENCE) == 0


def test_killed_before_each_call_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    runner = Runner()
    step, code, steps, littered = 0, -9, [], 0
    while code == -9:  # until a save has fewer calls
        before = step
        code = runner.run(tmp_path, before + 1, len(steps) + 1)
        checkpoint, training = load_checkpoint(tmp_path), load_training_state(tmp_path)
        step = checkpoint.progress["step"]
        assert runner.saved <= step <= before + 2
        assert all(torch.all(weight == step) for weight in checkpoint.weights.values())
        assert training is not None
        assert training.values == {"step": step}
        assert all(torch.all(moment == step) for moment in training.tensors.values())
        steps.append(step - before)
        littered += len(list(tmp_path.iterdir())) > 3
    runner.close()
    assert code == 0
    # The second save counts from one of its calls on, and leaves something to tidy up after most of them.
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}
    assert littered > len(steps) // 2 > 5
    save_checkpoint(tmp_path, checkpoint)
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["checkpoint.json", "decoder"]
