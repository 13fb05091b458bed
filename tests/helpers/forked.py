"""Commands run in processes of their own that may be killed, without waiting for torch each time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from helpers.holding import PATIENCE
from helpers.meeting import Meeting

# The first process imports once, loads each model once, and forks a child for every command. It has started no threads
# before the fork.
_PARENT = """
import json, os, sys
import torch, torchvision.models
import captioner.captioning.captioner, captioner.captioning.folder_run, captioner.figures.word_grid, onnxruntime
import captioner.evaluation.metrics.judge, captioner.model.encoders.fill_cache, captioner.model.encoders.onnx_graph
from captioner.cli import main
from helpers.holding import hold_after
from helpers.toy_judge import ToyJudge

torch.set_num_threads(1)
os.chdir(sys.argv[1])
captioner.evaluation.metrics.judge.Judge = ToyJudge  # Java, which is slow, has other tests
load, models = captioner.captioning.captioner.load, {}
captioner.captioning.captioner.load = lambda folder, **options: models.get(str(folder)) or load(folder, **options)

def run(job):
    sys.stdin.close()
    os.environ.update(job["environment"])
    if job["hold"]:
        hold_after(*job["hold"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if job[name] is not None:
            os.dup2(os.open(job[name], os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if job[name] is None:
            setattr(sys, name, None)
            if number:
                os.close(number)
    try:
        code = main(job["arguments"])
    except SystemExit as error:
        code = error.code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream and stream.flush()
        except OSError:
            code = 120  # as at the end of every program
    os._exit(code)

for line in sys.stdin:
    children = []
    jobs = json.loads(line)
    for job in jobs:
        if "--model" in job["arguments"]:
            folder = job["arguments"][job["arguments"].index("--model") + 1]
            models[folder] = models.get(folder) or load(folder)
    for job in jobs:
        children.append(os.fork())
        if not children[-1]:
            run(job)
    print(json.dumps(children), flush=True)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


class Forks:
    """Starts commands, several at once or one after the other; what they print goes into files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[int] = []
        self.meeting: Meeting | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(
        self,
        *commands: list[str],
        share: bool = False,
        holds: Sequence[tuple[str, int] | None] = (),
        streams: Mapping[str, str | None] = MappingProxyType({}),
    ) -> list[int]:
        """Start commands, which `share` the work as under torchrun or not, and return the numbers of their processes.

        `holds` are those of `helpers.holding.hold_after`, of each command; the last holds for all that follow.
        `streams` are the files that others than the usual are to lead to, closed where there is none.
        """
        self.meeting = Meeting(len(commands)) if share else None
        environments = self.meeting.environments() if self.meeting else [{} for _ in commands]
        jobs = [
            {
                "arguments": arguments,
                "environment": environments[number],
                "hold": holds[min(number, len(holds) - 1)] if holds else None,
                "stdin": None,
                "stdout": str(self.folder / f"output-{number}"),
                "stderr": str(self.folder / f"errors-{number}"),
                **streams,
            }
            for number, arguments in enumerate(commands)
        ]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(jobs) + "\n")
        self.running = self._read()
        return self.running

    def wait(self) -> list[int]:
        """Wait until all have ended, and return their exit codes, negative where a signal ended them."""
        codes: list[int] = self._read()
        self.running, self.meeting = [], None
        return codes

    def run(
        self, *commands: list[str], share: bool = False, streams: Mapping[str, str | None] = MappingProxyType({})
    ) -> list[int]:
        """Start commands, and wait until they have ended."""
        self.start(*commands, share=share, streams=streams)
        return self.wait()

    def output(self, number: int = 0) -> str:
        """Return what a command has printed."""
        return (self.folder / f"output-{number}").read_text()

    def errors(self, number: int = 0) -> str:
        """Return what a command has complained of."""
        return (self.folder / f"errors-{number}").read_text()

    def close(self) -> None:
        """End, and what a test that failed has left held as well."""
        assert self.process.stdin is not None
        for child in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the runner ended"
        return json.loads(line)
