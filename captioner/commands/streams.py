"""Standard streams that are closed: nothing else may take their places, and using them is an error of one line."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class ClosedStream(io.TextIOBase):
    """A standard stream that was closed when the program started; reading or writing it raises OSError."""

    def __init__(self, name: str) -> None:
        self._problem = f"standard {name} is closed"

    @property
    def buffer(self) -> Any:
        """What no bytes can be read from."""
        raise OSError(self._problem)

    def read(self, _: int | None = -1) -> str:
        """Refuse to be read."""
        raise OSError(self._problem)

    def write(self, text: str) -> int:
        """Refuse to be written."""
        raise OSError(self._problem)


def fill_closed_streams() -> None:
    """Open the null device in the place of each closed stream, before a file of ours gets its number.

    Otherwise what a library prints would end up in that file. Errors go nowhere then, as they were asked to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
        if name == "stderr":
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for as long as the program runs
        else:
            setattr(sys, name, ClosedStream("input" if name == "stdin" else "output"))
