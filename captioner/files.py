"""Files as every part of the program treats them: written whole or not at all, read only if they are what they should.

Every file that somebody else may have made is opened by `open_regular`: a pipe would block, a device never ends, and a
sparse file of a few bytes on disk may fill all memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are not kept apart there
    fcntl = None  # type: ignore[assignment]

LONGEST_MESSAGE = 4000  # letters
MOST_LEVELS = 100  # of JSON: what goes through values level by level, as a copy does, gives up at some hundreds
_DEEP = "it is nested too deeply"
CAN_LOCK = fcntl is not None
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_ALL_FILES = (*_FULL, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def replacing(path: Path, *, unfinished: Path | None = None, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file to write, which takes the place of the one at `path` once it is whole.

    Meanwhile it is `unfinished`, on the same disk, by default beside `path` and this process's own. Without `sync` it
    is not waited for to be on disk, for files that are many and can be made again.
    """
    unfinished = unfinished or path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    try:
        with naming_the_disk(path), unfinished.open("xb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


@contextlib.contextmanager
def naming_the_disk(path: Path) -> Iterator[None]:
    """Name the file, and what to do, where a disk is full while it is written; the system names neither."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        free = shutil.disk_usage(path.parent).free
        reason = f"{os.strerror(error.errno)}: {free / 1e6:,.1f} MB are free; make room and run the command again"
        raise OSError(error.errno, reason, os.fspath(path)) from None


def concerns_all_files(error: OSError) -> bool:
    """Tell whether what the system says of one file would be said of all others too, as of a full disk."""
    return error.errno in _OF_ALL_FILES


def system_reason(error: OSError) -> str:
    """Return what the system says, without the name of the file."""
    return (error.strerror or str(error)).lower()


def write_whole(path: Path, contents: str | bytes, *, unfinished: Path | None = None, sync: bool = True) -> None:
    """Write a file, text in UTF-8, so that it is there whole or not at all; the rest is as for `replacing`."""
    with replacing(path, unfinished=unfinished, sync=sync) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


def remove_unfinished(folder: Path) -> None:
    """Remove what `replacing` left in a folder when a process was killed; no process may be writing meanwhile."""
    for path in folder.iterdir():
        if re.fullmatch(r".+\.\d+\.unfinished", path.name):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Make what was moved into a folder outlast a power cut, on systems that can do this."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know nothing of it; a disk that fails must not pass unseen.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise ValueError where there is something at `path` that is not a regular file."""
    with contextlib.suppress(FileNotFoundError):
        _check_mode(path, os.stat(path))


def open_regular(path: str | os.PathLike[str], *, most: int | None = None) -> IO[bytes]:
    """Open a file to read; before that raise ValueError unless it is a regular file of at most `most` bytes.

    What the system itself refuses, such as a file that is not there, stays an OSError.
    """
    _check_mode(path, os.stat(path))  # some devices must not even be opened
    # Not blocking, should a pipe have taken the file's place meanwhile.
    file = open(  # noqa: SIM115
        path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    )
    try:
        status = os.fstat(file.fileno())
        _check_mode(path, status)
        if most is not None and status.st_size > most:
            raise ValueError(f"{printable(os.fspath(path))} has {status.st_size:,} bytes; at most {most:,} are read")
    except BaseException:
        file.close()
        raise
    return file


def _check_mode(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no file")
        raise ValueError(f"{printable(os.fspath(path))} is {kind}; expected a regular file")


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_whole(path: str | os.PathLike[str], *, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes."""
    with open_regular(path, most=most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_lines(path: str | os.PathLike[str], *, longest: int, most: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers, from 1, and the bytes of a regular file's lines, each but the last with its newline.

    A line of more than `longest` bytes, or a file of more than `most`, is a ValueError; nothing else is held in memory.
    """
    with open_regular(path, most=most) as file:
        for number in count(1):
            line = file.readline(longest + 1)
            if len(line) > longest:
                name = printable(os.fspath(path))
                raise ValueError(f"{name}:{number} is too long; a line has at most {longest:,} bytes")
            if not line:
                return
            yield number, line


def read_json(path: str | os.PathLike[str], *, most: int) -> Any:
    """Return what a UTF-8 file of JSON, of at most `most` bytes, holds; a ValueError says what is wrong with it."""
    return parse_json(read_whole(path, most=most), printable(os.fspath(path)))


def read_json_object(path: str | os.PathLike[str], *, most: int) -> dict[str, Any]:
    """Return the JSON object that a UTF-8 file, of at most `most` bytes, holds; a ValueError says what is wrong."""
    content = read_json(path, most=most)
    if not isinstance(content, dict):
        raise ValueError(f"{printable(os.fspath(path))} holds a JSON {type(content).__name__}, expected an object")
    return content


class JSONError(ValueError):
    """Something is no JSON in UTF-8: its `source`, and the `reason`, such as "not valid JSON: Expecting value ..."."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source, self.reason = source, reason

    def __str__(self) -> str:
        return f"{self.source} is {self.reason}"


def parse_json(text: str | bytes, source: str) -> Any:
    """Return what JSON in UTF-8 says; a `JSONError` names its `source` and the position of what is wrong."""
    try:
        return plain_json(text)
    except UnicodeDecodeError as error:
        raise JSONError(source, f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None
    except ValueError as error:
        raise JSONError(source, f"not valid JSON: {error}") from None


def plain_json(text: str | bytes) -> Any:
    """Return what JSON in UTF-8 says; raise ValueError where it is damaged, or nested so deeply that others give up."""
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None
    level = [values] if text.count("[") + text.count("{") > MOST_LEVELS else []
    for _ in range(MOST_LEVELS if level else 0):
        level = [
            value
            for each in level
            if type(each) is list or type(each) is dict
            for value in (each.values() if type(each) is dict else each)
            if type(value) is list or type(value) is dict
        ]
    if level:
        raise ValueError(_DEEP)
    return values


def digest(source: Path | bytes) -> str:
    """Return a hash of a file's contents, or of bytes, in hexadecimal."""
    contents = hashlib.blake2b(digest_size=16)
    if isinstance(source, bytes):
        contents.update(source)
        return contents.hexdigest()
    with open_regular(source) as file:
        while block := file.read(1 << 20):
            contents.update(block)
    return contents.hexdigest()


def try_lock(file: IO[bytes], *, shared: bool = False) -> bool:
    """Hold a file until it is closed, against those who would hold it alone or, unless shared, hold it at all."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def one_line(error: Exception) -> str:
    """Return what an exception says, fit for one line of text."""
    text = " ".join(str(error).split())
    # A KeyError says no more than a number, also where Pillow raises it again as a SyntaxError.
    return printable(text if re.search("[a-z]", text) else f"{type(error.__cause__ or error).__name__} {text}".strip())


def printable(name: str) -> str:
    """Return a file's name fit for one line of text: quoted and escaped where it holds control characters."""
    return name if name.isprintable() else ascii(name)


def printable_line(text: str) -> str:
    """Return a message fit for one line of a terminal: line ends and escapes are spelled out, too much is cut off."""
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}..."
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
