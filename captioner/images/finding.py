"""Finding images: in files, folders and archives, and what is left out there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from captioner.files import system_reason
from captioner.images.archives import ArchiveError, Member, read_members
from captioner.images.compressed_archives import EXTENSIONS as COMPRESSED
from captioner.images.compressed_archives import read_compressed_members
from captioner.images.kinds import EXTENSIONS, is_raw_beside_jpeg, unread_kind
from captioner.images.sources import Source
from captioner.images.zip_archives import read_zip_members

_READERS: dict[str, Callable[[Path], Iterator[Member]]] = {
    ".tar": read_members,
    ".zip": read_zip_members,
    **dict.fromkeys(COMPRESSED, read_compressed_members),
}
ARCHIVES = tuple(_READERS)  # how their names end
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def find_images(
    paths: Iterable[str | os.PathLike[str]],
    *,
    recursive: bool = False,
    extensions: Collection[str] = EXTENSIONS,
    leave_out: str | os.PathLike[str] | None = None,
    unread: Counter[str] | None = None,
) -> Iterator[Path]:
    """Yield image files: named files as they are, of folders those with one of the `extensions`, sorted by name.

    Hidden files and folders are left out, and so is the folder `leave_out` unless it is named; a folder that a symlink
    leads back to is visited once. A folder that cannot be listed is yielded itself, so that opening it says why.
    `unread` counts the pictures in folders that cannot be read, by the kinds that `captioner.images.kinds` tells, and
    camera raw files beside a JPEG of the same name: a camera writes both of one photograph, and the JPEG is taken.
    """
    unread = Counter() if unread is None else unread
    for path in map(Path, paths):
        if os.path.isdir(path):
            yield from _walk(path, recursive, extensions, leave_out, unread)
        else:
            yield path


def _walk(
    top: Path,
    recursive: bool,
    extensions: Collection[str],
    leave_out: str | os.PathLike[str] | None,
    unread: Counter[str],
) -> Iterator[Path]:
    visited: set[tuple[int, int]] = set()
    if leave_out is not None and os.path.isdir(leave_out) and not os.path.samefile(leave_out, top):
        status = os.stat(leave_out)
        visited.add((status.st_dev, status.st_ino))
    endings = tuple(extensions)
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
        names = {entry.name.lower() for entry in found}
        for entry in found:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a symlink to itself
                continue
            is_image = entry.name.lower().endswith(endings)
            if entry.name.startswith("."):
                continue
            if not is_folder and is_raw_beside_jpeg(entry.name, names):
                unread["raw"] += 1
            elif recursive if is_folder else is_image:
                pending.append((path / entry.name, is_folder))
            elif not is_folder and (kind := unread_kind(entry.name)):
                unread[kind] += 1


def find_sources(
    paths: Iterable[str | os.PathLike[str]],
    *,
    recursive: bool = False,
    leave_out: str | os.PathLike[str] | None = None,
    unread: Counter[str] | None = None,
) -> Iterator[Source]:
    """Yield the images in files, folders and archives as `find_images` finds them, each file once.

    The same file is told by where it really lies, however its path is spelt. An archive counts as a folder of its
    members that have an image's extension. An archive that cannot be read, or not to its end, is yielded itself, with
    the reason, and so is what is no file at all. `unread` is as for `find_images`.
    """
    seen: set[bytes] = set()
    extensions = (*EXTENSIONS, *ARCHIVES)
    for given in paths:
        if problem := _not_a_file(given):
            yield Source(os.fspath(given), Path(given), problem=problem)
            continue
        for path in find_images(
            [given], recursive=recursive, extensions=extensions, leave_out=leave_out, unread=unread
        ):
            is_archive = path.name.lower().endswith(ARCHIVES) and not os.path.isdir(path)
            for source in _members(path) if is_archive else [Source(path.as_posix(), path)]:
                if (key := source.identity) not in seen:
                    seen.add(key)
                    yield source


def _not_a_file(given: str | os.PathLike[str]) -> str | None:
    """Return why a path is none that could be read, and what to do."""
    text = os.fspath(given)
    if _URL.match(text):
        return "a URL; download it first, or pipe it: curl -sL URL | captioner caption -"
    kind = unread_kind(text)
    if kind == "compressed archive" and os.path.isfile(text):
        return "an archive of a kind that is not read; unpack it first and name the folder"
    return None


def _members(archive: Path) -> Iterator[Source]:
    read = next(read for ending, read in _READERS.items() if archive.name.lower().endswith(ending))
    try:
        for member in read(archive):
            if _is_image(member):
                yield Source(
                    f"{archive.as_posix()}/{member.name}",
                    archive,
                    member.offset,
                    member.size,
                    member.problem,
                    packed=member.packed,
                    deflated=member.deflated,
                    streamed=member.streamed,
                )
    except (ArchiveError, OSError, ValueError, OverflowError) as error:  # ValueError of a name that no file can have
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        yield Source(archive.as_posix(), archive, problem=reason)


def _is_image(member: Member) -> bool:
    parts = member.name.split("/")
    is_hidden = any(part.startswith(".") and part != ".." for part in parts)
    return not is_hidden and os.path.splitext(parts[-1])[1].lower() in EXTENSIONS
