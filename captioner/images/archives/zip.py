"""Zip archives, read without unpacking them: where each member lies, so that threads read them on their own.

Written for archives from strangers, as `archives.py` is: what is listed is read one entry at a time, and no member is
unpacked to more than it announces.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from captioner.images.archives.tar import MAX_NAME, ArchiveError, Member

_END, _END_64, _LOCATOR_64, _ENTRY, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
_END_SPAN = 22 + 65_535  # bytes at the end of a file that hold the record of the end, and a comment
_LOCAL_BYTES = 30  # before the name and the contents of each member, at least
_STORED, _DEFLATED = 0, 8
HEAD = 1 << 20  # bytes of a member that are looked at before the others are unpacked
_ENCRYPTED, _UTF_8 = 1, 1 << 11
_UNTOLD = 0xFFFFFFFF  # where a number is too large for four bytes and stands elsewhere


def read_zip_members(path: str | os.PathLike[str]) -> Iterator[Member]:
    """Yield the files in a zip archive in the order of its directory; raise `ArchiveError` where it is damaged."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block at its opening already
        raise ArchiveError("not a regular file")
    with open(path, "rb") as file:
        count, position = _find_directory(file)
        spare = os.fstat(file.fileno()).st_size  # bytes that members may still take
        for _ in range(count):
            head = _read(file, position, 46)
            if head[:4] != _ENTRY:
                raise ArchiveError(f"damaged: no entry at byte {position:,}")
            flags, method = struct.unpack_from("<HH", head, 8)
            packed, size, name_length, extra_length, comment_length = struct.unpack_from("<IIHHH", head, 20)
            attributes, offset = struct.unpack_from("<II", head, 38)
            rest = _read(file, position + 46, name_length + extra_length)
            position += 46 + name_length + extra_length + comment_length
            size, packed, offset = _large_numbers(rest[name_length:], size, packed, offset)
            spare -= _LOCAL_BYTES + packed
            if spare < 0:  # a small file could be unpacked many thousand times
                raise ArchiveError("damaged: its members overlap, or extend beyond its end")
            if not rest[:name_length].endswith(b"/"):
                is_link = stat.S_ISLNK(attributes >> 16)
                yield _member(rest[:name_length], offset, size, packed, flags, method, is_link)


def _find_directory(file: IO[bytes]) -> tuple[int, int]:
    """Return how many entries the directory has, and where it begins."""
    length = file.seek(0, os.SEEK_END)
    start = max(0, length - _END_SPAN)
    tail = _read(file, start, length - start)
    place = tail.rfind(_END)
    if place < 0 or place + 22 > len(tail):
        raise ArchiveError("not a zip archive, or truncated: it has no directory")
    count, _, offset = struct.unpack_from("<HII", tail, place + 10)
    if _UNTOLD in (offset,) or count == 0xFFFF:
        locator = _read(file, start + place - 20, 20) if start + place >= 20 else b""
        if locator[:4] == _LOCATOR_64:
            record = _read(file, struct.unpack_from("<Q", locator, 8)[0], 56)
            if record[:4] != _END_64:
                raise ArchiveError("damaged: its directory is not where it says")
            count, _, offset = struct.unpack_from("<QQQ", record, 32)
    return count, offset


def _large_numbers(extra: bytes, *numbers: int) -> tuple[int, int, int]:
    """Return size, packed size and offset, those that do not fit into four bytes from the extra field."""
    wide = b""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            wide = extra[position + 4 : position + 4 + length]
        position += 4 + length
    found = []
    for number in numbers:
        if number == _UNTOLD and len(wide) >= 8:
            number, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        found.append(number)
    return found[0], found[1], found[2]


def _member(name: bytes, offset: int, size: int, packed: int, flags: int, method: int, is_link: bool) -> Member:
    # Names are UTF-8 where a flag says so, and most often where it does not.
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        text = name.decode("utf-8" if flags & _UTF_8 else "cp437", "replace")
    text = "/".join(part for part in text.replace("\0", "").split("/") if part != ".")
    problem = None
    if len(name) > MAX_NAME:
        text, problem = f"{text[:60]}[...]{text[-40:]}", f"its name is {len(name):,} bytes; at most {MAX_NAME:,}"
    elif is_link:
        problem = "a link; links in archives are not followed"
    elif flags & _ENCRYPTED:
        problem = "encrypted; unpack the archive first"
    elif method not in (_STORED, _DEFLATED):
        problem = f"packed by method {method}, which is not read; unpack the archive first"
    return Member(text, offset, size, problem, packed, method == _DEFLATED)


def read_zip_member(
    file: IO[bytes], offset: int, size: int, packed: int, deflated: bool, check: Callable[[bytes], None]
) -> bytes:
    """Return the contents of a member, of as many bytes as it announces; raise `ArchiveError` where it is damaged.

    `check` is given the first of them before the others are unpacked, and may raise.
    """
    head = _read(file, offset, _LOCAL_BYTES)
    if head[:4] != _LOCAL:
        raise ArchiveError(f"damaged: no member at byte {offset:,}")
    name_length, extra_length = struct.unpack_from("<HH", head, 26)
    contents = _read(file, offset + 30 + name_length + extra_length, packed)
    if deflated:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            head = stream.decompress(contents, min(size + 1, HEAD))
            check(head)
            contents = head + stream.decompress(stream.unconsumed_tail, size + 1 - len(head))
        except zlib.error as error:
            raise ArchiveError(f"damaged: {error}") from None
    else:
        check(contents[:HEAD])
    if len(contents) != size:
        raise ArchiveError(f"damaged: it does not unpack to the {size:,} bytes that it announces")
    return contents


def _read(file: IO[bytes], position: int, length: int) -> bytes:
    length_of_file = os.fstat(file.fileno()).st_size
    contents = b""
    if position + length <= length_of_file:  # no seek goes to all places that eight bytes can tell
        file.seek(position)
        contents = file.read(length)
    if len(contents) < length:
        raise ArchiveError(f"truncated: it ends before byte {position + length:,}")
    return contents
