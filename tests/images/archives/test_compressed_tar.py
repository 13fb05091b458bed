"""Compressed tar archives: the members of the plain one, within bounds, and read forward wherever that is possible."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.tar_files import END, HUGE, header, write_tar

from captioner.images.archives import compressed_tar as compressed_archives
from captioner.images.archives.compressed_tar import (
    EXTENSIONS,
    MAX_READERS,
    Unpacked,
    read_compressed_member,
    read_compressed_members,
)
from captioner.images.archives.tar import ArchiveError, read_members
from captioner.images.finding import find_sources
from captioner.images.opening import MAX_BYTES, ImageError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar.gz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}
each_packer = pytest.mark.parametrize(("ending", "pack"), PACKERS.items(), ids=PACKERS)
chance = random.Random(0)
MEMBERS = {f"{number}.jpg": chance.randbytes(number * 500) for number in range(30)}


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The readers that are kept: none from other tests."""
    kept: list[object] = []
    monkeypatch.setattr(compressed_archives, "_readers", kept)
    return kept


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each time that an archive is unpacked from its start."""
    found = []
    make = Unpacked.__init__

    def count(self: Unpacked, file: io.BufferedReader) -> None:
        found.append(1)
        make(self, file)

    monkeypatch.setattr(Unpacked, "__init__", count)
    return found


def write(path: Path, ending: str, contents: bytes) -> Path:
    path = path / f"a{ending}"
    path.write_bytes(contents)
    return path


@each_packer
def test_members_are_those_of_the_plain_archive(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes], opened: list[int]
) -> None:
    plain = write_tar(tmp_path / "a.tar", MEMBERS | {"犬/" * 80 + "y.jpg": b"y"})
    packed = write(tmp_path, ending, pack(plain.read_bytes()))
    one, other = list(find_sources([plain])), list(find_sources([packed]))
    assert [source.name.removeprefix(f"{packed}/") for source in other] == [
        source.name.removeprefix(f"{plain}/") for source in one
    ]
    assert [source.read()[1] for source in other] == [source.read()[1] for source in one]
    assert len(opened) == 2  # to list, and to read


def test_every_name_of_a_compressed_archive_is_known(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "plain", {"a.jpg": b"1"}).read_bytes()
    for ending in EXTENSIONS:  # and the contents say how it is compressed
        write(tmp_path, ending.upper(), chance.choice(list(PACKERS.values()))(plain))
    sources = list(find_sources([tmp_path]))
    assert sorted(source.name for source in sources) == sorted(
        f"{tmp_path}/a{ending.upper()}/a.jpg" for ending in EXTENSIONS
    )
    assert {source.open() for source in sources} == {b"1"}


@each_packer
def test_streams_one_after_the_other_are_one(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    data = write_tar(tmp_path / "a.tar", MEMBERS).read_bytes()
    parts = [data[:1000], b"", data[1000:90_000], data[90_000:]]
    path = write(tmp_path, ending, b"".join(map(pack, parts)) + bytes(4096))
    assert [member.name for member in read_compressed_members(path)] == list(MEMBERS)
    assert [source.open() for source in find_sources([path])] == list(MEMBERS.values())
    with path.open("rb") as file:
        unpacked = Unpacked(file)
        assert unpacked.read(len(data)) == data
        assert unpacked.read(1) == b""


@each_packer
def test_an_archive_that_is_cut_off_gives_what_it_can(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(write_tar(tmp_path / "a.tar", MEMBERS).read_bytes())
    for length in (0, 1, 3, 20, len(whole) // 3, len(whole) // 2, len(whole) - 9):
        path = write(tmp_path, ending, whole[:length])
        found, reasons = {}, []
        for source in find_sources([path]):
            try:
                found[Path(source.name).name] = source.open()
            except ImageError as error:
                reasons.append(error.reason)
        assert found == {name: MEMBERS[name] for name in found}
        # That of the member that is cut off, and that of the archive; a tar archive ends before its last bytes do.
        assert len(reasons) <= 2
        assert reasons or length == len(whole) - 9
        assert len(found) > 5 or length < 100 or ending == ".tar.bz2"  # which comes in blocks of 900 kB


@each_packer
def test_damage_is_one_line(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(write_tar(tmp_path / "a.tar", MEMBERS).read_bytes())
    damaged = [bytearray(whole) for _ in range(50)]
    for data in damaged:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    errors = []
    # A bit of gzip's may be one of a picture, which nothing notices; half of an archive is always damaged.
    for data in [*damaged, bytearray(whole[: len(whole) // 2])]:
        for source in find_sources([write(tmp_path, ending, data)]):
            try:
                assert len(source.open()) == source.size
            except ImageError as error:
                errors.append(error.copy())
    assert errors
    known = ("damaged: ", "truncated: ", "not compressed by", "not a tar archive", "unpacks to")
    assert all(error.reason.startswith(known) for error in errors)
    assert not any("\n" in str(error) for error in errors)


def test_what_is_not_compressed_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, ".tgz", write_tar(tmp_path / "a.tar", MEMBERS).read_bytes())
    with pytest.raises(ArchiveError, match=r"^not compressed by gzip, bzip2 or xz$"):
        next(read_compressed_members(path))
    path = write(tmp_path, ".tgz", gzip.compress(b"no archive" * 100))
    with pytest.raises(ArchiveError, match=r"^not a tar archive$"):
        next(read_compressed_members(path))


@each_packer
def test_a_bomb_is_neither_held_nor_unpacked_to_its_end(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed_archives, "FREE_BYTES", 4_000_000)
    large = header(b"large.jpg", b"%011o\0" % (2 << 30))
    path = write(tmp_path, ending, pack(large + bytes(1 << 26)))
    tracemalloc.start()
    try:
        first, second = find_sources([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    with pytest.raises(ImageError, match=rf"a{ending}/large.jpg: 2,147 MB; at most {MAX_BYTES / 1e6:.0f} MB are read"):
        first.open()
    with pytest.raises(ImageError, match=rf"a{ending}: unpacks to more than 200 times its size"):
        second.open()


def test_a_member_that_lies_about_its_size(tmp_path: Path) -> None:
    path = write(tmp_path, ".tgz", gzip.compress(header(b"a.jpg", b"%011o\0" % 400_000_000) + b"1" * 5000))
    first, second = find_sources([path])
    for source in (first, second):
        with pytest.raises(ImageError, match="truncated: "):
            source.open()
    path = write(tmp_path, ".tgz", gzip.compress(header(size=HUGE) + END))
    first, second = find_sources([path])
    with pytest.raises(ImageError, match="at most 512 MB are read"):
        first.open()


def test_links_and_devices_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name, kind in (
            ("soft.jpg", tarfile.SYMTYPE),
            ("hard.jpg", tarfile.LNKTYPE),
            ("device.jpg", tarfile.CHRTYPE),
            ("block.jpg", tarfile.BLKTYPE),
            ("pipe.jpg", tarfile.FIFOTYPE),
            ("folder.jpg", tarfile.DIRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    sources = list(find_sources([path]))
    assert [Path(source.name).name for source in sources] == ["soft.jpg", "hard.jpg"]
    assert {source.problem for source in sources} == {"a link; links in archives are not followed"}


def test_a_dictionary_larger_than_any_level_needs_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    data = write_tar(tmp_path / "a.tar", MEMBERS).read_bytes()
    path = write(tmp_path, ".txz", lzma.compress(data, filters=filters))
    with pytest.raises(ArchiveError, match=r"damaged: .*[Mm]emory"):
        next(read_compressed_members(path))
    path = write(tmp_path, ".txz", lzma.compress(data, preset=9))
    assert len(list(read_compressed_members(path))) == len(MEMBERS)


def test_two_places_and_threads_read_on_where_they_were(
    tmp_path: Path, opened: list[int], readers: list[object]
) -> None:
    plain = write_tar(tmp_path / "a.tar", MEMBERS)
    path = write(tmp_path, ".tgz", gzip.compress(plain.read_bytes()))
    members = list(read_members(plain))
    opened.clear()
    for ahead, behind in zip(members[10:], members, strict=False):
        for member in (ahead, behind):
            assert read_compressed_member(path, member.offset, member.size) == MEMBERS[member.name]
    assert len(opened) == 2
    swapped = [member for pair in zip(members[1::2], members[::2], strict=True) for member in pair]
    opened.clear()
    readers.clear()
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda member: read_compressed_member(path, member.offset, member.size), swapped)
        assert list(found) == [MEMBERS[member.name] for member in swapped]
    assert len(readers) <= MAX_READERS
    for member in reversed(members):
        assert read_compressed_member(path, member.offset, member.size) == MEMBERS[member.name]
    assert len(readers) <= MAX_READERS


def test_an_archive_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(
        tmp_path, ".tgz", gzip.compress(write_tar(tmp_path / "a.tar", {"a.jpg": b"1", "b.jpg": b"2"}).read_bytes())
    )
    first, second = find_sources([path])
    assert first.open() == b"1"
    path.write_bytes(gzip.compress(write_tar(tmp_path / "a.tar", {"a.jpg": b"33", "b.jpg": b"4"}).read_bytes()))
    assert second.open() == b"4"
    path.unlink()
    with pytest.raises(ImageError, match=r"a.tgz/b.jpg: no such file or directory$"):
        second.open()
