"""Which files the program wrote, by the hashes of their contents: only these may be replaced or removed.

A file that somebody else wrote, or has changed since, is left as it is and counted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from captioner.captioning.records import CAPTIONS, refuse_link
from captioner.files import digest, naming_the_disk, read_lines, replacing, write_whole

WRITTEN = "written.jsonl"
_MAX_LINE = 65_536  # bytes


class WrittenFiles:
    """What was written by runs into a folder, there and beside the images; lines are added to its `written.jsonl`.

    In a folder of an earlier version, which has captions and no such list, files count as the program's. Without a
    folder nothing is, and nothing is noted. `left` are the files that were not replaced, in their order.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.path = folder or Path(), (folder / WRITTEN if folder else None)
        self.left: list[Path] = []
        self.hashes: dict[bytes, set[str]] = {}  # of each file's key, those of all that was written there
        self.tops: set[str] = set()  # the first parts of their names
        self.is_old = False
        if self.path is None:
            return
        refuse_link(self.path)
        if not self.path.exists():
            self.is_old = (self.folder / CAPTIONS).exists()
            if not self.is_old:
                self.path.touch()
            return
        for _, line in read_lines(self.path, longest=_MAX_LINE):
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # half a line, of a process that was killed
                entry = json.loads(line)
                self._add(str(entry["file"]), str(entry["digest"]))

    def _add(self, name: str, contents: str) -> bool:
        known = self.hashes.setdefault(_key(name), set())
        is_new = contents not in known
        known.add(contents)
        self.tops.add(name.split("/")[0])
        return is_new

    def holds(self, path: Path) -> bool:
        """Tell whether a file or folder in the folder itself is there, and the program's."""
        return path.exists() and (self.is_old or path.name in self.tops)

    def is_elsewhere(self, names: Collection[str]) -> bool:
        """Tell whether files were written other than those of these names in the folder."""
        return not self.tops <= {*names}

    def may_replace(self, path: Path) -> bool:
        """Tell whether a file is not there, or is as the program wrote it."""
        if not os.path.lexists(path):
            return True
        if path.is_symlink() or not path.is_file():
            return False
        if self.is_old and self._is_inside(path):
            return True
        known = self.hashes.get(_key(self._name(path)))
        return known is not None and digest(path) in known

    def write(self, path: Path, contents: bytes, *, unfinished: Path | None = None, sync: bool = False) -> bool:
        """Write a file unless that would replace somebody else's; tell whether it holds the contents now."""
        with suppress(OSError):
            is_as_long = path.is_file() and not path.is_symlink() and path.stat().st_size == len(contents)
            if is_as_long and path.read_bytes() == contents:
                return True
        if not self.may_replace(path):
            self.left.append(path)
            return False
        self.note(path, digest(contents))  # before the file: what is there after a crash is known
        write_whole(path, contents, unfinished=unfinished, sync=sync)
        return True

    @contextmanager
    def replacing(self, path: Path) -> Iterator[IO[bytes] | None]:
        """Yield a file to write, which takes the place of one that the program wrote; None where others did."""
        refuse_link(path)
        if not self.may_replace(path):
            self.left.append(path)
            yield None
            return
        with replacing(path) as file:
            yield file
            file.flush()
            self.note(path, digest(Path(file.name)))

    def remove(self, path: Path) -> None:
        """Remove a file that is as the program wrote it; leave any other."""
        if not os.path.lexists(path):
            return
        if self.may_replace(path):
            path.unlink()
        else:
            self.left.append(path)

    def note(self, path: Path, contents: str) -> None:
        """Note the digest of what is written to a file, or of a text that is put into it."""
        name = self._name(path)
        if not self._add(name, contents) or self.path is None:
            return
        line = json.dumps({"file": name, "digest": contents}) + "\n"
        with naming_the_disk(self.path), self.path.open("ab", buffering=0) as file:
            file.write(line.encode())  # in one write, as other processes add lines too

    def is_noted(self, path: Path, contents: str) -> bool:
        """Tell whether a digest was noted for a file."""
        return contents in self.hashes.get(_key(self._name(path)), ())

    def knows(self, path: Path) -> bool:
        """Tell whether anything was noted for a file."""
        return _key(self._name(path)) in self.hashes

    def _is_inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.folder.resolve())

    def _name(self, path: Path) -> str:
        """Return what a file is called: relative to the folder, so that both can be moved together."""
        place = os.path.join(os.path.realpath(path.parent), path.name)
        return os.path.relpath(place, os.path.realpath(self.folder)).replace(os.sep, "/")


def _key(name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()
