"""Files as every part of the program treats them: written whole or not at all, and told apart by their contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file so that it is there whole or not at all, whatever happens meanwhile."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def digest(path: Path) -> str:
    """Return a hash of a file's contents, in hexadecimal."""
    contents = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            contents.update(block)
    return contents.hexdigest()
