"""The worked examples of CONTRIBUTING.md: each is written to a file, imported, and used as the text says."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.documents import read_blocks, read_commands
from helpers.photo_folders import EXAMPLES, ROOT

from captioner.cli import main
from captioner.datasets.dataset import FORMATS
from captioner.evaluation.metrics.judge import MEANS
from captioner.evaluation.tables import LABELS
from captioner.model import extensions

GUIDE = ROOT / "CONTRIBUTING.md"
BLOCKS = read_blocks(GUIDE)
HEADINGS = ("Adding a score function", "Adding an encoder", "Adding a data format", "Adding a metric")
QUICK = ["epochs=2", "validation.every=2", "data.features=features"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples' photographs, whose modules can be imported; what they register is forgotten."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "examples").symlink_to(EXAMPLES)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    folder = tmp_path / "photos-with-tsv"
    folder.mkdir()
    for path in EXAMPLES.glob("*.jpg"):
        (folder / path.name).symlink_to(path)
    lines = (f"{path.name}\tThis is a {path.stem}.\n" for path in sorted(EXAMPLES.glob("*.jpg")))
    (folder / "captions.tsv").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registries = [(each, dict(each)) for each in (FORMATS, MEANS, LABELS)]
    before = set(sys.modules)
    yield tmp_path
    for registry, contents in registries:
        registry.clear()
        registry.update(contents)  # type: ignore[arg-type]
    for name in {name for name in sys.modules if name.startswith("my_")} - before:
        del sys.modules[name]


@pytest.mark.parametrize("heading", HEADINGS)
def test_an_example_does_what_it_is_said_to_do(
    heading: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, *uses = [block for block in BLOCKS if block.heading == heading]
    name = re.match(r"# (my_\w+)\.py\n", module.text)
    assert name
    assert uses
    (place / f"{name[1]}.py").write_text(module.text)
    importlib.invalidate_caches()
    for use in uses:
        if use.language == "python":
            exec(compile(use.text, str(GUIDE), "exec"), {"__name__": "__main__"})
        for command in read_commands(use) if use.language == "sh" else ():
            run(command, monkeypatch)
    assert capsys.readouterr().out.strip()


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command with the variables before it, which let it import modules from this folder; nothing else does."""
    monkeypatch.setattr(extensions, "_allowed", set())
    *variables, arguments = re.split(r" (?=captioner )|(?<=\S) (?=PYTHONPATH=)", command)
    for variable in variables:
        name, value = variable.split("=")
        if name != "PYTHONPATH":
            monkeypatch.setenv(name, value)
    words = shlex.split(arguments)[1:]
    assert main([*words, *(QUICK if words[0] == "train" else ()), "--quiet"]) == 0


def test_the_files_that_are_named_are_there() -> None:
    text = GUIDE.read_text()
    named = re.findall(r"`((?:captioner|tests|data|experiments)/[\w./-]+)`", text)
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [command for block in BLOCKS if block.heading == "Setting up" for command in read_commands(block)]
    assert commands
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE), command
