"""Programs that stop on their own at a known place, so that what is done to them in the middle is surely in the middle.

    python -m helpers.holding COMMAND ...

runs `captioner COMMAND ...`, held as the variable HOLD says, "TARGET=CALLS"; not after torchrun has restarted it.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captioner.evaluation.metrics.java import JavaProgram

PATIENCE = 600.0  # seconds, on however busy a machine; below the time limit of a test


def hold(target: str, is_over: Callable[[int], bool]) -> None:
    """Let a method, "package.module:Class.method", wait for ever once `is_over` of the calls so far is true."""
    module, _, path = target.partition(":")
    names = path.split(".")
    owner: Any = importlib.import_module(module)
    for name in names[:-1]:
        owner = getattr(owner, name)
    method, calls = getattr(owner, names[-1]), 0

    def held(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if is_over(calls):
            threading.Event().wait()
        calls += 1
        return method(*arguments, **options)

    setattr(owner, names[-1], held)


def hold_after(target: str, most: int) -> None:
    """Let a method be called so many times; the next call waits for ever."""
    hold(target, lambda calls: calls >= most)


# What changes files, and what comes between such calls where a folder is replaced.
_CALLS = {"open", "write", "flush", "fsync", "close", "truncate", "mkdir", "replace", "rename", "unlink", "remove"}


def kill_before_call(number: int) -> None:
    """Let this process be killed in this thread before the call of that number, from 1 on, that may change files."""
    calls = 0

    def count(frame: FrameType, event: str, function: Any) -> None:
        nonlocal calls
        in_memory = isinstance(getattr(function, "__self__", None), str | bytes | io.StringIO | io.BytesIO)
        if event == "c_call" and function.__name__ in _CALLS and not in_memory:
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def wait_until(condition: Callable[[], bool], is_alive: Callable[[], bool] = lambda: True) -> None:
    """Return once a condition holds; fail where what should bring it about has ended, or nothing happens at all."""
    given_up = time.monotonic() + PATIENCE
    while not condition():
        assert is_alive(), "it ended too early"
        assert time.monotonic() < given_up, "nothing happens"
        time.sleep(0.001)


def stop_process(child: int) -> None:
    """Stop a child process of this one, and return when all its threads have stopped, which a signal alone is not."""
    os.kill(child, signal.SIGSTOP)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def kill_when_asked(program: JavaProgram) -> None:
    """Let a program that runs be killed once its next question has been sent, and before it can answer."""
    running, child = program._running, program.pid
    assert running is not None
    assert child is not None
    stop_process(child)
    send = running.send

    def send_and_kill(text: str) -> None:
        send(text)
        os.kill(child, signal.SIGKILL)

    running.send = send_and_kill  # type: ignore[method-assign]


def main() -> int:
    """Run a command, held as the environment says."""
    from captioner import cli

    target, _, most = os.environ.get("HOLD", "").rpartition("=")
    if target and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        hold_after(target, int(most))
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
