"""A process that imports everything once and then trains in children of its own: one, or several that share a run.

It reads a job a line from its input, as JSON, and answers each with a line. A child is forked before any thread is
started; it may be killed, and children that hang are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from helpers.holding import PATIENCE
from helpers.meeting import Meeting


class WarmProcess:
    """The process, seen from a test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.meeting: Meeting | None = None

    def start(self, *, processes: int = 1, **job: Any) -> list[int]:
        """Start a job of so many processes, and return the process ids of its children."""
        assert self.process.stdin is not None
        self.meeting = Meeting(processes)  # of this process: the other starts no threads
        environments = self.meeting.environments()
        self.process.stdin.write(json.dumps({**job, "environments": environments}) + "\n")
        children: list[int] = self._answer()["children"]
        return children

    def wait(self) -> list[int]:
        """Return the exit codes of the children of the job that was started."""
        codes: list[int] = self._answer()["codes"]
        self.meeting = None
        return codes

    def run(self, **job: Any) -> list[int]:
        """Do a job, and return the exit codes of its children."""
        self.start(**job)
        return self.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise AssertionError("the process ended")

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=PATIENCE) == 0


def _train(job: dict[str, Any], rank: int) -> int:
    """Train as `job` says; what each process was told is left in a file beside the run."""
    import captioner.training.validation
    from captioner.processes import joined_processes
    from captioner.training.recipe import recipe_from_dict
    from helpers import toy_training
    from helpers.holding import kill_before_call

    captioner.training.validation.BATCH = job.get("validation_batch", captioner.training.validation.BATCH)
    stops = job.get("stop_at", {})  # the step at which a process is asked to stop, by its rank
    stop = toy_training.at_step(stops[str(rank)]) if str(rank) in stops else lambda recorder: False
    if "call" in job:
        kill_before_call(job["call"])
    with joined_processes() as processes:
        outcome, recorder = toy_training.run_toy(
            recipe_from_dict(job["recipe"]), Path(job["folder"]), resume=True, processes=processes, stop=stop
        )
    Path(f"{job['folder']}-{rank}.json").write_text(json.dumps({"shown": recorder.shown, "said": recorder.said}))
    return 0 if outcome is not None else 130


def _serve() -> None:
    import onnxruntime  # noqa: F401
    import pytest
    import torch
    import torch._dynamo  # which every child would take a second to import at its first step
    import torch.distributed

    from captioner.model.config import EncoderConfig
    from helpers import toy_training

    torch.set_num_threads(1)  # a child would wait for threads that it did not inherit
    toy_training.make_quick(pytest.MonkeyPatch())
    toy_training.load_once(EncoderConfig(**toy_training.ENCODER))
    for line in sys.stdin:
        job = json.loads(line)
        children = []
        for rank, environment in enumerate(job["environments"]):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.environ.update(environment)
                    code = _train(job, rank)
                except BaseException as error:
                    print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            children.append(child)
        print(json.dumps({"children": children}), flush=True)
        print(json.dumps({"codes": _wait(children)}), flush=True)


def _wait(children: list[int]) -> list[int]:
    """Return the exit codes of children, or those of their killing: all of them, when one fails or hangs."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


if __name__ == "__main__":
    _serve()
