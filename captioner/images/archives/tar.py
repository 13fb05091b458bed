"""Tar archives, read without unpacking: where each member's contents lie, so that threads read them on their own.

Written for archives from strangers: no header makes it allocate more than `MAX_HEADER` bytes, go back, or loop.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK = 512
MAX_HEADER = 1 << 20  # bytes of a long name, or of a member's extended attributes
MAX_NAME = 4096  # bytes, as of a path

_FILES, _LINKS, _EMPTY = b"0\x007", b"12", b"3456"  # kinds; the last are devices, folders and pipes
_LONG_NAME, _LONG_LINK, _ATTRIBUTES, _GLOBAL_ATTRIBUTES, _SPARSE = b"L", b"K", b"x", b"g", b"S"


class ArchiveError(ValueError):
    """An archive cannot be read on; the message is one line that says why, and not which archive."""


@dataclass(frozen=True)
class Member:
    """A file in an archive, named as it is there, undecodable bytes as surrogates; `size` bytes at `offset`.

    Where it has no contents of its own, `problem` says so. That of a zip archive takes `packed` bytes there; that of a
    compressed tar archive is `streamed`, its offset that in the archive as it is unpacked.
    """

    name: str
    offset: int
    size: int
    problem: str | None = None
    packed: int | None = None
    deflated: bool = False
    streamed: bool = False


class Bytes(Protocol):
    """What a tar archive is read from, forward only."""

    def seek(self, position: int, /) -> object:
        """Go to a place."""

    def read(self, length: int, /) -> bytes:
        """Return the next bytes, fewer only at the end."""


def read_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    """Yield the files and links in a tar archive, as they lie in it; raise `ArchiveError` where it is damaged.

    Formats: POSIX (ustar, pax), GNU and the old one, not compressed.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block at its opening already
        raise ArchiveError("not a regular file")
    with open(path, "rb") as file:
        yield from list_members(file, os.fstat(file.fileno()).st_size)


def list_members(file: Bytes, length: int | None = None) -> Iterator[Member]:
    """Yield the members of an opened archive of `length` bytes, if that is known, as `read_members` does."""
    given: dict[str, bytes] = {}  # what the headers before a member say of it
    position = 0
    while header := _read_header(file, position):
        kind, start = header[156:157], position + BLOCK
        is_extension = kind in (_LONG_NAME, _LONG_LINK, _ATTRIBUTES, _GLOBAL_ATTRIBUTES)
        size = _number(header[124:136], 8) if is_extension or "size" not in given else _number(given["size"], 10)
        has_contents = kind not in _LINKS + _EMPTY
        if has_contents and length is not None and start + size > length:
            raise ArchiveError(f"truncated: the contents at byte {start:,} extend beyond its end")
        position = start + (-(-size // BLOCK) * BLOCK if has_contents else 0)
        if kind in (_LONG_NAME, _ATTRIBUTES):
            given |= _read_attributes(file, kind, start, size)
        elif not is_extension:
            name = given.get("path") or _plain_name(header)
            if kind not in _EMPTY and not name.endswith(b"/"):
                sparse = kind == _SPARSE or any(key.startswith("GNU.sparse") for key in given)
                yield _member(name, start, size, kind in _LINKS, sparse)
            given = {}


def _read_header(file: Bytes, position: int) -> bytes | None:
    """Return the header at `position`, None at the archive's end."""
    file.seek(position)
    header = file.read(BLOCK)
    if not header.strip(b"\0"):
        if position == 0 and not header:
            raise ArchiveError("empty file")
        return None
    if len(header) < BLOCK:
        raise ArchiveError(f"truncated: it ends within the header at byte {position:,}")
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    try:
        right = _number(header[148:156], 8) == total
    except ArchiveError:
        right = False
    if not right:
        raise ArchiveError("not a tar archive" if position == 0 else f"damaged: no header at byte {position:,}")
    return header


def _number(field: bytes, base: int) -> int:
    """Return a number in digits, or in binary where the first bit is set."""
    if base == 8 and field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip() or b"0"
    if not digits.isdigit():
        raise ArchiveError(f"damaged: {digits!r} is not a size")
    try:
        return int(digits, base)
    except ValueError:  # an 8 among octal digits, or thousands of digits
        raise ArchiveError(f"damaged: {digits[:20]!r} is not a size") from None


def _plain_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""  # GNU keeps times there
    return prefix + b"/" + name if prefix else name


def _read_attributes(file: Bytes, kind: bytes, start: int, size: int) -> dict[str, bytes]:
    """Return what a header's contents say of the member that comes next."""
    if size > MAX_HEADER:
        raise ArchiveError(f"damaged: the header at byte {start - BLOCK:,} is {size:,} bytes; at most {MAX_HEADER:,}")
    file.seek(start)
    contents = file.read(size)
    if kind == _LONG_NAME:
        return {"path": contents.split(b"\0")[0]}
    attributes = {}
    position = 0
    while position < len(contents):  # each attribute is its own length, a space, key=value and a newline
        length, _, _ = contents[position : position + 20].partition(b" ")
        end = position + _number(length, 10)
        start_of_key = position + len(length) + 1
        key, equals, value = contents[start_of_key : max(start_of_key, end - 1)].partition(b"=")
        if not equals or end > len(contents):  # an end before the key leaves no equals sign: there is no going back
            raise ArchiveError(f"damaged: attributes at byte {start + position:,}")
        attributes[key.decode("utf-8", "replace")] = value
        position = end
    return attributes


def _member(name: bytes, start: int, size: int, link: bool, sparse: bool) -> Member:
    text = "/".join(part for part in name.decode("utf-8", "surrogateescape").split("/") if part != ".")
    if len(name) > MAX_NAME:
        return Member(
            f"{text[:60]}[...]{text[-40:]}", start, 0, f"its name is {len(name):,} bytes; at most {MAX_NAME:,}"
        )
    if link:
        return Member(text, start, 0, "a link; links in archives are not followed")
    if sparse:
        return Member(text, start, 0, "a sparse file, which is not unpacked")
    return Member(text, start, size)
