"""What an installation must bring so that other people can train, and their type checkers see our types."""

from __future__ import annotations

import configparser

from helpers.photo_folders import ROOT


def test_recipes_and_types_are_there_outside() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert (ROOT / "captioner" / "py.typed").is_file()
    assert "py.typed" in settings["options.package_data"]["captioner"].split()
    assert {"recipes/*.yaml", "pretrained/*/*"} <= set(settings["options.package_data"]["captioner"].split())
    # With this an editable install is a path; without it an import hook, which no type checker can follow.
    assert settings["options"]["package_dir"].strip() == "= ."
