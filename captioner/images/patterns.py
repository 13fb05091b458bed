"""Paths that are named in other ways: by glob patterns, and by lists."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def expand_patterns(patterns: Iterable[str]) -> Iterator[str]:
    """Yield the paths that match glob patterns, each sorted; what exists under the very name, or is no pattern, as is.

    `**` stands for any number of folders; hidden ones are left out unless the pattern shows its dot, and a folder that
    a symlink leads back to is visited once. A pattern that nothing matches is yielded as is.
    """
    for pattern in patterns:
        if not glob.has_magic(pattern) or os.path.lexists(pattern):
            yield pattern
            continue
        path = Path(pattern)
        root, parts = (Path(path.anchor), path.parts[1:]) if path.anchor else (Path(), path.parts)
        matched = False
        for found in _match(root, parts):
            matched = True
            yield str(found)
        if not matched:
            yield pattern


def _match(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the paths below a folder whose parts match, one after the other."""
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        for below in _folders(folder):
            yield from _match(below, rest)
    elif not glob.has_magic(first):
        if os.path.lexists(folder / first):
            yield from _match(folder / first, rest)
    else:
        for name in _names(folder):
            if fnmatch.fnmatch(name, first) and (first.startswith(".") or not name.startswith(".")):
                yield from _match(folder / name, rest)


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and all below it, each once."""
    visited: set[tuple[int, int]] = set()
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            status = folder.stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) not in visited and os.path.isdir(folder):
            visited.add((status.st_dev, status.st_ino))
            yield folder
            pending += [folder / name for name in reversed(_names(folder)) if not name.startswith(".")]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_list(contents: bytes, *, null: bool = False) -> list[str]:
    """Return the paths in a list, one per line, or each with a NUL after it, which allows for any name."""
    entries = contents.split(b"\0" if null else b"\n")
    if not null:
        entries = [entry.removesuffix(b"\r") for entry in entries]
    return [os.fsdecode(entry) for entry in entries if entry]
