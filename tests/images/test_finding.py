"""What is captioned: files, folders, archives, patterns, lists, and shares of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from helpers.tar_files import write_tar

from captioner.images.finding import find_sources
from captioner.images.kinds import describe_unread
from captioner.images.opening import MAX_BYTES, ImageError
from captioner.images.patterns import expand_patterns, read_list
from captioner.images.sources import Source, is_in_share, name_key


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of empty files, some of them images by name, with symlinks that lead back; the caller stands in it."""
    for name in (
        "a/1.jpg",
        "a/2.PNG",
        "a/notes.txt",
        "a/.hidden.jpg",
        "b/1.jpg",
        "b/deep/3.webp",
        ".git/4.jpg",
        "5.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b" / "self").symlink_to("self")
    write_tar(tmp_path / "b" / "shard.tar", {"k1.jpg": b"12", "k1.txt": b"3", "k2.seg.png": b"4", "._k1.jpg": b"5"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*paths: str, **options: bool) -> list[str]:
    return [source.name for source in find_sources(expand_patterns(paths), **options)]


def test_folders_files_and_archives(tree: Path) -> None:
    assert names("a") == ["a/1.jpg", "a/2.PNG"]
    assert names("a/notes.txt", "./a//1.jpg", "nowhere.jpg") == ["a/notes.txt", "a/1.jpg", "nowhere.jpg"]
    everything = [
        "5.jpg",
        "a/1.jpg",
        "a/2.PNG",
        "b/1.jpg",
        "b/deep/3.webp",
        "b/shard.tar/k1.jpg",
        "b/shard.tar/k2.seg.png",
    ]
    assert names(".", recursive=True) == everything
    assert names(str(tree), recursive=True) == [f"{tree}/{name}" for name in everything]
    assert names("b/shard.tar") == everything[-2:]


def test_a_name_comes_once(tree: Path) -> None:
    assert names("a", "a/1.jpg", "a/2.PNG", "a") == ["a/1.jpg", "a/2.PNG"]
    write_tar(tree / "twice.tar", {"x.jpg": b"1", "./x.jpg": b"2"})
    (source,) = find_sources(["twice.tar"])
    assert source.open() == b"1"


def test_what_is_left_out(tree: Path) -> None:
    found = [source.name for source in find_sources(["."], recursive=True, leave_out="b")]
    assert found == ["5.jpg", "a/1.jpg", "a/2.PNG"]
    assert len(list(find_sources(["b"], leave_out="b"))) == 3  # named


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/1.jpg", ["a/1.jpg", "b/1.jpg"]),
        ("[ab]/[12].*", ["a/1.jpg", "a/2.PNG", "b/1.jpg"]),
        ("**/*.jpg", ["5.jpg", "a/1.jpg", "b/1.jpg"]),
        ("b/**", ["b/1.jpg", "b/shard.tar/k1.jpg", "b/shard.tar/k2.seg.png", "b/deep/3.webp"]),
        ("a/.h*", ["a/.hidden.jpg"]),
        ("**/sh*.tar", ["b/shard.tar/k1.jpg", "b/shard.tar/k2.seg.png"]),
        ("?", ["a/1.jpg", "a/2.PNG", "b/1.jpg", "b/shard.tar/k1.jpg", "b/shard.tar/k2.seg.png"]),
        ("c*/x", ["c*/x"]),  # which will be found missing by that name
        ("**/self", ["b/self"]),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(pattern) == expected
    if expected != [pattern]:
        assert names(f"{tree}/{pattern}") == [f"{tree}/{name}" for name in expected]


def test_a_file_that_looks_like_a_pattern(tree: Path) -> None:
    for name in ("[1].jpg", "1.jpg"):
        (tree / name).touch()
    assert names("[1].jpg") == ["[1].jpg"]


def test_loops_are_walked_once_by_patterns_too(tree: Path) -> None:
    for number in range(20):  # each of them doubles the ways
        (tree / "a" / f"loop{number}").symlink_to(tree)
    assert names("**/1.jpg") == ["a/1.jpg", "b/1.jpg"]


def test_members_are_read_from_the_archive(tree: Path) -> None:
    first, second = find_sources(["b/shard.tar"])
    assert (first.open(), second.open()) == (b"12", b"4")
    assert Source("a/1.jpg", Path("a/1.jpg")).open() == Path("a/1.jpg")
    (tree / "b" / "shard.tar").unlink()
    with pytest.raises(ImageError, match=r"^b/shard.tar/k1.jpg: no such file or directory$"):
        first.open()
    with pytest.raises(ImageError, match=r"^x: 1,000 MB; at most 512 MB are read$"):
        Source("x", tree, 0, 10**9).open()
    assert MAX_BYTES < 10**9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1f\x8b" + b"x" * 600, r"^bad.tar: not a tar archive$"),
        (None, r"^bad.tar: no such file or directory$"),
    ],
)
def test_an_archive_that_cannot_be_read_is_named(tree: Path, data: bytes | None, message: str) -> None:
    if data is not None:
        (tree / "bad.tar").write_bytes(data)
    (source,) = find_sources(["bad.tar"])
    with pytest.raises(ImageError, match=message):
        source.open()


def test_a_damaged_archive_gives_what_it_can(tree: Path) -> None:
    shard = tree / "b" / "shard.tar"
    shard.write_bytes(shard.read_bytes()[:2048] + b"x" * 999)
    good, bad = find_sources([shard])
    assert good.open() == b"12"
    with pytest.raises(ImageError, match=r"b/shard.tar: damaged: no header at byte 2,048$"):
        bad.open()


def test_lists() -> None:
    lines = b"a.jpg\n\nb c.jpg\r\ncaf\xe9.jpg\n[1].jpg"
    assert read_list(lines) == ["a.jpg", "b c.jpg", os.fsdecode(b"caf\xe9.jpg"), "[1].jpg"]
    assert read_list(b"a\nb.jpg\0c.jpg\r\0", null=True) == ["a\nb.jpg", "c.jpg\r"]


def test_shares_are_even_and_leave_nothing_out() -> None:
    keys = [name_key(f"photos/{number}.jpg") for number in range(3000)]
    for shares in (1, 2, 7):
        owners = [[share for share in range(shares) if is_in_share(key, share, shares)] for key in keys]
        assert all(len(own) == 1 for own in owners)
        for share in range(shares):
            assert owners.count([share]) == pytest.approx(3000 / shares, rel=0.15)


def test_the_first_image_does_not_wait_for_what_comes_after_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(Path(path).as_posix()) or scandir(path))  # type: ignore[func-returns-value]
    found = find_sources(["."], recursive=True)
    assert next(found).name == "5.jpg"
    assert listed == ["."]
    (tree / "b" / "0.jpg").touch()  # meanwhile, and in a folder that comes later
    assert next(source.name for source in found if source.name.startswith("b/")) == "b/0.jpg"


def test_a_folder_that_is_left_out_may_be_made_meanwhile(tree: Path) -> None:
    found = find_sources(["."], recursive=True, leave_out="b/drawn")
    assert next(found).name == "5.jpg"
    (tree / "b" / "drawn").mkdir()
    (tree / "b" / "drawn" / "1.jpg").touch()
    assert "b/drawn/1.jpg" not in [source.name for source in found]
    assert names("b/drawn") == ["b/drawn/1.jpg"]


def test_names_of_any_letters_come_in_order(tmp_path: Path) -> None:
    written = ["a b.jpg", "a-b.jpg", "a.jpg", "\u00e9.jpg", "\n.jpg", "\u6f22.jpg", "\udc80.jpg", "Z.jpg"]
    for name in written:
        (tmp_path / name).touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    found = [source.path.relative_to(tmp_path).as_posix() for source in find_sources([tmp_path], recursive=True)]
    assert found == ["a/1.jpg" if name == "a" else name for name in sorted([*written, "a"])]


def test_of_a_raw_file_and_its_jpeg_the_jpeg_is_taken(tmp_path: Path) -> None:
    for name in ("IMG_1.NEF", "IMG_1.JPG", "IMG_2.nef", "img_3.CR3", "IMG_3.jpeg", "IMG_4.nef", "IMG_4.png"):
        (tmp_path / name).touch()
    unread: Counter[str] = Counter()
    found = [source.path.name for source in find_sources([tmp_path], unread=unread)]
    assert found == ["IMG_1.JPG", "IMG_2.nef", "IMG_3.jpeg", "IMG_4.nef", "IMG_4.png"]
    assert describe_unread(unread) == "2 raw (beside a JPEG of the same name)"
    # What is named is taken.
    assert [source.path.name for source in find_sources([tmp_path / "IMG_1.NEF"])] == ["IMG_1.NEF"]
