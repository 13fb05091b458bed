"""The images that a command's arguments name, found as often as they are asked for, and checked at once."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from captioner.commands.arguments import no_images
from captioner.files import digest, printable
from captioner.images.finding import ARCHIVES, find_sources
from captioner.images.headers.header import find_format
from captioner.images.headers.raw_previews import is_panasonic
from captioner.images.kinds import SUBFOLDER, describe_unread
from captioner.images.patterns import expand_patterns, read_list
from captioner.images.sources import Source

STDIN = "-"  # the path that stands for an image, or for a list of paths, on standard input
_ARCHIVE = re.compile(rb"PK\x03\x04|\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!|.{257}ustar", re.DOTALL)
_WEB_PAGE = re.compile(rb"\s*<(!doctype\s|html|\?xml\s)", re.IGNORECASE)


def _why_no_list(contents: bytes, *, null: bool) -> str | None:
    """Return what standard input is, and what to do, where it holds neither an image nor a list of paths; else None."""
    if _ARCHIVE.match(contents):
        return "an archive; save it, and name the file: captioner caption FILE"
    if _WEB_PAGE.match(contents):
        return "a web page, not an image; check the address it came from"
    if b"\0" in contents and not null:
        return "no image that is read, and no list of paths (-0 reads one with NULs)"
    return None


class Collection:
    """The images in files, folders, archives, by patterns, in a list on standard input, or one image itself there.

    The folder `leave_out` is not looked into. `unread` counts the pictures that cannot be read, by their kinds, once
    the images have been gone through.
    """

    def __init__(
        self, paths: Sequence[str], *, recursive: bool, null: bool = False, leave_out: Path | None = None
    ) -> None:
        self.paths, self.recursive, self.leave_out = paths, recursive, leave_out
        self.unread: Counter[str] = Counter()
        self.listed: list[str] = []
        self.piped: Source | None = None
        self.tops: list[tuple[str, bool]] | None = None
        if STDIN in paths:
            contents = sys.stdin.buffer.read()
            if find_format(contents) is not None or is_panasonic(contents):
                self.piped = Source(f"stdin-{digest(contents)[:12]}", Path(STDIN), contents=contents)
            elif (problem := _why_no_list(contents, null=null)) is not None:
                raise ValueError(f"standard input is {problem}")
            else:
                self.listed = read_list(contents, null=null)

    def __iter__(self) -> Iterator[Source]:
        self.unread.clear()
        yield from self._find(self.unread)

    def aside(self) -> Iterator[Source]:
        """Yield the same images, and leave `unread` to whoever goes through them meanwhile."""
        return self._find(Counter())

    def _find(self, unread: Counter[str]) -> Iterator[Source]:
        if self.piped is not None:
            yield self.piped
        yield from find_sources(self._paths(), recursive=self.recursive, leave_out=self.leave_out, unread=unread)

    def _paths(self) -> Iterator[str]:
        for path in self.paths:
            yield from self.listed if path == STDIN else expand_patterns([path])

    def check(self) -> None:
        """Raise ValueError where there is no image at all, by what there is instead."""
        missing: Source | None = None
        for source in self:
            if source.problem is None and (source.contents is not None or os.path.lexists(source.path)):
                return
            missing = missing or source
        if missing is not None:
            none = "no such file or folder" if not glob.has_magic(missing.name) else "nothing matches this pattern"
            raise ValueError(f"{printable(missing.name)}: {missing.problem or none}")
        raise self.nothing()

    def nothing(self) -> ValueError:
        """Return the error that there is nothing to do."""
        if not any(path != STDIN for path in self.paths):
            return ValueError("standard input is empty; pipe an image into it, or a list of paths")
        # Subfolders have a hint of their own.
        pictures = {kind: count for kind, count in self.unread.items() if kind != SUBFOLDER}
        return no_images(self.paths, recursive=self.recursive, unread=describe_unread(pictures))

    def covers(self, name: str) -> bool:
        """Tell whether an image of this name would be among these, were it there: it lies in a folder or archive named.

        A folder without any image covers nothing: it may be a disk that is not there.
        """
        if self.tops is None:
            self.tops = [top for path in self._paths() if (top := self._top(path)) is not None]
        leads_away = name.startswith("../") or os.path.isabs(name)  # from the current folder, whose top is ""
        return any(
            name.startswith(top) and not (leads_away and not top) and (deep or "/" not in name[len(top) :])
            for top, deep in self.tops
        )

    def _top(self, path: str) -> tuple[str, bool] | None:
        """Return what the names in a folder or archive begin with, and whether those in folders below count as well."""
        is_archive = path.lower().endswith(ARCHIVES) and os.path.isfile(path)
        if not (is_archive or os.path.isdir(path)):
            return None
        if not any(True for _ in find_sources([path], recursive=self.recursive, leave_out=self.leave_out)):
            return None
        name = Path(path).as_posix()
        return ("" if name == "." else f"{name.rstrip('/')}/"), self.recursive or is_archive
