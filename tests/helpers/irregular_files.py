"""What lies where a file should and is none: a pipe, a device, a socket, or a file far larger than its disk."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

KINDS = ("pipe", "device", "socket", "sparse")


def make_irregular(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put something of a kind there; a sparse file has 200 GB and takes none."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        monkeypatch.chdir(path.parent)  # a socket's name may have a hundred letters
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    else:
        with path.open("wb") as file:
            file.truncate(200_000_000_000)
