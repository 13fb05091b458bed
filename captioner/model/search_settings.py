"""One setting of a search as a field of a dataclass: the command line, the Python call and the HTTP API read it there.

A new setting is one line, `name: type = setting(default, help, ...)`, and has its option, its keyword and its place in
a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from captioner.model.checks import SettingError


@dataclass(frozen=True)
class Setting:
    """What is known of a setting beside its name: its meaning, its range, and the `method` it belongs to, if one alone.

    Its values are `least` or more, or more than `above`, and at most `most`. `http` is the narrower range in which
    strangers may choose over HTTP, None where they may not.
    """

    help: str
    metavar: str
    method: str | None
    least: float
    above: float
    most: float
    http: tuple[float, float] | None
    default: Any
    name: str = ""

    @property
    def type(self) -> type[int] | type[float]:
        """Whole numbers or any."""
        return float if isinstance(self.default, float) else int

    @property
    def bounds(self) -> str:
        """The range in words, as in "it must be ..."."""
        low = f"above {self.above:g}" if self.above > -math.inf else f"at least {self.least:g}"
        if self.most == math.inf:
            return low
        return f"{low} and at most {self.most:g}" if self.above > -math.inf else f"from {self.least:g} to {self.most:g}"

    def allows(self, value: float) -> bool:
        """Tell whether a value is within the range."""
        return self.least <= value <= self.most and value > self.above

    def read(self, text: str) -> float:
        """Return the value that a text gives; raise ValueError, which says what it must be, where it gives none."""
        try:
            value = self.type(text)
            if len(text) > 20 if isinstance(value, int) else not math.isfinite(value):  # more than 64 bits, or none
                raise ValueError
        except ValueError:
            raise ValueError(f"it must be {'a whole number' if self.type is int else 'a number'}") from None
        if not self.allows(value):
            raise ValueError(f"it must be {self.bounds}")
        return value


def setting(
    default: Any,
    help: str,
    metavar: str = "N",
    *,
    method: str | None = None,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    http: tuple[float, float] | None = None,
) -> Any:
    """Return a dataclass field that is a setting; see `Setting`. A default of None is of a whole number."""
    about = Setting(help, metavar, method, least, above, most, http, default)
    return field(default=default, metadata={"setting": about})


def settings_of(config: type) -> Mapping[str, Setting]:
    """Return the settings among the fields of a dataclass, by name."""
    found = {each.name: each.metadata["setting"] for each in fields(config) if "setting" in each.metadata}
    return MappingProxyType({name: replace(about, name=name) for name, about in found.items()})


def check_settings(section: str, config: object) -> None:
    """Check that all settings of a dataclass are in their ranges."""
    for name, about in settings_of(type(config)).items():
        value = getattr(config, name)
        if value is not None and not about.allows(value):
            raise SettingError(section, name, f"is {value}; it must be {about.bounds}")
