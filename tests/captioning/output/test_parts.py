"""Part files: rows come back, whole or not at all, and only one model writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from helpers.irregular_files import KINDS, make_irregular

from captioner.captioning.output.parts import FORMATS, Parts
from captioner.captioning.records import Origin, error_record
from captioner.images.sources import name_key

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
ORIGIN = Origin("0123", {"method": "beam", "beam": 5}, name="toy")
CAPTION = {"text": "a dog", "words": ["a", "dog"], "probabilities": [0.5, 0.25], "log_prob": -2.5}
ODD = os.fsdecode(b"caf\xe9.jpg")
ROWS: list[dict[str, Any]] = [
    {"file_name": "a.jpg", **CAPTION, "alternatives": [CAPTION], "model": "0123"},
    {"file_name": "s.tar/b.jpg", "shard": "s.tar", **CAPTION, "confidence": 0.5},
    error_record(ODD, "empty file"),
]


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import pyarrow.parquet

    return [
        {key: value for key, value in row.items() if value is not None}
        for row in pyarrow.parquet.read_table(path).to_pylist()
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_and_what_is_done_come_back(format: str, tmp_path: Path) -> None:
    with Parts(str(tmp_path / "out"), ORIGIN, format=format) as parts:
        assert len(parts.read_done()) == 0
        parts.write("0", ROWS[:1])
        parts.write("1", ROWS[1:])
    with Parts(str(tmp_path / "out"), ORIGIN, format=format) as parts:
        done = parts.read_done()
    assert all(name_key(name) in done for name in ("a.jpg", "s.tar", ODD))
    assert len(done) == 3
    rows = [row for path in sorted((tmp_path / "out").glob("part-*")) for row in read_rows(path)]
    for row, given in zip(rows, ROWS, strict=True):
        assert {key: row[key] for key in given if key != "model"} == {k: v for k, v in given.items() if k != "model"}
    about = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert (about["model_name"], about["search"]["beam"]) == ("toy", 5)


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_holds_the_same(format: str) -> None:
    url = f"memory://parts-{format}"
    with Parts(url, ORIGIN, format=format) as parts:
        parts.write("0", ROWS)
    with Parts(url, ORIGIN, format=format) as parts:
        assert len(parts.read_done()) == 3
    names = {path.rpartition("/")[2] for path in fsspec.filesystem("memory").ls(url, detail=False)}
    assert names == {"dataset.json", f"part-0.{format}"}


def test_another_origin_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path)
    Parts(out, ORIGIN).close()
    with pytest.raises(ValueError, match="has captions by toy, not other; choose another folder"):
        Parts(out, Origin("4567", ORIGIN.search, name="other"))
    with pytest.raises(ValueError, match="with beam 5, not 3"):
        Parts(out, Origin("0123", {"method": "beam", "beam": 3}, name="toy"))
    with pytest.raises(ValueError, match="in the format parquet, not jsonl"):
        Parts(out, ORIGIN, format="jsonl")
    with pytest.raises(ValueError, match="format is 'csv'; choose from parquet, jsonl"):
        Parts(out, ORIGIN, format="csv")


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with Parts(str(tmp_path), ORIGIN), pytest.raises(ValueError, match="is being written by another process"):
        Parts(str(tmp_path), ORIGIN)
    Parts(str(tmp_path), ORIGIN).close()


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_part_is_named(format: str, tmp_path: Path) -> None:
    with Parts(str(tmp_path), ORIGIN, format=format) as parts:
        (tmp_path / f"part-0.{format}").write_bytes(b"nothing")
        with pytest.raises(ValueError, match=rf"part-0.{format} is damaged: .*; remove it"):
            parts.read_done()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["dataset.lock", "dataset.json", "part-0.jsonl"])
def test_what_is_no_file_is_not_opened(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (name, kind) == ("dataset.lock", "sparse"):
        pytest.skip("nothing is read of a lock")
    Parts(str(tmp_path), ORIGIN, format="jsonl").close()
    (tmp_path / name).unlink(missing_ok=True)
    make_irregular(tmp_path / name, kind, monkeypatch)
    with pytest.raises(ValueError, match=name), Parts(str(tmp_path), ORIGIN, format="jsonl") as parts:
        parts.read_done()


@pytest.mark.parametrize("changes", [{"search": 5}, {"wording": [1]}, {"format": None}, {"model": [1]}])
def test_damaged_words_on_the_data_set_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    Parts(str(tmp_path), ORIGIN).close()
    about = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(about | changes))
    with pytest.raises(ValueError, match="choose another folder"):
        Parts(str(tmp_path), ORIGIN)


def test_a_line_without_an_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.captioning.output.parts.LONGEST", 100)
    with Parts(str(tmp_path), ORIGIN, format="jsonl") as parts:
        (tmp_path / "part-0.jsonl").write_bytes(b" " * 101)
        with pytest.raises(ValueError, match=r"part-0\.jsonl is damaged: a line has more than 100 bytes; remove it"):
            parts.read_done()


def test_parts_of_nobody_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"has parts but no dataset.json; choose another folder"):
        Parts(str(tmp_path), ORIGIN)
