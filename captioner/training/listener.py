"""Who is told how training goes: a progress bar, a test, or nobody."""

from __future__ import annotations

from typing import Protocol

from captioner.training.criterion import Numbers
from captioner.training.start import Position


class Listener(Protocol):
    """Who is told how training goes."""

    def say(self, text: str) -> None:
        """Take note of something."""

    def warn(self, text: str) -> None:
        """Take note of something that looks wrong."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Take note that so much of something is done."""

    def step(self, position: Position, batches: int, numbers: Numbers) -> None:
        """Take note of a step, one of so many batches of its epoch."""


class Nobody:
    """A listener that takes no note of anything."""

    def say(self, text: str) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Ignore it."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Ignore it."""

    def step(self, position: Position, batches: int, numbers: Numbers) -> None:
        """Ignore it."""
