"""One image of a collection: what it is called, where it lies, and what tells whether it is still the same."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from captioner.files import digest, open_regular, printable, system_reason
from captioner.images.archives.compressed_tar import read_compressed_member
from captioner.images.archives.tar import ArchiveError
from captioner.images.archives.zip import HEAD, read_zip_member
from captioner.images.headers.header import Damaged, announced_pixels, find_format
from captioner.images.opening import FREE_BYTES, MAX_BYTES, ImageError, check_bytes, read_file


@dataclass(frozen=True)
class Stamp:
    """What tells whether an image file is still the same: its size and time, and if these differ its contents."""

    bytes: int
    modified: str  # UTC, to the microsecond
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"bytes": self.bytes, "modified": self.modified, "digest": self.digest}


def stamp_key(values: Any) -> bytes | None:
    """Return a stamp's plain values in 32 bytes, None where they are damaged or missing."""
    try:
        return _quick_key(int(values["bytes"]), str(values["modified"])) + bytes.fromhex(values["digest"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _quick_key(size: int, modified: str) -> bytes:
    return size.to_bytes(8, "big") + hashlib.blake2b(modified.encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Source:
    """One image to caption: its `name` in records, and where it is.

    The name of a file is its path as given or found; that of an archive's member is the archive's path, a slash and the
    member's name. Slashes part it on every system, and undecodable bytes are surrogates.
    """

    name: str
    path: Path  # of the file, or of the archive
    offset: int | None = None  # of a member in its archive
    size: int = 0  # of a member's contents
    problem: str | None = None  # why there is no image, where that is known already
    packed: int | None = None  # bytes that a member of a zip archive takes there
    deflated: bool = False  # they are compressed
    streamed: bool = False  # the archive is compressed as a whole, and the offset is that in what it unpacks to
    contents: bytes | None = None  # of an image that came by itself, and not in a file
    stamp: Stamp | None = None  # of the file that was read

    def open(self) -> Path | bytes:
        """Return the file's path or the member's bytes; raise `ImageError` where there is no image."""
        if self.problem is not None:
            raise ImageError(printable(self.name), self.problem)
        if self.contents is not None:
            return self.contents
        return self.path if self.offset is None else self._read_member(self.offset)

    def _read_member(self, offset: int) -> bytes:
        if (size := max(self.size, self.packed or 0)) > MAX_BYTES:
            reason = f"{size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are read"
            raise ImageError(printable(self.name), reason)
        try:
            if self.streamed:
                return read_compressed_member(self.path, offset, self.size)
            with open_regular(self.path) as file:
                if self.packed is not None:
                    return read_zip_member(file, offset, self.size, self.packed, self.deflated, self._check_head)
                file.seek(offset)
                head = file.read(min(self.size, HEAD))
                self._check_head(head)
                return head + file.read(self.size - len(head))
        except ArchiveError as error:
            raise ImageError(printable(self.name), str(error)) from None
        except OSError as error:
            raise ImageError(printable(self.name), system_reason(error)) from None
        except ImageError:
            raise
        except ValueError:
            raise ImageError(printable(self.name), "its archive is not a regular file") from None

    def _check_head(self, head: bytes) -> None:
        """Raise `ImageError` where a member is far larger than the picture that its first bytes announce."""
        # The directory of a TIFF may lie at its end.
        if self.size > FREE_BYTES and find_format(head) != "TIFF":
            try:
                check_bytes(self.size, announced_pixels(head, lambda offset, length: head[offset : offset + length]))
            except Damaged as error:
                raise ImageError(printable(self.name), str(error)) from None

    def read(self) -> tuple[Source, bytes]:
        """Return the image's bytes, and the source with the stamp of what was read; raise `ImageError` as `open`."""
        opened = self.open()
        if isinstance(opened, bytes):
            if self.contents is not None:
                return self, opened
            contents, status = opened, self._status()
        else:
            contents, status = read_file(opened)
        if status is None:
            return self, contents
        return replace(self, stamp=Stamp(len(contents), _time(status), digest(contents))), contents

    def is_as(self, known: bytes) -> bool:
        """Tell whether the image is still the one of a `stamp_key`; one that is gone is not told from it."""
        status = self._status()
        if status is None or self.problem is not None or self.contents is not None:
            return True
        size = status.st_size if self.offset is None else self.size
        if _quick_key(size, _time(status)) == known[:16]:
            return True
        if size.to_bytes(8, "big") != known[:8]:
            return False
        try:
            contents = read_file(self.path)[0] if self.offset is None else self._read_member(self.offset)
        except ImageError:
            return False
        return bytes.fromhex(digest(contents)) == known[16:]

    def _status(self) -> os.stat_result | None:
        try:
            return os.stat(self.path)
        except (OSError, ValueError):
            return None

    @property
    def key(self) -> bytes:
        """The name in 16 bytes."""
        return name_key(self.name)

    @property
    def identity(self) -> bytes:
        """What is the same for all spellings of the same file's path, in 16 bytes."""
        if self.contents is not None:
            return self.key
        member = self.name[len(self.path.as_posix()) :] if self.offset is not None else ""
        return name_key(real_path(self.path) + member)


def _time(status: os.stat_result) -> str:
    seconds, rest = divmod(status.st_mtime_ns // 1000, 1_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"
    except (OverflowError, ValueError, OSError):  # of a damaged file system
        return str(status.st_mtime_ns)


def real_path(path: str | os.PathLike[str]) -> str:
    """Return where a file really lies, links followed."""
    try:
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        return os.path.join(_real_folder(folder, os.getcwd()), name)
    except (OSError, ValueError):  # of a name that no file can have
        return os.fspath(path)


@lru_cache(maxsize=4096)
def _real_folder(folder: str, current: str) -> str:
    return os.path.realpath(os.path.join(current, folder))


def name_key(name: str) -> bytes:
    """Return a hash of a name, to remember many names by; no two are alike in practice."""
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()


def is_in_share(key: bytes, share: int, shares: int) -> bool:
    """Tell whether an image falls to a share, 0 to `shares` - 1: by its name's key alone, whatever others there are."""
    return int.from_bytes(key, "big") % shares == share
