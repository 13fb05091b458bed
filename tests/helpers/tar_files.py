"""Tar archives: whole ones, and headers to put damaged ones together from."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from captioner.images.archives.tar import BLOCK

HUGE = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7
END = bytes(2 * BLOCK)


def write_tar(path: Path, members: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


def header(name: bytes = b"a.jpg", size: bytes = b"00000000001\0", kind: bytes = b"0") -> bytes:
    """Return one header with a right checksum."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
