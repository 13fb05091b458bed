"""Captions that people have corrected: read, kept by the folder, and taken over into all that is made of its record."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from captioner.captioning.corrections import (
    CORRECTIONS,
    apply_corrections,
    correct_folder,
    corrected,
    read_corrections,
    store_corrections,
    written_caption,
)
from captioner.captioning.output.derived import Derived
from captioner.captioning.records import CAPTIONS, read_lines, to_line


def record(name: str, text: str, *others: str) -> dict[str, Any]:
    def said(text: str) -> dict[str, Any]:
        words = text.split()
        return {"text": text, "words": words, "probabilities": [0.5] * len(words), "log_prob": -float(len(text))}

    alternatives = {"alternatives": [said(other) for other in others]} if others else {}
    return {"file_name": name, **said(text), **alternatives, "model": "m", "search": {}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    records = [
        record("photos/a.jpg", "a dog", "a cat", "two dogs"),
        record("photos/b.jpg", "a boat"),
        record("photos/c.jpg", "a man"),
        record("other/c.jpg", "a tree"),
    ]
    (folder / CAPTIONS).write_bytes(b"".join(map(to_line, records)))
    return folder


def texts(out: Path) -> dict[str, str]:
    return {line.name: line.record["text"] for line in read_lines(out / CAPTIONS)}


def write(path: Path, *corrections: tuple[str, str]) -> Path:
    lines = [json.dumps({"image": image, "caption": caption}) for image, caption in corrections]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_text_of_ones_own_leaves_the_models_words() -> None:
    before = record("a.jpg", "a dog", "a cat")
    after = corrected(before, "My dog Rex.")
    assert after == {**before, "text": "My dog Rex.", "model_text": "a dog", "corrected": True}
    assert written_caption(after) == "My dog Rex."
    assert corrected(after, "My dog Max.") == {**after, "text": "My dog Max."}
    assert corrected(after, "a dog") == {**before, "corrected": True}


def test_another_of_the_models_captions_takes_the_first_place() -> None:
    before = record("a.jpg", "a dog", "a cat", "two dogs")
    after = corrected(before, "two dogs")
    assert (after["text"], after["words"], after["log_prob"]) == ("two dogs", ["two", "dogs"], -8.0)
    assert [other["text"] for other in after["alternatives"]] == ["a cat", "a dog"]
    assert written_caption(after) is None
    assert corrected(after, "a dog") == {**before, "corrected": True}
    # Also where somebody wrote another text before.
    assert corrected(corrected(before, "Rex"), "two dogs") == after


def test_a_folder_is_corrected_with_all_that_was_made_of_it(out: Path, tmp_path: Path) -> None:
    Derived(out).bring_up_to_date(["csv", "txt"])
    file = write(tmp_path / "mine.jsonl", ("photos/a.jpg", "two dogs"), ("b.jpg", "Our  boat,\tthe Ännchen."))
    applied = correct_folder(out, file)
    assert (applied.corrected, applied.unknown) == (2, ())
    expected = {"photos/a.jpg": "two dogs", "photos/b.jpg": "Our boat, the Ännchen."}
    assert texts(out) == {**expected, "photos/c.jpg": "a man", "other/c.jpg": "a tree"}
    with (out / "captions.csv").open(encoding="utf-8-sig", newline="") as table:
        assert {row["file_name"]: row["text"] for row in csv.DictReader(table)} == texts(out)
    assert (out / "txt" / "photos" / "b.jpg.txt").read_text(encoding="utf-8") == "Our boat, the Ännchen.\n"
    assert not (out / "captions-coco.json").exists()  # nobody asked for it
    again = (out / CAPTIONS).read_bytes()
    assert correct_folder(out, file) == applied
    assert (out / CAPTIONS).read_bytes() == again


def test_the_folder_keeps_corrections_for_later_runs(out: Path, tmp_path: Path) -> None:
    correct_folder(out, write(tmp_path / "mine.jsonl", ("photos/b.jpg", "Our boat.")))
    correct_folder(out, write(tmp_path / "more.jsonl", ("photos/c.jpg", "Tom."), ("photos/b.jpg", "Her boat.")))
    assert read_corrections(out / CORRECTIONS) == {"photos/b.jpg": "Her boat.", "photos/c.jpg": "Tom."}
    # As a run that captions everything anew leaves it.
    fresh = [record("photos/b.jpg", "a ship"), record("photos/c.jpg", "a boy")]
    (out / CAPTIONS).write_bytes(b"".join(map(to_line, fresh)))
    apply_corrections(out)
    assert texts(out) == {"photos/b.jpg": "Her boat.", "photos/c.jpg": "Tom."}
    assert [line.record["model_text"] for line in read_lines(out / CAPTIONS)] == ["a ship", "a boy"]


def test_images_of_no_name_or_of_two_are_told(out: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", ("c.jpg", "which?"), ("gone.jpg", "x"), ("other/c.jpg", "an oak"))
    applied = correct_folder(out, file)
    assert (applied.corrected, applied.unknown) == (1, ("c.jpg", "gone.jpg"))
    assert texts(out)["other/c.jpg"] == "an oak"
    assert texts(out)["photos/c.jpg"] == "a man"


def test_a_file_of_other_images_changes_nothing(out: Path, tmp_path: Path) -> None:
    before = (out / CAPTIONS).read_bytes()
    file = write(tmp_path / "mine.jsonl", ("gone.jpg", "x"))
    with pytest.raises(ValueError, match=r"none of the 1 images in .*mine\.jsonl has a caption in"):
        correct_folder(out, file)
    assert (out / CAPTIONS).read_bytes() == before
    assert not (out / CORRECTIONS).exists()
    with pytest.raises(ValueError, match="is not there; caption the images into"):
        correct_folder(tmp_path / "none", file)


WRONG = {
    "nonsense": "is not a correction",
    "[1]": "is not a correction",
    '{"image": "a.jpg"}': "is not a correction",
    '{"image": 5, "caption": "x"}': "is not a correction",
    "[" * 20_000: "is not a correction",
    '{"image": "a.jpg", "caption": " "}': "printable text of 1 to 2000 letters",
    '{"image": "a.jpg", "caption": "a\\u001b[31m"}': "printable text",
    json.dumps({"image": "a.jpg", "caption": "x" * 2001}): "printable text",
}


@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
def test_lines_that_are_wrong(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"image": "b.jpg", "caption": "fine"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=WRONG[line]) as caught:
        read_corrections(path)
    assert f"{path}:3" in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(ValueError, match=r"expected a regular file|cannot read"):
            read_corrections(path)


def test_no_link_is_followed(out: Path, tmp_path: Path) -> None:
    (out / CORRECTIONS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symlink"):
        store_corrections(out, {"a.jpg": "x"})
    assert not (tmp_path / "elsewhere").exists()
