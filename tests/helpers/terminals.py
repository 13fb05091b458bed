"""Commands run at a terminal, which is where they show complaints and progress bars."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path


def at_terminal(
    *arguments: str, columns: int = 100, folder: Path | None = None
) -> tuple[subprocess.Popen[str], Iterator[bytes]]:
    """Start `captioner` in `folder`, with a terminal as its standard error and a pipe as its standard output.

    Return the process, and the blocks of bytes that the terminal sees, as they come.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))  # rows and columns
    command = [sys.executable, "-m", "captioner", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=folder)
    os.close(theirs)
    return process, _read(ours)


def _read(terminal: int) -> Iterator[bytes]:
    try:
        while block := os.read(terminal, 4096):
            yield block
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(terminal)
