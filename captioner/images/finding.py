"""Finding images: in files, folders and tar archives, by patterns and lists, and a process's share of them."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from captioner.files import printable
from captioner.images.archives import ArchiveError, read_members
from captioner.images.opening import MAX_BYTES, ImageError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"})
ARCHIVE = ".tar"


@dataclass(frozen=True)
class Source:
    """One image to caption: its `name` in records, and where it is.

    The name of a file is its path as given or found; that of an archive's member is the archive's path, a slash and the
    member's name. Slashes part it on every system, and undecodable bytes are surrogates.
    """

    name: str
    path: Path  # of the file, or of the archive
    offset: int | None = None  # of a member's contents in its archive
    size: int = 0  # of a member's contents
    problem: str | None = None  # why there is no image, where that is known already

    def open(self) -> Path | bytes:
        """Return the file's path or the member's bytes; raise `ImageError` where there is no image."""
        if self.problem is not None:
            raise ImageError(printable(self.name), self.problem)
        if self.offset is None:
            return self.path
        if self.size > MAX_BYTES:
            size = f"{self.size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are read"
            raise ImageError(printable(self.name), size)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise ImageError(printable(self.name), _reason(error)) from None

    @property
    def key(self) -> bytes:
        """The name in 16 bytes."""
        return name_key(self.name)


def name_key(name: str) -> bytes:
    """Return a hash of a name, to remember many names by; no two are alike in practice."""
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()


def is_in_share(key: bytes, share: int, shares: int) -> bool:
    """Tell whether an image falls to a share, 0 to `shares` - 1: by its name's key alone, whatever others there are."""
    return int.from_bytes(key, "big") % shares == share


def find_images(
    paths: Iterable[str | os.PathLike[str]],
    *,
    recursive: bool = False,
    extensions: Container[str] = EXTENSIONS,
    leave_out: str | os.PathLike[str] | None = None,
) -> Iterator[Path]:
    """Yield image files: named files as they are, of folders those with one of the `extensions`, sorted by name.

    Hidden files and folders are left out, and so is the folder `leave_out` unless it is named; a folder that a symlink
    leads back to is visited once. A folder that cannot be listed is yielded itself, so that opening it says why.
    """
    for path in map(Path, paths):
        if os.path.isdir(path):
            yield from _walk(path, recursive, extensions, leave_out)
        else:
            yield path


def _walk(
    top: Path, recursive: bool, extensions: Container[str], leave_out: str | os.PathLike[str] | None
) -> Iterator[Path]:
    visited: set[tuple[int, int]] = set()
    if leave_out is not None and os.path.isdir(leave_out) and not os.path.samefile(leave_out, top):
        status = os.stat(leave_out)
        visited.add((status.st_dev, status.st_ino))
    pending = [(top, True)]  # paths, and whether they are folders; the next one last
    while pending:
        path, is_folder = pending.pop()
        if not is_folder:
            yield path
            continue
        try:
            status = path.stat()
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:
            yield path
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in found:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a symlink to itself
                continue
            is_image = os.path.splitext(entry.name)[1].lower() in extensions
            if not entry.name.startswith(".") and (recursive if is_folder else is_image):
                pending.append((path / entry.name, is_folder))


def find_sources(
    paths: Iterable[str | os.PathLike[str]],
    *,
    recursive: bool = False,
    leave_out: str | os.PathLike[str] | None = None,
) -> Iterator[Source]:
    """Yield the images in files, folders and archives as `find_images` finds them, each name once.

    An archive counts as a folder of its members that have an image's extension. An archive that cannot be read, or not
    to its end, is yielded itself, with the reason.
    """
    seen: set[bytes] = set()
    extensions = EXTENSIONS | {ARCHIVE}
    for path in find_images(paths, recursive=recursive, extensions=extensions, leave_out=leave_out):
        is_archive = path.suffix.lower() == ARCHIVE and not path.is_dir()
        for source in _members(path) if is_archive else [Source(path.as_posix(), path)]:
            key = source.key
            if key not in seen:
                seen.add(key)
                yield source


def _members(archive: Path) -> Iterator[Source]:
    try:
        for member in read_members(archive):
            parts = member.name.split("/")
            is_hidden = any(part.startswith(".") and part != ".." for part in parts)
            if not is_hidden and os.path.splitext(parts[-1])[1].lower() in EXTENSIONS:
                name = f"{archive.as_posix()}/{member.name}"
                yield Source(name, archive, member.offset, member.size, member.problem)
    except (ArchiveError, OSError, ValueError) as error:  # the last of a name that no file can have
        yield Source(archive.as_posix(), archive, problem=_reason(error))


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


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


def read_list(stream: IO[bytes], *, null: bool = False) -> list[str]:
    """Return the paths in a list, one per line, or each with a NUL after it, which allows for any name."""
    entries = stream.read().split(b"\0" if null else b"\n")
    if not null:
        entries = [entry.removesuffix(b"\r") for entry in entries]
    return [os.fsdecode(entry) for entry in entries if entry]
