"""What an installation must bring: recipes, types that other people's checkers see, packages without known holes."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from helpers.photo_folders import EXAMPLES, ROOT
from packaging.requirements import Requirement
from packaging.version import Version

MODULES = {"pillow": "PIL", "pyyaml": "yaml", "pytest-xdist": "xdist"}
# Finds no module of an extra, and then runs a command.
WITHOUT_EXTRAS = """
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {modules!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
from captioner.cli import main
sys.exit(main({arguments!r}))
"""


def test_recipes_and_types_are_there_outside() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert (ROOT / "captioner" / "py.typed").is_file()
    assert "py.typed" in settings["options.package_data"]["captioner"].split()
    assert {"recipes/*.yaml", "pretrained/*/*"} <= set(settings["options.package_data"]["captioner"].split())
    # With this an editable install is a path; without it an import hook, which no type checker can follow.
    assert settings["options"]["package_dir"].strip() == "= ."


# The first releases that no advisory published by November 2026 tells a reachable hole of.
CLEAN = {
    "torch": "2.11",
    "onnx": "1.21",
    "pillow": "12.3",
    "nltk": "3.10.4",
    "tqdm": "4.66.3",
    "timm": "1.0.26",  # the first to load pickles by weights_only=True
    "starlette": "1.3.1",
    "h11": "0.16",
}


def test_floors_admit_no_published_holes_and_what_is_installed_is_above_them() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = [settings["options"]["install_requires"], *settings["options.extras_require"].values()]
    wanted = [Requirement(line) for text in lines for line in text.split("\n") if line and "captioner[" not in line]
    floors = {each.name: Version(next(iter(each.specifier)).version) for each in wanted if each.specifier}
    assert all(floors[name] >= Version(version) for name, version in CLEAN.items())
    modules = {name: MODULES.get(name, name.replace("-", "_")) for name in floors}
    installed = {name: version(name) for name, module in modules.items() if find_spec(module) is not None}
    assert {name for name, found in installed.items() if Version(found) < floors[name]} == set()


def test_the_build_needs_a_clean_setuptools() -> None:
    assert 'requires = ["setuptools>=78.1.1"]' in (ROOT / "pyproject.toml").read_text()


def test_the_demo_needs_no_extra(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^demo: (.+)\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == ".venv/package"
    package = re.search(r"^\.venv/package:.*\n((?:.+\n)+)", makefile, re.MULTILINE)
    assert package is not None
    assert "$(PIP) --editable .\n" in package[1]
    command = next(line for line in recipe[2].splitlines() if "--overlays" in line)
    arguments = shlex.split(command.replace("data/examples", str(EXAMPLES / "cat.jpg")).replace("$(DEMO)", "out"))[1:]
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = [line for text in settings["options.extras_require"].values() for line in text.split("\n") if line]
    names = [Requirement(line).name for line in lines if "captioner[" not in line]
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
    script = WITHOUT_EXTRAS.format(modules=modules, arguments=arguments)
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "gallery.html").is_file()
    assert len(list((tmp_path / "out" / "overlays").rglob("*.png"))) == 1
