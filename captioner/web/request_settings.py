"""The settings of a request: how to search, and which of the model's offers; from the query, a form or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from captioner.captioning.options import SETTINGS, CaptionOptions, make_options
from captioner.model.search_settings import Setting

_TRUTHS = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
# A public address must not ask for hours: ranges are narrower than those of the command line.
SERVED = {
    name: replace(about, least=about.http[0], most=about.http[1], above=-math.inf)
    for name, about in SETTINGS.items()
    if about.http is not None
}


def take_options(settings: dict[str, str]) -> CaptionOptions:
    """Take what tells how to search out of the settings; raise ValueError where it is no such thing."""
    given: dict[str, Any] = {
        name: _read_setting(about, settings.pop(name)) for name, about in SERVED.items() if name in settings
    }
    sample = settings.pop("sample", "false")
    if sample.lower() not in _TRUTHS:
        raise ValueError(f"sample is {sample[:50]!r}; it must be true or false")
    return make_options(sample=_TRUTHS[sample.lower()], **given)


def _read_setting(about: Setting, text: str) -> float:
    try:
        return about.read(text)
    except ValueError as error:
        raise ValueError(f"{about.name} is {text[:50]!r}; {error}") from None


def take_choice(settings: dict[str, str], name: str, choices: list[str]) -> str:
    """Take one of some choices out of the settings, by default the first; raise ValueError where it is none."""
    choice = settings.pop(name, choices[0])
    if choice not in choices:
        raise ValueError(f"{name} is {choice[:50]!r}; choose from {', '.join(choices)}")
    return choice


def check_none_left(settings: Mapping[str, str], others: list[str]) -> None:
    """Raise ValueError where a setting is left that nothing has taken; `others` are valid beside those of a search."""
    if settings:
        valid = ", ".join([*others, *SERVED, "sample"])
        raise ValueError(f"unknown setting {next(iter(settings))[:50]!r}; choose from {valid}")
