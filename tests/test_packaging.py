"""What an installation must bring: recipes, types that other people's checkers see, packages without known holes."""

from __future__ import annotations

import configparser
from importlib.metadata import version
from importlib.util import find_spec

from helpers.photo_folders import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

MODULES = {"pillow": "PIL", "pyyaml": "yaml", "pytest-xdist": "xdist"}


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
