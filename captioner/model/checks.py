"""Checks that settings make of themselves; a `SettingError` names the section, the setting and what would be right."""

from __future__ import annotations

import math
from types import NoneType
from typing import get_args, get_type_hints

from captioner.datasets.annotations import shown

SCALARS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class SettingError(ValueError):
    """A setting was refused: its `section`, its `name`, and the `reason`, such as "is 0; it must be at least 1"."""

    def __init__(self, section: str, name: str, reason: str) -> None:
        super().__init__(section, name, reason)
        self.section, self.name, self.reason = section, name, reason

    def __str__(self) -> str:
        return f"{self.section} {self.name} {self.reason}".lstrip()


def check_types(section: str, config: object) -> None:
    """Check that the fields of a dataclass have the types that it declares; a whole number is a number, true is not."""
    for name, hint in get_type_hints(type(config)).items():
        kinds, value = get_args(hint) or (hint,), getattr(config, name)
        if type(value) in kinds or (type(value) is int and float in kinds and abs(value) < 2**1000):
            if isinstance(value, float) and not math.isfinite(value):
                raise SettingError(section, name, f"is {value}; expected a finite number")
        else:
            null = " or null" if NoneType in kinds else ""
            raise SettingError(section, name, f"is {shown(value)}; expected {SCALARS[kinds[0]]}{null}")


def check_choices(section: str, config: object, **choices: tuple[str, ...]) -> None:
    """Check that settings are among the choices of their names."""
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            raise SettingError(section, name, f"is {value!r}; choose from {', '.join(allowed)}")


def check_least(section: str, config: object, **least: float) -> None:
    """Check that numbers are at least what their names say."""
    for name, bound in least.items():
        value = getattr(config, name)
        if value < bound:
            raise SettingError(section, name, f"is {value}; it must be at least {bound}")


def check_most(section: str, config: object, **most: float) -> None:
    """Check that numbers are at most what their names say."""
    for name, bound in most.items():
        value = getattr(config, name)
        if value > bound:
            raise SettingError(section, name, f"is {shown(value)}; it must be at most {bound}")


def check_positive(section: str, config: object, *names: str) -> None:
    """Check that numbers are above 0."""
    for name in names:
        value = getattr(config, name)
        if value <= 0:
            raise SettingError(section, name, f"is {value}; it must be above 0")


def check_shares(section: str, config: object, *names: str) -> None:
    """Check that numbers are from 0 to below 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise SettingError(section, name, f"is {value}; it is a share from 0 to below 1")
