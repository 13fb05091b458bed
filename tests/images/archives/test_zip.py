"""Zip archives from strangers: members that overlap, and places that no file has."""

from __future__ import annotations

import copy
import struct
import zipfile
from pathlib import Path

import pytest

from captioner.images.finding import find_sources
from captioner.images.opening import ImageError


def test_members_of_a_zip_that_overlap_are_not_read(tmp_path: Path) -> None:
    """A kilobyte could otherwise be unpacked sixty thousand times, to terabytes."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(1_000_000))
        archive.infolist().clear()
        archive.filelist.extend(replace_name(archive.NameToInfo["a.png"], f"{n}.png") for n in range(50))
    *few, last = find_sources([path])
    assert len(few) < 10
    assert last.name == path.as_posix()
    with pytest.raises(ImageError, match="its members overlap, or extend beyond its end"):
        last.open()


def replace_name(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    found = copy.copy(info)
    found.filename = name
    return found


@pytest.mark.parametrize("place", [2**31, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["size", "packed", "offset"])
def test_places_that_no_file_has(field: str, place: int, tmp_path: Path) -> None:
    values = {"size": 3, "packed": 3, "offset": 0, field: place}
    extra = struct.pack("<HHQQQ", 1, 24, *values.values())
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, *[2**32 - 1] * 2, 5, 28, 0, 0, 0, 0, 2**32 - 1)
    data = b"PK\3\4" + bytes(22) + b"\5\0\0\0a.pngxyz"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(data), 0)
    (tmp_path / "a.zip").write_bytes(data + entry + b"a.png" + extra + end)
    for source in find_sources([tmp_path / "a.zip"]):
        with pytest.raises(ImageError, match=r"truncated|overlap|at most|does not unpack"):
            source.open()
