"""Standard streams that are closed or full: one line that names them, or the work is done all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
from helpers.forked import Forks
from helpers.photo_folders import write_photo_folder
from helpers.toy_captioner import save_toy
from helpers.toy_training import toy_recipe

from captioner.cli import make_parser
from captioner.model.encoders.encoder import Encoder
from captioner.training.recipe import to_yaml

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="closes streams as Unix shells do")
ENCODER = "--encoder efficientnet-lite0 --size 64"
# Each prints something, with OUT for a folder of its own.
COMMANDS = {
    "caption": "caption data --model model",
    "overlay": "overlay data/0000.jpg --model model --out OUT",
    "describe": "describe data",
    "features": f"features data {ENCODER} --out OUT --quiet",
    "train": "train toy.yaml --show",
    "evaluate": "evaluate model data --split train --out OUT --resamples 10 --quiet",
    "export": "export model OUT",
    "models": "models model",
    "recipes": "recipes",
    "inspect": f"inspect data/0000.jpg {ENCODER}",
    "encoders": "encoders",
    "schema": "schema",
}
OTHERS = ("cluster", "compare", "serve")  # need a cluster or runs, or do not end; their help is printed
HELP = {name: f"{name} --help" for name in OTHERS}
FULL = "captioner: standard output cannot be written: no space left on device\n"
CLOSED = "captioner: standard output is closed"
numbers = count()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("streams")
    data = write_photo_folder(folder / "data", 20)
    save_toy(folder / "model", lite0)
    (folder / "toy.yaml").write_text(to_yaml(toy_recipe(data)))
    runner = Forks(folder)
    yield runner
    runner.close()


def words(command: str) -> list[str]:
    return command.replace("OUT", f"out-{next(numbers)}").split()


def test_every_command_is_tried() -> None:
    actions = make_parser()._subparsers._group_actions  # type: ignore[union-attr]
    assert set(actions[0].choices or ()) == COMMANDS.keys() | HELP.keys()


@pytest.mark.parametrize("name", [*COMMANDS, *HELP])
def test_a_full_or_closed_output_is_named(name: str, forks: Forks) -> None:
    command = {**COMMANDS, **HELP}[name]
    assert forks.run(words(command), streams={"stdout": "/dev/full"}) == [1]
    assert forks.errors() == FULL
    # A report of files that are there is not missed.
    assert forks.run(words(command), streams={"stdout": None}) == [name != "overlay"]
    assert forks.errors().startswith("" if name == "overlay" else CLOSED)
    assert forks.errors().count("\n") == (name != "overlay")


@pytest.mark.parametrize("name", COMMANDS)
def test_other_closed_streams_do_not_matter(name: str, forks: Forks) -> None:
    assert forks.run(words(COMMANDS[name])) == [0]
    printed = forks.output()
    assert printed
    assert forks.run(words(COMMANDS[name]), streams={"stderr": None, "stdin": None}) == [0]
    assert len(forks.output().splitlines()) == len(printed.splitlines())


def test_an_input_that_is_read_must_be_there(forks: Forks) -> None:
    assert forks.run(words("caption - --model model"), streams={"stdin": None}) == [1]
    assert forks.errors() == "captioner: standard input is closed\n"


def test_with_no_stream_at_all(forks: Forks) -> None:
    closed = {"stdin": None, "stdout": None, "stderr": None}
    assert forks.run(words("caption data/0000.jpg --model model --out captions"), streams=closed) == [0]
    assert (forks.folder / "captions" / "captions.jsonl").read_text().count("\n") == 1
    assert forks.run(words("schema"), streams=closed) == [1]


@pytest.mark.parametrize(
    ("redirected", "code", "message"), [("> /dev/full", 1, FULL), (">&-", 1, f"{CLOSED}\n"), ("2>&- <&-", 0, "")]
)
def test_a_shell_closes_the_same(redirected: str, code: int, message: str) -> None:
    command = ["bash", "-c", f"{sys.executable} -m captioner schema {redirected}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, message)


def test_a_reader_who_has_left_is_nothing_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "captioner", "schema"]
    with open(writing, "wb") as left:
        ended = subprocess.run(command, stdout=left, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")
