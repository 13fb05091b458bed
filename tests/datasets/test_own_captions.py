"""One's own captions, in every layout that people have them in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.data_folders import captions_by_name, metadata, write_image

from captioner.datasets import parquet
from captioner.datasets.dataset import CaptionDataset, load_dataset

DOG, CAT, COW = "A dog, running.", "A cat", "A cow"


def test_metadata_jsonl_with_several_lines_an_image(tmp_path):
    lines: list[dict[str, object]] = [
        {"file_name": "pictures/a.jpg", "text": "A dog", "split": "train"},
        {"file_name": "./pictures/a.jpg", "text": "One dog", "split": "train"},
        {"file_name": "b.jpg", "text": "A cat", "split": "validation"},
        {"file_name": "c.jpg", "text": "A cow", "split": "zoo"},
    ]
    metadata(tmp_path, lines)
    dataset = load_dataset(tmp_path)
    assert (dataset.format, dataset.name) == ("metadata", tmp_path.name)
    assert dataset.splits() == {"train": 1, "val": 1, "zoo": 1}
    assert captions_by_name(dataset)["pictures/a.jpg"] == ("A dog", "One dog")
    assert not (tmp_path / "splits.json").exists()


def test_metadata_image_with_two_splits_is_in_both(tmp_path):
    metadata(
        tmp_path,
        [
            {"file_name": "a.jpg", "text": "A dog", "split": "train"},
            {"file_name": "a.jpg", "text": "One dog", "split": "test"},
        ],
    )
    dataset = load_dataset(tmp_path)
    assert [(image.split, image.captions) for image in dataset.images] == [
        ("train", ("A dog",)),
        ("test", ("One dog",)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"{broken",
        b"[]",
        b'{"file_name": "a.jpg"}',
        b'{"file_name": "a.jpg", "text": 5, "split": "train"}',
        b'{"file_name": "a.jpg", "text": "no split"}',
        b'{"file_name": "a.jpg", "text": "odd split", "split": 3}',
        b'{"file_name": "../outside.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "a/../../outside.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "..\\\\outside.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "/etc/outside.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "C:/outside.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "a\\u0000b/c.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "\\ud800.jpg", "text": "x", "split": "train"}',
        b'{"file_name": "", "text": "x", "split": "train"}',
        b'{"file_name": 7, "text": "x", "split": "train"}',
        b'{"file_name": "a.jpg", "text": "\xfc", "split": "train"}',
    ],
)
def test_metadata_bad_line_is_counted_and_left_out(tmp_path, line):
    path = metadata(tmp_path, [{"file_name": "a.jpg", "text": "A dog", "split": "train"}])
    write_image(tmp_path.parent / "outside.jpg")
    path.write_bytes(path.read_bytes() + line)
    dataset = load_dataset(tmp_path, tolerance=0.5)
    assert dataset.problems.counts() == {"malformed line": 1}
    assert dataset.problems.first("malformed line")[0].where == "metadata.jsonl:2"
    assert captions_by_name(dataset) == {"a.jpg": ("A dog",)}


def test_metadata_csv(tmp_path):
    for name in "ab":
        write_image(tmp_path / f"{name}.jpg")
    content = (
        '\ufefftext,file_name,split,extra\n"A dog, running",a.jpg,train,1\n'
        '"unclosed,a.jpg,train,1\nA cat,b.jpg,test,2\ntoo,few\nA cow,b.jpg,,3\nA hen,b.jpg,test,"4\n'
    )
    (tmp_path / "metadata.csv").write_bytes(content.replace("\n", "\r\n").encode())
    dataset = load_dataset(tmp_path, tolerance=0.7)
    assert captions_by_name(dataset) == {"a.jpg": ("A dog, running",), "b.jpg": ("A cat",)}
    wheres = sorted(problem.where for problem in dataset.problems.first("malformed line"))
    assert wheres == [f"metadata.csv:{number}" for number in (3, 5, 6, 7)]


# --- columns and separators


def write_images(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        write_image(root / name, number)


def texts(dataset: CaptionDataset) -> dict[str, tuple[str, ...]]:
    return captions_by_name(dataset)


@pytest.mark.parametrize(
    "line",
    [
        {"image": "a.jpg", "caption": DOG},
        {"filename": "a.jpg", "text": DOG},
        {"Image_Path": "a.jpg", " Caption ": DOG},
        {"path": "a.jpg", "captions": [DOG]},
        {"file": "a.jpg", "captions": DOG},
        {"file_name": "a.jpg", "text": None, "caption": DOG},
    ],
)
def test_columns_may_be_called_otherwise(tmp_path: Path, line: dict[str, Any]) -> None:
    write_images(tmp_path, "a.jpg")
    (tmp_path / "metadata.jsonl").write_text(json.dumps(line))
    assert texts(load_dataset(tmp_path)) == {"a.jpg": (DOG,)}


def test_a_list_of_captions_is_that_many_captions(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg", "b.jpg")
    lines = [{"image": "a.jpg", "captions": [DOG, CAT]}, {"image": "b.jpg", "captions": [COW, " ", 3]}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    dataset = load_dataset(tmp_path, tolerance=1)
    assert texts(dataset) == {"a.jpg": (DOG, CAT), "b.jpg": (COW,)}
    assert dataset.problems.counts() == {"empty caption": 1, "malformed line": 1}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["metadata.csv", "captions.csv"])
def test_csv_may_be_separated_otherwise(tmp_path: Path, separator: str, name: str) -> None:
    write_images(tmp_path, "a.jpg", "b.jpg")
    rows = [["image", "caption"], ["a.jpg", f'"{DOG}"'], ["b.jpg", '"He said ""moo""; I think"']]
    (tmp_path / name).write_text("\ufeff" + "\r\n".join(separator.join(row) for row in rows), encoding="utf-8")
    assert texts(load_dataset(tmp_path)) == {"a.jpg": (DOG,), "b.jpg": ('He said "moo"; I think',)}


@pytest.mark.parametrize("written", ['"[""A dog, running."", ""A cat""]"', "\"['A dog, running.', 'A cat']\""])
def test_csv_may_hold_lists_as_json_or_pandas_writes_them(tmp_path: Path, written: str) -> None:
    write_images(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "metadata.csv").write_text(f"image,captions\na.jpg,{written}\nb.jpg,[sic] a cow\n")
    assert texts(load_dataset(tmp_path)) == {"a.jpg": (DOG, CAT), "b.jpg": ("[sic] a cow",)}


def test_a_file_with_the_wrong_keys_is_one_error(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg")
    (tmp_path / "metadata.jsonl").write_text('{"photo": "a.jpg", "title": "A dog"}\n' * 7)
    expected = (
        r"^\S+metadata.jsonl has 'photo', 'title'; expected file_name \(or image, filename, file, image_path, path\), "
        r"text \(or caption, captions\) and perhaps split$"
    )
    with pytest.raises(ValueError, match=expected):
        load_dataset(tmp_path)
    (tmp_path / "metadata.jsonl").unlink()
    (tmp_path / "metadata.csv").write_text("photo;title\na.jpg;A dog\n")
    with pytest.raises(ValueError, match=r"^\S+metadata.csv has the columns photo, title; expected file_name \(or "):
        load_dataset(tmp_path)


def test_of_two_columns_of_captions_the_first_counts_and_it_is_said(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg")
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"image": "a.jpg", "caption": CAT, "text": DOG}))
    dataset = load_dataset(tmp_path)
    assert texts(dataset) == {"a.jpg": (DOG,)}
    assert dataset.notes[0] == "captions are those of 'text' in metadata.jsonl, not of 'caption'"


# --- folders of splits


def write_image_folder(
    root: Path, suffix: str = "jsonl", splits: tuple[str, ...] = ("train", "validation", "test")
) -> None:
    for number, split in enumerate(splits):
        write_images(root, f"{split}/{number}.jpg")
        line = {"file_name": f"{number}.jpg", "text": f"Caption {number}"}
        content = json.dumps(line) if suffix == "jsonl" else f"file_name,text\n{line['file_name']},{line['text']}\n"
        (root / split / f"metadata.{suffix}").write_text(content)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_folders_of_splits_each_have_their_metadata(tmp_path: Path, suffix: str) -> None:
    write_image_folder(tmp_path, suffix)
    dataset = load_dataset(tmp_path)
    assert (dataset.format, dataset.splits()) == ("metadata", {"train": 1, "val": 1, "test": 1})
    assert texts(dataset)["validation/1.jpg"] == ("Caption 1",)
    assert not (tmp_path / "splits.json").exists()


def test_one_file_may_name_images_in_folders_of_splits(tmp_path: Path) -> None:
    lines = [{"file_name": f"{split}/{split}.jpg", "text": DOG} for split in ("train", "valid", "test")]
    metadata(tmp_path, lines)  # type: ignore[arg-type]
    assert load_dataset(tmp_path).splits() == {"train": 1, "val": 1, "test": 1}
    metadata(tmp_path, [*lines, {"file_name": "more.jpg", "text": CAT}])  # type: ignore[list-item]
    assert load_dataset(tmp_path).notes[0].startswith("wrote splits.json")  # not all lie in such folders


def test_a_folder_train_alone_is_split(tmp_path: Path) -> None:
    write_image_folder(tmp_path, splits=("train",))
    lines = [json.dumps({"file_name": f"{number}.jpg", "text": DOG}) for number in range(10)]
    write_images(tmp_path, *(f"train/{number}.jpg" for number in range(10)))
    (tmp_path / "train" / "metadata.jsonl").write_text("\n".join(lines))
    assert load_dataset(tmp_path).splits() == {"train": 8, "val": 1, "test": 1}


def test_two_files_for_the_same_images_are_an_error(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    (tmp_path / "metadata.csv").write_text("file_name,text\n")
    with pytest.raises(ValueError, match=r"holds metadata.csv and test/metadata.jsonl and .*: keep only one of them$"):
        load_dataset(tmp_path)


# --- text files


def test_text_files_beside_images(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg", "deep/b.png", "c.jpg")
    (tmp_path / "a.txt").write_text(f"{DOG}\n\n{CAT}\n")
    (tmp_path / "deep" / "b.png.txt").write_text("\ufeffK\u00fche", encoding="utf-8")
    dataset = load_dataset(tmp_path, tolerance=0.5)
    assert dataset.format == "txt"
    assert texts(dataset) == {"a.jpg": (DOG, CAT), "deep/b.png": ("K\u00fche",)}
    assert dataset.problems.counts() == {"image without captions": 1}
    with pytest.raises(ValueError, match=r"1 of 3 images .* 1 x image without captions. First: c.jpg"):
        load_dataset(tmp_path)


def test_folders_of_text_files_may_be_splits(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_images(tmp_path, f"{split}/a.jpg")
        (tmp_path / split / "a.txt").write_text(DOG)
    assert load_dataset(tmp_path).splits() == {"train": 1, "val": 1, "test": 1}


def test_text_files_are_looked_for_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    metadata(tmp_path, [{"file_name": "a.jpg", "text": DOG}])
    (tmp_path / "a.txt").write_text(CAT)
    assert load_dataset(tmp_path).format == "metadata"
    assert texts(load_dataset(tmp_path, "txt")) == {"a.jpg": (CAT,)}


# --- parquet


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_table(arrow.Table.from_pylist(rows), path)


def test_metadata_may_be_parquet(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg")
    write_parquet(tmp_path / "metadata.parquet", [{"file_name": "a.jpg", "captions": [DOG, CAT]}])
    dataset = load_dataset(tmp_path)
    assert (dataset.format, texts(dataset)) == ("metadata", {"a.jpg": (DOG, CAT)})


def test_images_in_parquet_are_unpacked_once(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg")
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").unlink()
    image = {"bytes": data, "path": "x.jpg"}
    write_parquet(
        tmp_path / "data/train-00000-of-00001.parquet", [{"image": image, "caption": text} for text in (DOG, CAT)]
    )
    write_parquet(tmp_path / "data/validation-00000-of-00001.parquet", [{"image": image, "caption": COW}])
    dataset = load_dataset(tmp_path)
    assert (dataset.format, dataset.splits()) == ("parquet", {"train": 2, "val": 1})
    [cow] = dataset.split("val")
    assert (cow.captions, cow.path.read_bytes()) == ((COW,), data)
    written = cow.path.stat().st_mtime_ns
    load_dataset(tmp_path)
    assert cow.path.stat().st_mtime_ns == written


def test_parquet_that_is_damaged_or_has_other_columns_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_parquet(path, [{"picture": "a.jpg", "caption": DOG}] * 9)
    with pytest.raises(
        ValueError, match=r"^\S+train.parquet has the columns picture, caption; expected image and text"
    ):
        load_dataset(tmp_path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"^\S+train.parquet cannot be read: [^\n]+$"):
        load_dataset(tmp_path)


def test_parquet_that_unpacks_to_far_more_than_its_size_fills_neither_memory_nor_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {"bytes": b"\xff\xd8" + bytes(100_000)}  # which all rows share, so that it is stored once
    write_parquet(tmp_path / "train.parquet", [{"image": image, "caption": DOG}] * 50)
    monkeypatch.setattr(parquet, "FREE_BYTES", 1_000_000)
    monkeypatch.setattr(parquet, "MAX_RATIO", 1)
    monkeypatch.setattr(parquet, "MAX_HELD", 200_000)
    with pytest.raises(ValueError, match=r"^\S+train.parquet unpacks to 1 MB or more; at most 1 MB are read$"):
        load_dataset(tmp_path)
    written = sum(path.stat().st_size for path in (tmp_path / parquet.UNPACKED).iterdir())
    assert 0 < written < 1_100_000


def test_parquet_without_pyarrow_tells_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metadata.parquet").write_bytes(b"PAR1")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"metadata.parquet needs pyarrow, .*: pip install 'captioner\[parquet\]'$"):
        load_dataset(tmp_path)


# --- what is said


def test_lines_that_are_wrong_in_the_same_way_are_told_once(tmp_path: Path) -> None:
    write_images(tmp_path, "a.jpg")
    content = "image;caption\n" + "a.jpg;Ein Hund l\u00e4uft\n" * 9
    (tmp_path / "metadata.csv").write_bytes(content.encode("cp1252"))
    expected = r"First: metadata.csv:2: byte 0xe4 at position 17 is not UTF-8$"
    with pytest.raises(ValueError, match=expected):
        load_dataset(tmp_path)


def test_images_without_captions_are_told_what_to_add(tmp_path: Path) -> None:
    write_images(tmp_path, "deep/a.jpg")
    with pytest.raises(ValueError, match=r"has images but no captions that are known; add a metadata.csv or "):
        load_dataset(tmp_path)
