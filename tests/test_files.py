from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest
from helpers.irregular_files import KINDS, make_irregular

from captioner import files
from captioner.captioning.output.folder import LOCK, OutputFolder
from captioner.captioning.output.written_files import WrittenFiles
from captioner.captioning.recorded_captions import recorded_images
from captioner.captioning.records import RecordFile
from captioner.captioning.records import read_lines as read_records
from captioner.datasets.dataset import load_dataset
from captioner.datasets.describe import _identical_files
from captioner.files import digest, printable_line, remove_unfinished, replacing, sync_folder, write_whole
from captioner.model.bundled import read_evaluation
from captioner.model.encoders.region_cache import RegionCache, read_identity
from captioner.training.pages.run_page import png_size
from captioner.training.recipe import load_recipe
from captioner.training.run_folder import RunFolder
from captioner.web.served_models import find_examples


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.json"
    write_whole(path, "première")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, "second")
    assert path.read_text(encoding="utf-8") == "première"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, "third")
    assert path.read_text(encoding="utf-8") == "third"


def test_digest_tells_contents_apart(tmp_path: Path) -> None:
    contents = {"a": b"one", "b": b"two", "c": b"one", "large": bytes(3 << 20), "larger": bytes((3 << 20) + 1)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    digests = {name: digest(tmp_path / name) for name in contents}
    assert digests["a"] == digests["c"]
    assert len(set(digests.values())) == 4


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    data = b"\x00\r\n\xff\n"
    write_whole(tmp_path / "tensors", data)
    assert (tmp_path / "tensors").read_bytes() == data
    assert digest(tmp_path / "tensors") == digest(data)
    assert digest(data) != digest(data[:-1])


def test_a_folder_is_synced_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync_folder(tmp_path)
    assert synced == [tmp_path.stat().st_ino]

    def fail_with(code: int) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)

    fail_with(errno.EINVAL)
    sync_folder(tmp_path)
    fail_with(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_a_file_is_replaced_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "record"
    write_whole(path, "old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"%d" % (1 // 0))
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_no_hindrance_and_is_removed(tmp_path: Path) -> None:
    path, aside = tmp_path / "record", tmp_path / "aside.unfinished"
    aside.symlink_to(tmp_path / "elsewhere")  # which nothing is written through
    write_whole(path, "whole", unfinished=aside, sync=False)
    assert sorted(tmp_path.iterdir()) == [path]
    for name in ("record.123.unfinished", "thesis.unfinished"):
        (tmp_path / name).write_text("half")
    remove_unfinished(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["record", "thesis.unfinished"]


def test_a_full_disk_is_told_with_the_file_and_the_room_there_is(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"

    def fill() -> None:
        with replacing(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: [\d,.]+ MB are free; make room .*captions.csv"):
        fill()
    assert list(tmp_path.iterdir()) == []


# Each reads the file `name` in a folder.
READERS = {
    "captions.jsonl": lambda folder: list(recorded_images(folder / "captions.jsonl")),
    "scores.json": lambda folder: read_evaluation(folder / "scores.json"),
    "cache.json": read_identity,
    "recipe.yaml": lambda folder: load_recipe(folder / "recipe.yaml"),
    "base.yaml": lambda folder: (
        (folder / "upper.yaml").write_text("base: base.yaml"),
        load_recipe(folder / "upper.yaml"),
    ),
    "index.jsonl": lambda folder: (
        (folder / "cache.json").write_text('{"format": 1, "grid": [1, 1], "dimensions": 1, "preprocessing": {}}'),
        RegionCache(folder),
    ),
    "dataset_coco.json": lambda folder: load_dataset(folder),
    "metadata.parquet": lambda folder: load_dataset(folder),
    "written.jsonl": lambda folder: WrittenFiles(folder),
    "checkpoint.json": lambda folder: RunFolder(folder).progress(folder),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused_before_it_is_read(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_irregular(tmp_path / name, kind, monkeypatch)
    with pytest.raises(ValueError, match=f"{name}|no known data set") as caught:
        READERS[name](tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_a_lock_that_is_no_regular_file_is_not_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_irregular(tmp_path / LOCK, kind, monkeypatch)
    with pytest.raises(ValueError, match=LOCK):
        OutputFolder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_are_no_regular_files_are_told_apart_without_reading_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {name: tmp_path / name for name in ("a.jpg", "b.jpg")}
    for path in paths.values():
        make_irregular(path, kind, monkeypatch)
    assert _identical_files(paths) == ((), ["a.jpg", "b.jpg"])
    assert png_size(paths["a.jpg"]) in (None, (0, 0))


@pytest.mark.parametrize("levels", [50_000, 400])  # too many for the parser, and for whatever copies what it gives
@pytest.mark.parametrize("name", [name for name in READERS if "yaml" not in name])
def test_json_that_is_nested_deeply_is_refused_in_one_line(tmp_path: Path, name: str, levels: int) -> None:
    if name == "written.jsonl" and levels < 50_000:
        pytest.skip("a line that is not the program's counts for nothing, unless it is too long")
    (tmp_path / name).write_text("[" * levels + "]" * levels + "\n")
    with pytest.raises(ValueError, match=name) as caught:
        READERS[name](tmp_path)
    assert len(str(caught.value)) < 500


def test_a_pipe_among_examples_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    assert find_examples(tmp_path) == {}


def test_readers_tell_what_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}\n' + 30 * " ")
    assert files.read_json_object(path, most=39) == {"a": 1}
    with pytest.raises(ValueError, match=r"a\.json has 39 bytes; at most 38 are read"):
        files.read_json(path, most=38)
    assert list(files.read_lines(path, longest=30)) == [(1, b'{"a": 1}\n'), (2, 30 * b" ")]
    with pytest.raises(ValueError, match=r"a\.json:2 is too long; a line has at most 29 bytes"):
        list(files.read_lines(path, longest=29))
    assert list(read_records(tmp_path / "none.jsonl")) == []


def test_json_has_a_hundred_levels_at_most() -> None:
    many = "[1]," * 300  # brackets alone tell nothing
    assert len(files.plain_json(f"[{many}1]")) == 301
    for first, last in (("[", "]"), ('{"a":', "}"), ('["[[[",', "]")):
        assert files.plain_json(f"[{many}{first * 99}1{last * 99}]")[300]
        with pytest.raises(ValueError, match="nested too deeply"):
            files.plain_json(f"[{many}{first * 100}1{last * 100}]")


def test_a_message_is_one_printable_line() -> None:
    assert printable_line("naïve 犬: a.jpg") == "naïve 犬: a.jpg"
    assert printable_line("a\x1b[2Jb\nc\u202e\udce9") == r"a\x1b[2Jb\nc\u202e\udce9"
    assert len(printable_line("x" * 10**6)) < 5000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_names_the_record_that_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RecordFile(tmp_path / "captions.jsonl")
    record.file.close()
    record.file = io.BufferedWriter(io.FileIO("/dev/full", "ab"))
    monkeypatch.setattr(os, "fsync", lambda number: None)  # which a device does not know
    expected = "No space left on device.*make room.*captions.jsonl"
    with pytest.raises(OSError, match=expected):
        record.append({"file_name": "a.jpg", "text": "a cat"})
    with pytest.raises(OSError, match=expected):  # the line waits to be written until the file is closed
        record.close()
    assert record.file.closed
