"""Standard streams as commands meet them: closed, or unable to take what is printed."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from captioner.files import system_reason


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


class _Output(io.FileIO):
    """Standard output, which names itself where it takes no more; whatever is left is then let go."""

    _has_failed = False

    def write(self, data: Any) -> int:
        """Write bytes."""
        if self._has_failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self._has_failed = True
            if isinstance(error, BrokenPipeError):
                raise
            raise OSError(f"standard output cannot be written: {system_reason(error)}") from None


def prepare_streams() -> None:
    """Fill the places of closed streams, and let standard output name itself where it cannot be written."""
    _fill_closed()
    output = sys.stdout
    if type(output) is not io.TextIOWrapper or output is not sys.__stdout__:
        return
    raw = getattr(output.buffer, "raw", output.buffer)  # without a buffer, as `python -u` has it
    if isinstance(raw, io.FileIO):  # which a console of Windows is not
        output.flush()
        named = _Output(raw.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            named if raw is output.buffer else io.BufferedWriter(named),
            encoding=output.encoding,
            errors=output.errors,
            line_buffering=output.line_buffering,
            write_through=output.write_through,
        )


def _fill_closed() -> None:
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
