"""Tar archives: those of Python's own writer are read as its reader does, and damaged ones come to a quick end."""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.awkward_images import PLAIN
from helpers.tar_files import END, HUGE, header, write_tar

from captioner.images import opening, sources
from captioner.images.archives import zip as zip_archives
from captioner.images.archives.tar import BLOCK, MAX_HEADER, ArchiveError, Member, read_members
from captioner.images.finding import find_sources
from captioner.images.opening import ImageError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def contents(path: Path, member: Member) -> bytes:
    return path.read_bytes()[member.offset : member.offset + member.size]


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_members_are_those_that_were_written(tmp_path: Path, format: int) -> None:
    long = "/".join(["folder-of-a-name"] * 9) + "/photo.jpg"  # more than a header holds, less than with a prefix
    members = {
        "a.jpg": b"1",
        "empty.jpg": b"",
        "b/c.d.png": bytes(range(256)) * 8,
        long: b"22",
        "naïve 犬.jpg": b"333",
        "line\nend.jpg": b"4",
        "../up.jpg": b"5",
        "/root.jpg": b"6",
    }
    if format != tarfile.USTAR_FORMAT:
        members["x" * 300 + ".jpg"] = b"7" * 513
    path = write_tar(tmp_path / "a.tar", members, format)
    found = {member.name: contents(path, member) for member in read_members(path)}
    assert found == members


def test_folders_links_and_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for name, kind, size in (
            ("folder", tarfile.DIRTYPE, 0),
            ("soft.jpg", tarfile.SYMTYPE, 0),
            ("hard.jpg", tarfile.LNKTYPE, 0),
            ("pipe.jpg", tarfile.FIFOTYPE, 0),
            ("./dot/./dot.jpg", tarfile.REGTYPE, 3),
            ("caf\udce9.jpg", tarfile.REGTYPE, 3),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, size, "/etc/passwd" * 20
            archive.addfile(member, io.BytesIO(b"abc"[:size]))
    soft, hard, dot, latin = read_members(path)
    assert (soft.name, hard.name, dot.name, latin.name) == ("soft.jpg", "hard.jpg", "dot/dot.jpg", "caf\udce9.jpg")
    assert soft.problem == hard.problem == "a link; links in archives are not followed"
    assert contents(path, dot) == contents(path, latin) == b"abc"


def test_names_longer_than_any_path_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"y/" * 3000 + "z.jpg": b"1", "b.jpg": b"2"})
    long, short = read_members(path)
    assert long.problem == "its name is 6,005 bytes; at most 4,096"
    assert len(long.name) < 110
    assert long.name.endswith("y/z.jpg")
    assert (short.name, short.problem) == ("b.jpg", None)


def attributes(**values: str) -> bytes:
    """Return the header and contents of a pax attribute block."""
    lines = b""
    for key, value in values.items():
        line = f" {key}={value}\n".encode()
        length = len(line)
        while len(str(length)) + len(line) != length:
            length = len(str(length)) + len(line)
        lines += str(length).encode() + line
    return header(b"pax", b"%011o\0" % len(lines), b"x") + lines.ljust(-(-len(lines) // BLOCK) * BLOCK, b"\0")


NEGATIVE = b"\xff" * 12
ONE = header() + b"1".ljust(BLOCK, b"\0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (b"GIF89a" * 100, "not a tar archive"),
        (b"\x1f\x8b" * 400, "not a tar archive"),
        (ONE + b"x" * BLOCK, "damaged: no header at byte 1,024"),
        (ONE + header()[:100], "truncated: it ends within the header at byte 1,024"),
        (ONE + header(size=HUGE), "truncated: the contents at byte 1,536 extend beyond its end"),
        (ONE + header(size=HUGE, kind=b"L"), "truncated: the contents at byte 1,536 extend beyond its end"),
        (ONE + header(size=NEGATIVE) + END, "damaged: .* is not a size"),
        (ONE + header(size=b"-0000000001\0") + END, "damaged: .* is not a size"),
        (ONE + header(size=b"00000000009\0") + END, "damaged: .* is not a size"),
        (ONE + attributes(size="-512") + header() + END, "damaged: b'-512' is not a size"),
        (ONE + attributes(size="9" * 5000) + header() + END, "damaged: .* is not a size"),
        (ONE + attributes(size="9" * 30) + header() + END, "truncated: the contents at byte 2,560 extend"),
        (
            ONE + header(size=b"%011o\0" % (MAX_HEADER + 1), kind=b"x") + bytes(2 * MAX_HEADER),
            "1,048,577 bytes; at most",
        ),
        (header(b"pax", b"00000000005\0", b"x") + b"0 a=b".ljust(BLOCK, b"\0"), "damaged: attributes at byte 512"),
        (header(b"pax", b"00000000006\0", b"x") + b"99 a=b".ljust(BLOCK, b"\0"), "damaged: attributes at byte 512"),
        (header(b"pax", b"00000000003\0", b"x") + b"-9 ".ljust(BLOCK, b"\0"), "damaged: b'-9' is not a size"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    found = []
    with pytest.raises(ArchiveError, match=message) as raised:
        found += [member.name for member in read_members(path)]
    assert "\n" not in str(raised.value)


def test_members_before_the_damage_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(ONE + ONE.replace(b"a.jpg", b"b.jpg"))
    members = read_members(path)
    assert next(members).name == "a.jpg"
    with pytest.raises(ArchiveError, match="no header at byte 1,024"):  # the name is part of the sum
        next(members)


def test_attributes_speak_of_the_next_member_only(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(attributes(path="long.jpg", size="2") + header(size=b"\0") + b"12".ljust(BLOCK, b"\0") + ONE + END)
    first, second = read_members(path)
    assert (first.name, contents(path, first)) == ("long.jpg", b"12")
    assert (second.name, contents(path, second)) == ("a.jpg", b"1")


def test_sparse_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(header(kind=b"S") + bytes(BLOCK) + attributes(**{"GNU.sparse.major": "1"}) + ONE + END)
    assert [member.problem for member in read_members(path)] == ["a sparse file, which is not unpacked"] * 2


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ArchiveError, match="not a regular file"):
        next(read_members(tmp_path / "pipe.tar"))
    with pytest.raises(FileNotFoundError):
        next(read_members(tmp_path / "nowhere.tar"))


def names_until_the_end(path: Path) -> tuple[list[Member], str | None]:
    """Return the members of an archive, and what is said where it is damaged."""
    members: list[Member] = []
    try:
        members.extend(read_members(path))
    except ArchiveError as error:
        return members, str(error)
    return members, None


def test_random_damage_ends_in_members_or_one_line(tmp_path: Path) -> None:
    members = {f"{number}.jpg": b"x" * number * 100 for number in range(9)} | {"犬/" * 50 + "y.jpg": b"y"}
    good = b""
    for format in FORMATS.values():
        data = write_tar(tmp_path / "a.tar", members, format).read_bytes().rstrip(b"\0")
        good += data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0")
    chance = random.Random(0)
    path = tmp_path / "b.tar"
    damaged = 0
    for _ in range(400):
        damage = bytearray(good)
        block = chance.randrange(len(damage) // BLOCK) * BLOCK
        for _ in range(chance.choice((1, 3, 30))):
            damage[block + chance.randrange(BLOCK)] = chance.choice(b"\0\x80\xff079xLg ")
        # A header that was meddled with is made to look right.
        damage[block + 148 : block + 156] = b" " * 8
        damage[block + 148 : block + 156] = b"%06o\0 " % sum(damage[block : block + BLOCK])
        path.write_bytes(damage[: chance.randrange(1, len(damage))] if chance.random() < 0.2 else damage)
        found, message = names_until_the_end(path)
        assert all(0 <= member.offset <= member.offset + member.size <= len(damage) for member in found)
        assert "\n" not in (message or "")
        damaged += message is not None
    assert 50 < damaged < 350


@pytest.mark.parametrize("deflated", [True, False])
def test_a_member_far_larger_than_its_picture_is_not_read_to_its_end(
    deflated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sources, opening):
        monkeypatch.setattr(module, "FREE_BYTES", 50_000)
    for module in (sources, zip_archives):
        monkeypatch.setattr(module, "HEAD", 20_000)
    noise = random.Random(0).randbytes(200_000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        archive.writestr("cat.jpg", PLAIN + noise)
    packed = bytearray((tmp_path / "a.zip").read_bytes())
    packed[100_000:150_000] = bytes(50_000)  # deflated contents are damaged from here on
    (tmp_path / "a.zip").write_bytes(packed)
    (source,) = find_sources([tmp_path / "a.zip"])
    with pytest.raises(ImageError, match=r"0 MB for 0\.0 megapixels"):
        source.open()
