"""The settings of a search: the command line, the Python call and the HTTP API all read them from `SearchConfig`.

A new setting is one line there, `name: type = setting(default, help, ...)`, and has its option, its keyword and its
place in a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from captioner.model.checks import SettingError, check_choices

METHODS = ("beam", "sample")


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


@dataclass(frozen=True)
class SearchConfig:
    """How captions are searched for; lengths count words without the end marker.

    The `method` is a beam of so many captions side by side, 1 for the best next word each time, or to sample words.
    Hypotheses are ranked by log probability / (words + 1) ^ `length_power`: 0 favours short captions, 1 is the mean
    over words. `no_repeat` forbids a caption to say so many words in a row twice, 0 to allow it; `content_limit` is how
    often it may say a content word, whose plural counts as the same, 0 for no limit.

    A beam may be cut into `groups` that make different captions (Vijayakumar et al., 2016): a word costs `diversity` of
    log probability for each beam of the groups before that takes it at the same place. Samples are drawn at a
    `temperature`, below 1 for more probable words, among the `top_k` most probable words (0: all), and of these among
    the fewest that make up the share `top_p` of the probability.
    """

    method: str = "beam"
    beam: int = setting(5, "follow the K most probable captions at once", "K", method="beam", least=1, http=(1, 20))
    groups: int = setting(1, "split the beam into N groups that must differ", method="beam", least=1, http=(1, 20))
    diversity: float = setting(
        0.5,
        "cost, in log probability, of a word that an earlier group chose at the same position",
        "COST",
        method="beam",
        least=0,
        http=(0, 100),
    )
    length_power: float = setting(
        0.9,
        "rank captions by log probability / length^P: 0 favours short ones, 1 long ones",
        "P",
        least=0,
        http=(0, 10),
    )
    minimum_length: int = setting(1, "say at least N words", least=0, http=(0, 60))
    maximum_length: int = setting(30, "say at most N words", least=1, http=(1, 60))
    no_repeat: int = setting(3, "never say the same N words in a row twice; 0 allows repetition", least=0, http=(0, 60))
    content_limit: int = setting(
        0, "say a content word, such as dog (or dogs), at most N times; 0 sets no limit", least=0, http=(0, 60)
    )
    temperature: float = setting(
        1.0,
        "draw from sharper (T below 1) or flatter (T above 1) probabilities",
        "T",
        method="sample",
        above=0,
        http=(0.05, 10),
    )
    top_k: int = setting(
        0,
        "draw from the N most probable words only; 0 draws from all",
        method="sample",
        least=0,
        http=(0, 1_000_000),
    )
    top_p: float = setting(
        1.0,
        "draw from the fewest words whose probabilities add up to P",
        "P",
        method="sample",
        above=0,
        most=1,
        http=(0.001, 1),
    )

    def __post_init__(self) -> None:
        check_choices("search", self, method=METHODS)
        check_settings("search", self)
        if self.beam % self.groups:
            raise SettingError("search", "groups", f"is {self.groups}; it must divide the beam of {self.beam}")
        if self.maximum_length < self.minimum_length:
            raise SettingError(
                "search",
                "maximum_length",
                f"is {self.maximum_length}; it must be at least minimum_length, which is {self.minimum_length}",
            )
