"""Compressed tar archives, unpacked as a stream and never to disk: once to list the members, once more to read them.

A compressed stream has no places to go to, so readers move forward through it and are kept for the members that come
later. Written for archives from strangers: a stream that unpacks to far more than its file is not unpacked further.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Lock
from typing import IO, Protocol

from captioner.files import one_line, open_regular
from captioner.images.archives.tar import BLOCK, ArchiveError, Member, list_members

EXTENSIONS = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz")
# An archive may unpack to so many bytes, and to so many for each of its own; with photographs these are hardly two.
FREE_BYTES, MAX_RATIO = 100_000_000, 200
MAX_DICTIONARY = 100_000_000  # bytes that xz may keep in memory; its highest level needs 65 MB
# Decoding and drawing read the same archive at two places, and threads overtake one another.
MAX_READERS = 4
_CHUNK = 1 << 16


class _Decompressor(Protocol):
    """One compressed stream, as the modules bz2 and lzma read it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """One gzip stream, in the manner of the modules bz2 and lzma."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        contents = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self.needs_input = len(contents) < max_length and not self._stream.unconsumed_tail
        return contents


def _make_bzip2() -> _Decompressor:
    from bz2 import BZ2Decompressor  # not in every build of Python

    return BZ2Decompressor()


def _make_xz() -> _Decompressor:
    from lzma import FORMAT_XZ, LZMADecompressor  # not in every build of Python

    return LZMADecompressor(FORMAT_XZ, memlimit=MAX_DICTIONARY)


_MAKERS: dict[bytes, Callable[[], _Decompressor]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": _make_bzip2,
    b"\xfd7zXZ\0": _make_xz,
}


class Unpacked:
    """A compressed file as the bytes that it unpacks to, read forward within bounds; `position` is the next of them."""

    def __init__(self, file: IO[bytes]) -> None:
        head = file.read(6)
        if not head:
            raise ArchiveError("empty file")
        found = next((make for magic, make in _MAKERS.items() if head.startswith(magic)), None)
        if found is None:
            raise ArchiveError("not compressed by gzip, bzip2 or xz")
        self.file, self.position = file, 0
        self._make, self._waiting = found, head
        self._stream = self._start()

    def _start(self) -> _Decompressor:
        try:
            return self._make()
        except ImportError as error:
            raise ArchiveError(f"this Python was built without {error.name}; unpack it first") from None

    def seek(self, position: int) -> None:
        """Go forward to a place; raise `ArchiveError` where that is beyond the end, by more than a block's padding."""
        if position < self.position:
            raise ValueError(f"cannot go back from byte {self.position:,} to {position:,}")
        while self.position < position and self._unpack(min(_CHUNK, position - self.position)):
            pass
        if position - self.position >= BLOCK:
            raise ArchiveError(f"truncated: the contents before byte {position:,} extend beyond its end")

    def read(self, length: int) -> bytes:
        """Return the next bytes, fewer only at the end; raise `ArchiveError` where they cannot be unpacked."""
        parts = []
        while length > 0 and (part := self._unpack(min(_CHUNK, length))):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _unpack(self, most: int) -> bytes:
        """Return some of the next bytes, at least one unless this is the end."""
        contents = b""
        while not contents:
            if self._stream.eof:  # another stream may follow, or zeros
                rest = self._waiting
                while not (rest := rest.lstrip(b"\0")):
                    if not (rest := self.file.read(_CHUNK)):
                        return b""
                self._stream, self._waiting = self._start(), rest
            contents = self._decompress(most)
        self.position += len(contents)
        if self.position > FREE_BYTES + MAX_RATIO * self.file.tell():
            raise ArchiveError(f"unpacks to more than {MAX_RATIO} times its size; unpack it first if you trust it")
        return contents

    def _decompress(self, most: int) -> bytes:
        if self._stream.needs_input and not self._waiting:
            self._waiting = self.file.read(_CHUNK)
            if not self._waiting:
                raise ArchiveError("truncated: it ends within its compressed data")
        given = self._waiting if self._stream.needs_input else b""
        try:
            contents = self._stream.decompress(given, most)
        except Exception as error:  # each module has exceptions of its own
            raise ArchiveError(f"damaged: {one_line(error)}") from None
        self._waiting = self._stream.unused_data if self._stream.eof else b""
        return contents


def read_compressed_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    """Yield the files and links in a compressed tar archive as `read_members` does, offsets as it is unpacked."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block at its opening already
        raise ArchiveError("not a regular file")
    with open(path, "rb") as file:
        for member in list_members(Unpacked(file)):
            yield replace(member, streamed=True)


class _Reader:
    """A place in an archive to read on from; the file is open only while it is read."""

    def __init__(self, file: IO[bytes], archive: object) -> None:
        self.archive, self.unpacked = archive, Unpacked(file)
        self._packed = file.tell()

    def read(self, file: IO[bytes], offset: int, size: int) -> bytes:
        file.seek(self._packed)
        self.unpacked.file = file
        self.unpacked.seek(offset)
        contents = self.unpacked.read(size)
        self._packed = file.tell()
        return contents


_readers: list[_Reader] = []  # the one used last is last
_lock = Lock()


def read_compressed_member(path: str | os.PathLike[str], offset: int, size: int) -> bytes:
    """Return the contents of a member; cheap for members in their order, else the archive is unpacked from its start.

    Raise `ArchiveError` where it is damaged.
    """
    with _lock, open_regular(path) as file:  # threads would only unpack the same bytes side by side
        status = os.fstat(file.fileno())
        archive = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        before = [each for each in _readers if each.archive == archive and each.unpacked.position <= offset]
        if before:
            reader = max(before, key=lambda each: each.unpacked.position)
            _readers.remove(reader)  # it stays out if it fails
        else:
            reader = _Reader(file, archive)
        contents = reader.read(file, offset, size)
        if len(contents) < size:
            raise ArchiveError("truncated: it ends within the contents of this member")
        _readers.append(reader)
        del _readers[:-MAX_READERS]
        return contents
