"""Names that are meant to do harm: nothing is written outside the folder asked for, and no image is mixed up."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.forked import Forks
from helpers.tar_files import END, HUGE, header
from helpers.toy_captioner import save_toy, write_images

from captioner.captioning.output.tables import tree_path
from captioner.captioning.records import read_lines
from captioner.images.archives.tar import BLOCK
from captioner.model.encoders.encoder import Encoder

LATIN = os.fsdecode(b"caf\xe9.jpg")
NAMES = [
    "a/1.jpg",
    "b/1.jpg",
    "x.jpg",
    "x.png",
    "x.jpg.txt/y.jpg",  # a folder with the name of a sidecar
    "a.png/1.jpg",  # and one with that of an overlay, when a is captioned
    "new\nline.jpg",
    "tab\t.jpg",
    "\x1b[31mred.jpg",
    "u2028\u2028.jpg",
    "%2E%2E/up.jpg",
    "caf\\xe9.jpg",
    LATIN,
    "-rf.jpg",
    "~/home.jpg",
    "n" * 240 + ".jpg",
    " .jpg",
    "a:b*c?.jpg",
]
MEMBERS = [
    "../../up.jpg",
    "/abs/root.jpg",
    "../" * 40 + "far.jpg",
    "a/../b.jpg",
    "a//b.jpg",
    "a/b.jpg",
    LATIN,
    "l\n.jpg",
]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("names")
    save_toy(folder / "model", lite0)
    runner = Forks(folder)
    yield runner
    runner.close()


@pytest.fixture
def place(forks: Forks, tmp_path: Path) -> Path:
    """A folder of its own for each test, some way below the top of what it may write to."""
    place = tmp_path / "above" / "work"
    (place / "photos").mkdir(parents=True)
    (forks.folder / "here").unlink(missing_ok=True)
    (forks.folder / "here").symlink_to(place)
    return place


def run(forks: Forks, *paths: str, overlays: bool = True) -> int:
    formats = ["--format", "txt,csv,coco", *(["--overlays"] if overlays else [])]
    command = ["caption", *paths, "--recursive", "--model", "model", "--out", "here/out", *formats, "--quiet"]
    (code,) = forks.run(command)
    return int(code)


def snapshot(folder: Path) -> dict[str, Any]:
    """Return everything below a folder, without following symlinks, but for what is in the folder `out`."""
    found: dict[str, Any] = {}
    for top, folders, files in os.walk(folder):
        if Path(top).name == "work" and "out" in folders:
            folders.remove("out")
        for name in (*folders, *files):
            path = os.path.join(top, name)
            status = os.lstat(path)
            found[path] = (status.st_ino, status.st_mode, status.st_size if name in files else 0, status.st_mtime_ns)
            if name in folders:
                found[path] = status.st_ino
    return found


def check(out: Path, count: int) -> list[str]:
    """Check that each image has one record, one sidecar and, where there are some, one overlay; return the names."""
    names = [line.name for line in read_lines(out / "captions.jsonl")]
    assert len(set(names)) == len(names) == count
    trees = {"txt": ".txt", "overlays": ".png"}
    for folder, suffix in trees.items() if (out / "overlays").exists() else [("txt", ".txt")]:
        files = [path for path in (out / folder).rglob("*") if path.is_file()]
        assert len(files) == count
        assert {str(path.relative_to(out / folder)) for path in files} == {tree_path(name, suffix) for name in names}
        assert all(path.resolve().is_relative_to(out.resolve()) for path in files)
    for line in read_lines(out / "captions.jsonl"):
        assert (out / "txt" / tree_path(line.name, ".txt")).read_text() == line.record["text"] + "\n"
    assert len((out / "captions.jsonl").read_text("utf-8").splitlines()) == count
    assert len(json.loads((out / "captions-coco.json").read_text())) == count
    return names


def test_names_of_files(forks: Forks, place: Path) -> None:
    photos = [path.read_bytes() for path in write_images(place.parent / "spare", len(NAMES))]
    for name, photo in zip(NAMES, photos, strict=True):
        (place / "photos" / name).parent.mkdir(exist_ok=True)
        (place / "photos" / name).write_bytes(photo)
    (place / "photos" / "a" / "loop").symlink_to("..")
    (place / "photos" / "a" / "myself").symlink_to("myself")
    (place / "photos" / "a" / "away.jpg").symlink_to(place.parent / "spare" / "0000.jpg")
    (place / "photos" / "dangling.jpg").symlink_to("nowhere")
    os.mkfifo(place / "photos" / "pipe.jpg")
    before = snapshot(place.parent)
    assert run(forks, "here/photos", overlays=False) == 1
    names = check(place / "out", len(NAMES) + 1)
    assert {name.removeprefix("here/photos/") for name in names} == {*NAMES, "a/away.jpg"}
    assert snapshot(place.parent) == before
    assert forks.errors().splitlines() == [
        "captioner: here/photos/dangling.jpg: no such file or directory",
        "captioner: here/photos/pipe.jpg: not a regular file",
    ]
    # Run again, every name is recognised.
    assert run(forks, "here/photos", overlays=False) == 1
    assert f"0 captioned, {len(NAMES) + 1} skipped, 2 failed" in forks.output()
    assert check(place / "out", len(NAMES) + 1) == names


def test_paths_that_lead_up(forks: Forks, place: Path) -> None:
    write_images(place.parent / "beside", 2)
    before = snapshot(place.parent)
    assert run(forks, "here/../beside", str(place.parent / "beside"), "here/./../work/../beside/0000.jpg") == 0
    # However their paths are spelt, there are two files, and each keeps the name by which it came first.
    names = check(place / "out", 2)
    assert names == ["here/../beside/0000.jpg", "here/../beside/0001.jpg"]
    assert run(forks, str(place.parent / "beside"), overlays=False) == 0
    assert "0 captioned, 2 skipped" in forks.output()
    assert check(place / "out", 2) == names
    assert snapshot(place.parent) == before


def test_names_of_members(forks: Forks, place: Path) -> None:
    photos = [path.read_bytes() for path in write_images(place.parent / "spare", len(MEMBERS))]
    with tarfile.open(place / "shard.tar", "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for name, photo in zip(MEMBERS, photos, strict=True):
            member = tarfile.TarInfo(name)
            member.size = len(photo)
            archive.addfile(member, io.BytesIO(photo))
        for name, kind in (("soft.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("d/" * 2500 + "deep.jpg")
        archive.addfile(member)
    huge = (place / "huge.tar", header(size=HUGE))
    long = (place / "long.tar", header(size=b"%011o\0" % (1 << 21), kind=b"L") + bytes(1 << 21) + header() + END)
    for path, data in (huge, long):
        path.write_bytes(data.ljust(4 * BLOCK, b"\0"))
    before = snapshot(place.parent)
    assert run(forks, "here") == 1
    names = check(place / "out", len(MEMBERS))
    assert names == [f"here/shard.tar/{name}" for name in MEMBERS]
    assert snapshot(place.parent) == before
    reasons = [line.rpartition(": ")[2] for line in forks.errors().splitlines()]
    assert reasons == [
        "the contents at byte 512 extend beyond its end",
        "the header at byte 0 is 2,097,152 bytes; at most 1,048,576",
        "a link; links in archives are not followed",
        "a link; links in archives are not followed",
        "its name is 5,008 bytes; at most 4,096",
    ]


def test_a_folder_that_was_prepared_for_harm(forks: Forks, place: Path) -> None:
    write_images(place / "photos", 1)
    (place / "target").mkdir()
    out = place / "out"
    for name in ("captions.jsonl", "errors.jsonl", "captions.lock", "parts", "captions.csv", "captions-coco.json"):
        out.mkdir()
        (out / name).symlink_to(place / "target" / "stolen")
        before = snapshot(place)
        assert run(forks, "here/photos") == 1
        assert "is a symlink" in forks.errors()
        assert snapshot(place) == before
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        out.rmdir()
    for name in ("txt", "overlays"):
        out.mkdir()
        (out / name).symlink_to(place / "target")
        before = snapshot(place)
        assert run(forks, "here/photos") == 1
        assert f"here/out/{name} leads out of here/out; nothing is written there" in forks.errors()
        assert snapshot(place) == before
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        out.rmdir()


def test_an_image_is_never_written_to(forks: Forks, place: Path) -> None:
    (photo,) = write_images(place / "photos", 1)
    photo.chmod(0o444)
    (place / "photos").chmod(0o555)
    try:
        assert run(forks, "here/photos") == 0
        assert len(check(place / "out", 1)) == 1
    finally:
        (place / "photos").chmod(0o755)
