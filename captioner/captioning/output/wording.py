"""How a caption is worded for people: as a sentence, with words before or after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MAX_LETTERS = 1000


@dataclass(frozen=True)
class Wording:
    """What is made of a caption's words: a `sentence` with a capital and a full stop, a `prefix` and a `suffix`.

    Prefix and suffix stand as they are given, spaces and all.
    """

    sentence: bool = False
    prefix: str = ""
    suffix: str = ""

    def __post_init__(self) -> None:
        for name, value in (("prefix", self.prefix), ("suffix", self.suffix)):
            if not (value.isprintable() and len(value) <= MAX_LETTERS):
                raise ValueError(f"{name} is {value[:50]!r}; it must be one line of at most {MAX_LETTERS:,} letters")

    def apply(self, text: str) -> str:
        """Return a caption as it is worded."""
        if self.sentence and text:
            text = f"{text[0].upper()}{text[1:].rstrip(' .')}."
        return f"{self.prefix}{text}{self.suffix}"

    def identity(self) -> dict[str, Any]:
        """Return what differs from a plain caption, in plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if value}
