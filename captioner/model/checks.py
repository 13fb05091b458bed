"""Checks that settings share; each raises a ValueError of one line that names section, setting, value and choices."""

from __future__ import annotations


def check_choices(section: str, config: object, **choices: tuple[str, ...]) -> None:
    """Check that settings are among the choices of their names."""
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            raise ValueError(f"{section} {name} is {value!r}; choose from {', '.join(allowed)}")


def check_least(section: str, config: object, **least: float) -> None:
    """Check that numbers are at least what their names say."""
    for name, bound in least.items():
        value = getattr(config, name)
        if value < bound:
            raise ValueError(f"{section} {name} is {value}; it must be at least {bound}")


def check_positive(section: str, config: object, *names: str) -> None:
    """Check that numbers are above 0."""
    for name in names:
        value = getattr(config, name)
        if value <= 0:
            raise ValueError(f"{section} {name} is {value}; it must be above 0")


def check_shares(section: str, config: object, *names: str) -> None:
    """Check that numbers are from 0 to below 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{section} {name} is {value}; it is a share from 0 to below 1")
