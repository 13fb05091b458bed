"""Records of captions, and what is derived from them."""

from __future__ import annotations

import csv
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from helpers.toy_captions import flat
from pycocotools.coco import COCO

from captioner.captioning.output.derived import Derived
from captioner.captioning.output.tables import make_parent, tree_path
from captioner.captioning.records import (
    Origin,
    RecordFile,
    caption_record,
    error_record,
    gather_records,
    read_lines,
    record_name,
    to_line,
)
from captioner.images.sources import name_key

ORIGIN = Origin("0123456789abcdef", {"method": "beam", "beam": 5, "n_best": 1})
ODD_NAMES = [
    "a/1.jpg",
    "naïve 犬.jpg",
    "new\nline\r.jpg",
    'tab\tquote".jpg',
    "u2028\u2028.jpg",
    "next\x85line.jpg",
    os.fsdecode(b"caf\xe9.jpg"),
    "caf\\xe9.jpg",  # which the one before looks like
    "../up.jpg",
    "/root.jpg",
    "",
]


def record(name: str, text: str = "a dog", **changes: Any) -> dict[str, Any]:
    words = tuple(text.split())
    return caption_record(name, [replace(flat(len(words), (20, 10)), text=text, words=words)], ORIGIN) | changes


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(to_line, records)))
    return path


def test_a_record_is_all_that_was_said() -> None:
    caption = replace(flat(2, (20, 10)), text="a dog", words=("a", "dog"), log_prob=-1 / 3)
    other = replace(caption, text="a cat", words=("a", "cat"))
    found = caption_record("x.jpg", [caption, other], ORIGIN)
    assert list(found) == ["file_name", "text", "words", "probabilities", "log_prob", "alternatives", "model", "search"]
    assert (found["file_name"], found["text"], found["words"]) == ("x.jpg", "a dog", ["a", "dog"])
    assert found["log_prob"] == -0.333333
    assert found["probabilities"] == pytest.approx(caption.probabilities, rel=1e-5)
    assert [alternative["text"] for alternative in found["alternatives"]] == ["a cat"]
    assert (found["model"], found["search"]) == (ORIGIN.model, ORIGIN.search)
    assert json.loads(to_line(found)) == found


def test_attention_comes_on_request_with_its_place_on_the_image() -> None:
    caption = flat(3, (20, 10))
    found = json.loads(to_line(caption_record("x.jpg", [caption], replace(ORIGIN, attention=True))))
    assert np.array(found["attention"]).shape == caption.attention.shape
    assert np.array(found["attention"]).sum(axis=(1, 2)) == pytest.approx(np.ones(3), abs=1e-3)
    assert found["beta"] == pytest.approx(caption.beta, rel=1e-5)
    assert found["geometry"] == {"width": 20, "height": 10, "box": [0.0, 0.0, 20.0, 10.0], "flipped": False}


def test_any_name_is_one_line_that_others_can_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(record(name) for name in ODD_NAMES), error_record("\udce9", "why"))
    text = path.read_text("utf-8")  # not without surrogates that would have to be escaped
    assert len(text.splitlines()) == len(ODD_NAMES) + 1  # whatever is taken for the end of a line
    for line in text.splitlines():
        json.loads(line)["file_name"].encode("utf-8")
    assert [line.name for line in read_lines(path)] == [*ODD_NAMES, "\udce9"]
    assert len({name_key(line.name) for line in read_lines(path)}) == len(ODD_NAMES) + 1


def test_half_a_line_is_neither_read_nor_built_upon(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.jsonl", record("a"), record("b")).read_bytes()
    path = tmp_path / "y.jsonl"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        before = [line.name for line in read_lines(path)]
        assert before == ["a", "b"][: whole[:length].count(b"\n")]
        file = RecordFile(path)
        file.append(record("c"))
        file.close()
        assert [line.name for line in read_lines(path)] == [*before, "c"]
    long = record("l", text="word " * 30_000)
    path.write_bytes(to_line(record("a")) + to_line(long)[:-1])
    RecordFile(path).close()
    assert path.read_bytes() == to_line(record("a"))
    assert list(read_lines(tmp_path / "nowhere.jsonl")) == []


NO_RECORDS = [b"\0\0\0", b"{}", b"[1]", b'"x"', b"", b'{"file_name": 3}', b"\xff", b'{"file_name": "b"}']
NO_FIELDS: list[dict[str, Any]] = [
    {"text": 5},
    {"text": "\ud800"},
    {"model_text": None},
    {"error": ["x"]},
    {"file_name_bytes": "zz"},
    {"file_name": None, "file_name_bytes": "62"},
    {"alternatives": 0.5},
    {"alternatives": ["x"]},
    {"alternatives": [{}]},
    {"search": 1e30},
    {"wording": [1]},
    {"file": "x"},
    {"model": 5},
    {"model_name": {"a": 1}},
    {"deep": json.loads("[" * 120 + "]" * 120)},
]


@pytest.mark.parametrize("line", [*NO_RECORDS, *(json.dumps(record("b") | each).encode() for each in NO_FIELDS)])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(to_line(record("a")) + line + b"\n" + to_line(record("b")))
    with pytest.raises(ValueError, match=r"x.jsonl:2 is damaged: not a record; remove that line"):
        list(read_lines(path))


def test_a_record_of_another_origin_is_told_apart() -> None:
    own = record("a")
    assert ORIGIN.difference(own) is None
    assert ORIGIN.difference({**own, "attention": []}) is None
    theirs = {**own, "model": "f" * 16, "model_name": "theirs"}
    assert replace(ORIGIN, name="ours").difference(theirs) == "by theirs, not ours"
    assert replace(ORIGIN, wording={"sentence": True}).difference(own) == "without sentence, not with it"
    assert ORIGIN.difference({**own, "wording": {"prefix": "x"}}) == "with prefix 'x', not without"
    assert ORIGIN.difference({**own, "search": {**ORIGIN.search, "beam": 3}}) == "with beam 3, not 5"
    assert ORIGIN.difference({**own, "search": {**ORIGIN.search, "seed": 3}}) == "with seed 3, not without"
    assert ORIGIN.difference({**own, "search": {**ORIGIN.search, "unknown": False}}) is None  # of an earlier version
    assert ORIGIN.difference({**own, "search": None}) == "without method, not with it"
    assert replace(ORIGIN, attention=True).difference(own) == "without attention"
    assert replace(ORIGIN, attention=True, needed=False).difference(own) is None


def test_gathering_takes_the_last_of_each(tmp_path: Path) -> None:
    main = write(tmp_path / "main.jsonl", record("b", "1"), record("a/x", "2"), record("b", "3"), record("a", "4"))
    part = write(tmp_path / "part.jsonl", record("a-", "5"), record("a", "6"), record("gone", "7"))
    with part.open("ab") as file:
        file.write(to_line(record("torn"))[:-1])
    files = [main, part, tmp_path / "nowhere"]
    gather_records(tmp_path / "out.jsonl", files, leave_out={name_key("gone")})
    found = [(line.name, line.record["text"]) for line in read_lines(tmp_path / "out.jsonl")]
    assert found == [("b", "3"), ("a/x", "2"), ("a", "6"), ("a-", "5")]
    gather_records(main, files, by_name=True)
    found = [(line.name, line.record["text"]) for line in read_lines(main)]
    assert found == [("a", "6"), ("a/x", "2"), ("a-", "5"), ("b", "3"), ("gone", "7")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["main.jsonl", "out.jsonl", "part.jsonl"]


def random_names(count: int) -> set[str]:
    """Return names made of what is awkward in paths."""
    chance = random.Random(0)
    pieces = ["/", "/", "..", ".", "a", "b", ".txt", ".png", ".jpg", "%", "%2F", "%2E", "\n", "\udcff", "é", "x" * 150]
    return {"".join(chance.choices(pieces, k=chance.randint(1, 6))) for _ in range(count)}


@pytest.mark.parametrize("suffix", [".txt", ".png"])
def test_no_two_names_share_a_file_and_none_leaves_the_tree(tmp_path: Path, suffix: str) -> None:
    names = sorted(random_names(6000) | {name for name in ODD_NAMES if name})
    paths = {name: tree_path(name, suffix) for name in names}
    assert len(set(paths.values())) == len(names)
    folders = {parent.as_posix() for path in paths.values() for parent in Path(path).parents}
    assert not folders & set(paths.values())  # nothing is both a file and a folder
    for name, path in paths.items():
        parts = path.split("/")
        assert path.endswith(suffix)
        assert not {"", ".", ".."} & set(parts)
        assert not any(character < " " for character in path)
        assert all(len(part.encode()) <= 255 - 30 for part in parts)
        if len(os.fsencode(name)) < 200:
            assert unquote_to_bytes(path.removesuffix(suffix)) == os.fsencode(name)


def test_plain_names_stay_as_they_are() -> None:
    assert tree_path("a/b c/naïve 犬.JPG", ".txt") == "a/b c/naïve 犬.JPG.txt"
    assert tree_path("x.jpg", ".txt") != tree_path("x.png", ".txt")
    assert tree_path("../x.jpg", ".txt") == "%2E%2E/x.jpg.txt"
    assert tree_path("/x.jpg", ".txt") == "%2Fx.jpg.txt"
    assert tree_path("a.txt/x.jpg", ".txt") == "a%2Etxt/x.jpg.txt"
    assert len(tree_path("deep/" * 500, ".txt")) < 50


def test_csv(tmp_path: Path) -> None:
    write(tmp_path / "captions.jsonl", *(record(name, 'a "dog", a cat') for name in ODD_NAMES))
    Derived(tmp_path).bring_up_to_date(["csv"])
    assert (tmp_path / "captions.csv").read_bytes().startswith(b"\xef\xbb\xbffile_name")  # for spreadsheets
    with (tmp_path / "captions.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ['a "dog", a cat'] * len(ODD_NAMES)
    assert [row["file_name"] for row in rows[:3]] == ODD_NAMES[:3]
    assert rows[6]["file_name"] == "caf\\xe9.jpg"
    assert float(rows[0]["log_prob"]) == -3.0


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["val/COCO_val2014_000000391895.jpg", "000000000042.jpg"], [391895, 42]),
        (["a/1.jpg", "b/1.jpg"], [1, 2]),
        (["a/7.jpg", "x.jpg", "b/9.jpg"], [1, 2, 3]),
        (["9" * 30 + ".jpg"], [999999999999999999]),
    ],
)
def test_coco_results_load_with_pycocotools(tmp_path: Path, names: list[str], ids: list[int]) -> None:
    write(tmp_path / "captions.jsonl", *(record(name, f"caption {name}") for name in names))
    Derived(tmp_path).bring_up_to_date(["coco"])
    truth = COCO()
    truth.dataset = {"images": [{"id": number} for number in ids], "annotations": [], "info": {}}
    truth.createIndex()
    results = truth.loadRes(str(tmp_path / "captions-coco.json"))
    found = [results.imgToAnns[number][0] for number in ids]
    assert [result["caption"] for result in found] == [f"caption {name}" for name in names]
    assert [result["file_name"] for result in found] == names


def test_an_empty_record_gives_empty_files(tmp_path: Path) -> None:
    Derived(tmp_path).bring_up_to_date(["csv", "coco", "txt"])
    assert (tmp_path / "captions.csv").read_text(encoding="utf-8-sig") == "file_name,text,log_prob\n"
    assert json.loads((tmp_path / "captions-coco.json").read_text()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captions-coco.json", "captions.csv", "written.jsonl"]


def test_sidecars_follow_the_record_and_keep_to_the_folder(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    names = [name for name in ODD_NAMES if name] + ["a/1.png", "x.jpg", "x.png", "b/1.jpg"]
    write(out / "captions.jsonl", *(record(name, f"caption {number}") for number, name in enumerate(names)))
    Derived(out).bring_up_to_date(["txt"])
    files = {path: path.read_text() for path in (out / "txt").rglob("*.txt") if path.is_file()}
    assert sorted(files.values()) == sorted(f"caption {number}\n" for number in range(len(names)))
    # What is missing is written, what is right is left alone, and so is what others have put there.
    paths = [out / "txt" / tree_path(name, ".txt") for name in ("x.jpg", "x.png", "b/1.jpg", "a/1.png")]
    paths[0].write_text("corrected by hand")
    paths[1].unlink()
    paths[1].symlink_to(outside / "stolen.txt")
    os.utime(paths[2], ns=(1, 1))
    paths[3].unlink()
    derived = Derived(out)
    derived.bring_up_to_date(["txt"])
    assert sorted(derived.written.left) == sorted(paths[:2])
    assert {path: path.read_text() for path in files if path not in paths[:2]} == {
        path: text for path, text in files.items() if path not in paths[:2]
    }
    assert paths[0].read_text() == "corrected by hand"
    assert paths[2].stat().st_mtime_ns == 1
    assert paths[1].is_symlink()
    paths[1].unlink()
    # A folder that leads elsewhere is not followed.
    for path in (out / "txt" / "a").iterdir():
        path.unlink()
    (out / "txt" / "a").rmdir()
    (out / "txt" / "a").symlink_to(outside)
    with pytest.raises(ValueError, match=r"txt/a leads out of .*; nothing is written there"):
        Derived(out).bring_up_to_date(["txt"])
    assert list(outside.iterdir()) == []
    with pytest.raises(ValueError, match="leads out of"):
        make_parent(out, out / "txt" / "a" / "new" / "x.txt")
    assert list(outside.iterdir()) == []


def test_records_do_not_go_through_symlinks(tmp_path: Path) -> None:
    for name in ("captions.jsonl", "captions.csv", "captions-coco.json"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    for work in (
        lambda: RecordFile(tmp_path / "captions.jsonl"),
        lambda: Derived(tmp_path).bring_up_to_date(["csv"]),
        lambda: Derived(tmp_path).bring_up_to_date(["coco"]),
    ):
        with pytest.raises(ValueError, match="is a symlink"):
            work()
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "captions.csv").unlink()
    (tmp_path / "captions.csv.unfinished").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "captions.jsonl").unlink()
    Derived(tmp_path).bring_up_to_date(["csv"])
    assert not (tmp_path / "elsewhere").exists()


def test_names_come_back_from_records() -> None:
    for name in ODD_NAMES:
        assert record_name(json.loads(to_line(error_record(name, "why")))) == name
