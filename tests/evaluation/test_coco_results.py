from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.coco_results import read_results, write_image_scores, write_results

AWKWARD = [
    '"quoted", with a comma',
    "two\nlines\r\nand\u2028more",
    "naïve 犬 🐕",
    "",
    "  ",
    "a\tb \\ 'c'",
    "<b>&amp;</b>",
]


def images(*ids: int | str) -> list[CaptionedImage]:
    return [
        CaptionedImage(f"val/{own if isinstance(own, str) else f'{own:012d}.jpg'}", Path("x"), own, "val", ("r",), None)
        for own in ids
    ]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def result(image_id: Any, caption: Any = "a dog") -> dict[str, Any]:
    return {"image_id": image_id, "caption": caption}


def test_numbers_and_their_digits(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [result(42, "x"), result("57", "y"), result("000000000007", "z")])
    assert read_results(path, images(7, 42, 57)) == {
        "val/000000000007.jpg": "z",
        "val/000000000042.jpg": "x",
        "val/000000000057.jpg": "y",
    }


def test_names_in_every_form(tmp_path: Path) -> None:
    entries = [
        result("a.jpg", "id"),
        {"image_id": 3, "file_name": "b.jpg", "caption": "file name beside a place"},
        {"file_name": "data/flickr8k/val/c.jpg", "caption": "other folders"},
        result("val/d.jpg", "whole name"),
    ]
    found = read_results(write(tmp_path / "r.json", entries), images("a.jpg", "b.jpg", "c.jpg", "d.jpg"))
    assert list(found) == [f"val/{letter}.jpg" for letter in "abcd"]
    assert list(found.values()) == ["id", "file name beside a place", "other folders", "whole name"]


def test_names_that_are_digits_and_names_that_two_folders_share(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [result("12", "twelve")])
    assert read_results(path, images("12")) == {"val/12": "twelve"}
    twins = [CaptionedImage(f"{folder}/a.jpg", Path("x"), f"{folder}/a.jpg", "val", ("r",), None) for folder in "xy"]
    whole = write(tmp_path / "whole.json", [result("y/a.jpg", "y"), result("x/a.jpg", "x")])
    assert read_results(whole, twins) == {"x/a.jpg": "x", "y/a.jpg": "y"}
    with pytest.raises(ValueError, match=r"captions of images that are not in the split: 1 \('a\.jpg'\)"):
        read_results(write(tmp_path / "bare.json", [*json.loads(whole.read_text()), result("a.jpg")]), twins)


def test_captions_of_the_rest_of_the_split_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [result(1), result(2), result(3)])
    assert list(read_results(path, images(2), images(1, 2, 3))) == ["val/000000000002.jpg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([result(1), result(2)], "images without a caption: 8 of 10 (3, 4, 5, 6, 7 and 3 more)"),
        ([*map(result, range(1, 11)), result(99), result("x.jpg")],
         "captions of images that are not in the split: 2 (99, 'x.jpg')"),
        ([*map(result, range(1, 11)), result(4), result("4"), result(7)], "images with several captions: 2 (4, 7)"),
        ([result(1), result(1), result(99)],
         "images without a caption: 9 of 10 (2, 3, 4, 5, 6 and 4 more); images with several captions: 1 (1); "
         "captions of images that are not in the split: 1 (99)"),
        ([result(1), 7, {"caption": "x"}, {"image_id": 1}, result(2, 5), result(3, None), result(1.5)],
         "entries that cannot be used: 6 of 7 (entry 1 is 7, not an object; entry 2 has no image_id; "
         "entry 3 has no caption; entry 4 has the caption 5, which is no text; "
         "entry 5 has the caption None, which is no text and 1 more)"),
        ([result(True)], "entry 0 names the image True, expected a number or a text"),
        ([result([1])], "entry 0 names the image [1], expected a number or a text"),
        ([result(1, "\ud800")], "entry 0 has the caption '\\ud800', which is no text"),
        ({"annotations": []}, "holds a JSON dict, expected a list of results"),
        ([], "holds an empty list"),
        ("[{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_that_lists_some(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path / "r.json", content)
    with pytest.raises(ValueError, match=r"r\.json") as error:
        read_results(path, images(*range(1, 11)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([result(1, "café")], ensure_ascii=False).encode())
    assert read_results(path, images(1)) == {"val/000000000001.jpg": "café"}
    path.write_bytes('[{"image_id": 1, "caption": "café"}]'.encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8: byte 0xe9"):
        read_results(path, images(1))


@pytest.mark.parametrize("ids", [tuple(range(7)), tuple("abcdefg")])
def test_what_is_written_is_read_again(tmp_path: Path, ids: tuple[Any, ...]) -> None:
    own = images(*ids)
    write_results(tmp_path / "r.json", own, AWKWARD)
    content = json.loads((tmp_path / "r.json").read_text())
    assert content == [{"image_id": image_id, "caption": text} for image_id, text in zip(ids, AWKWARD, strict=True)]
    assert list(read_results(tmp_path / "r.json", own).values()) == AWKWARD


def test_scores_of_images(tmp_path: Path) -> None:
    own = images(*range(7))
    scores = {"bleu1": np.linspace(0, 100, 7), "cider": np.arange(7.0)}
    write_image_scores(tmp_path, own, AWKWARD, scores)
    lines = (tmp_path / "images.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["caption"] for record in records] == AWKWARD
    assert records[1]["scores"] == {"bleu1": pytest.approx(100 / 6, abs=1e-4), "cider": 1.0}
    assert records[1]["references"] == ["r"]
    with (tmp_path / "images.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["caption"] for row in rows] == AWKWARD
    assert rows[6]["cider"] == "6.0"
    assert rows[6]["file_name"] == "val/000000000006.jpg"
