"""Files as every part of the program treats them: written whole or not at all, locked, told apart and named."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are not kept apart there
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None


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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        free = shutil.disk_usage(path.parent).free
        reason = f"{os.strerror(error.errno)}: {free / 1e6:,.1f} MB are free; make room and run the command again"
        raise OSError(error.errno, reason, os.fspath(path)) from None


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


def digest(source: Path | bytes) -> str:
    """Return a hash of a file's contents, or of bytes, in hexadecimal."""
    contents = hashlib.blake2b(digest_size=16)
    if isinstance(source, bytes):
        contents.update(source)
        return contents.hexdigest()
    with source.open("rb") as file:
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
