"""Finding images: in files, folders and archives, and what is left out there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from captioner.files import system_reason
from captioner.images.archives.compressed_tar import EXTENSIONS as COMPRESSED
from captioner.images.archives.compressed_tar import read_compressed_members
from captioner.images.archives.tar import ArchiveError, Member, read_members
from captioner.images.archives.zip import read_zip_members
from captioner.images.headers.header import find_format
from captioner.images.key_set import KeySet
from captioner.images.kinds import EXTENSIONS, SUBFOLDER, is_raw_beside_jpeg, unread_kind, why_not_a_photograph
from captioner.images.sources import Source

_READERS: dict[str, Callable[[Path], Iterator[Member]]] = {
    ".tar": read_members,
    ".zip": read_zip_members,
    **dict.fromkeys(COMPRESSED, read_compressed_members),
}
ARCHIVES = tuple(_READERS)  # how their names end
_HEAD = 256  # bytes that tell a format
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Tell whether a text is a URL, and not a path."""
    return _URL.match(text) is not None


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
    camera raw files beside a JPEG of the same name: a camera writes both of one photograph, and the JPEG is taken. It
    counts subfolders with images, too, where they are not searched.
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
    endings = tuple(extensions)
    pending: list[Iterator[tuple[Path, bool]]] = [iter([(top, True)])]  # paths, and whether they are folders
    while pending:
        following = next(pending[-1], None)
        if following is None:
            pending.pop()
            continue
        path, is_folder = following
        if not is_folder:
            yield path
            continue
        try:
            status = path.stat()
            if _key(status) not in visited and (path is top or not _is_same(leave_out, status)):
                visited.add(_key(status))
                pending.append(_paths(path, _names(path, recursive, endings, unread)))
        except OSError:
            yield path


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_same(folder: str | os.PathLike[str] | None, status: os.stat_result) -> bool:
    """Tell whether there is such a folder, and it is the one of a status; it may have been made meanwhile."""
    try:
        return folder is not None and _key(os.stat(folder)) == _key(status)
    except OSError:
        return False


def _names(folder: Path, recursive: bool, endings: tuple[str, ...], unread: Counter[str]) -> str:
    """Return the names to visit in a folder, in order, a NUL between them and a slash after those of folders.

    One text takes a tenth of the memory of as many paths, and the first image need not wait for those to be made.
    """
    names, files, folders = [], [], set()
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:  # a symlink to itself
                continue
            if entry.name.startswith("."):
                continue
            if not is_folder:
                files.append(entry.name)
            elif recursive:
                names.append(entry.name)
                folders.add(entry.name)
            elif _has_images(entry.path, endings):
                unread[SUBFOLDER] += 1
    beside = {name.lower() for name in files}
    for name in files:
        if is_raw_beside_jpeg(name, beside):
            unread["raw"] += 1
        elif name.lower().endswith(endings):
            names.append(name)
        elif kind := unread_kind(name):
            unread[kind] += 1
    names.sort()
    return "\0".join(f"{name}/" if name in folders else name for name in names)


def _has_images(folder: str, endings: tuple[str, ...]) -> bool:
    """Tell whether a folder that is not looked into holds an image by its name."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.lower().endswith(endings) and entry.name[0] != "." for entry in entries)
    except OSError:
        return False


def _paths(folder: Path, names: str) -> Iterator[tuple[Path, bool]]:
    """Yield what `_names` lists, one by one: paths, and whether they are folders."""
    start = 0
    while start < len(names):
        end = names.find("\0", start)
        end = len(names) if end < 0 else end
        name = names[start:end]
        yield folder / name, name.endswith("/")
        start = end + 1


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
    seen = KeySet()
    unread = Counter() if unread is None else unread
    extensions = (*EXTENSIONS, *ARCHIVES)
    for given in paths:
        if problem := _not_a_file(given):
            yield Source(os.fspath(given), Path(given), problem=problem)
            continue
        for path in find_images(
            [given], recursive=recursive, extensions=extensions, leave_out=leave_out, unread=unread
        ):
            is_archive = path.name.lower().endswith(ARCHIVES) and not os.path.isdir(path)
            for source in _members(path, unread) if is_archive else [Source(path.as_posix(), path)]:
                if seen.add(source.identity):
                    yield source


def _not_a_file(given: str | os.PathLike[str]) -> str | None:
    """Return why a path is none that could be read, and what to do."""
    text = os.fspath(given)
    if is_url(text):
        return "a URL; download it first, or pipe it: curl -sL URL | captioner caption -"
    kind = unread_kind(text)
    if kind == "compressed archive" and os.path.isfile(text):
        return "an archive of a kind that is not read; unpack it first and name the folder"
    if kind is not None and os.path.isfile(text) and not _begins_as_image(text):
        return why_not_a_photograph(kind)
    return None


def _begins_as_image(path: str) -> bool:
    """Tell whether a file is an image by its contents, or cannot be read at all, which opening it tells."""
    try:
        with open(path, "rb") as file:
            return find_format(file.read(_HEAD)) is not None
    except OSError:
        return True


def _members(archive: Path, unread: Counter[str]) -> Iterator[Source]:
    read = next(read for ending, read in _READERS.items() if archive.name.lower().endswith(ending))
    try:
        for member in read(archive):
            if is_hidden(member.name):
                continue
            if not member.name.lower().endswith(tuple(EXTENSIONS)):
                if kind := unread_kind(member.name):
                    unread[kind] += 1
            else:
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


def is_hidden(name: str) -> bool:
    """Tell whether a member of an archive, or a folder that it is in, has a name that starts with a dot."""
    return any(part.startswith(".") and part != ".." for part in name.split("/"))
