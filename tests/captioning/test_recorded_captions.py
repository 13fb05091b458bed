"""Captions read back from records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tar_files import write_tar
from helpers.toy_captions import GRID, SIDE, caption_of

from captioner.captioning.caption import Caption
from captioner.captioning.recorded_captions import recorded_captions, recorded_images, share_grid
from captioner.captioning.records import Origin, Record, caption_record, to_line
from captioner.images.preprocessing import Preprocessing

ORIGIN = Origin("model", {"beam": 5}, attention=True)


def make_caption(words: int = 3, seed: int = 0) -> Caption:
    attention = np.random.default_rng(seed).dirichlet(np.full(63, 0.3), words).reshape(words, *GRID)
    return caption_of(attention, Preprocessing(SIDE, "crop", flip=True).geometry(300, 200), seed=seed)


def make_record(name: str = "a.jpg", **changes: Any) -> Record:
    record: Record = json.loads(to_line(caption_record(name, [make_caption(), make_caption(2, 1)], ORIGIN)))
    return {**record, **changes}


def test_captions_come_back_as_they_were() -> None:
    expected = [make_caption(), make_caption(2, 1)]
    found = recorded_captions(make_record())
    assert len(found) == 2
    for one, other in zip(found, expected, strict=True):
        assert one.words == other.words
        assert one.text == other.text
        assert one.geometry == other.geometry
        assert one.attention == pytest.approx(other.attention, abs=1e-5)
        assert one.beta == pytest.approx(other.beta, rel=1e-5)
        assert one.probabilities == pytest.approx(other.probabilities, rel=1e-5)


def test_points_come_back_as_they_were() -> None:
    points = np.random.default_rng(0).random((3, 2, 2)).astype(np.float32)
    caption = replace(make_caption(), points=points, extents=(1.5, 3.0))
    (found,) = recorded_captions(json.loads(to_line(caption_record("a", [caption], ORIGIN))))
    assert found.points == pytest.approx(points, abs=1e-3)
    assert found.extents == (1.5, 3.0)
    with pytest.raises(ValueError, match=r"points has the shape \(2, 2, 2\); 3 words need \(3, glimpses, 2\)"):
        replace(caption, points=points[:2])
    with pytest.raises(ValueError, match="must be finite numbers"):
        replace(caption, points=points * np.nan)


def test_a_caption_without_words() -> None:
    empty = caption_of(np.zeros((0, *GRID)), Preprocessing(SIDE).geometry(30, 20), ())
    (found,) = recorded_captions(json.loads(to_line(caption_record("a", [empty], ORIGIN))))
    assert found.words == ()


def test_captions_without_words_have_the_grid_of_the_others() -> None:
    empty = caption_of(np.zeros((0, *GRID)), Preprocessing(SIDE).geometry(30, 20), ())
    record = json.loads(to_line(caption_record("a", [empty, make_caption()], ORIGIN)))
    first, second = recorded_captions(record, Path("a.jpg"))
    assert first.attention.shape == (0, *GRID)
    assert (first.source, second.source) == (Path("a.jpg"), Path("a.jpg"))
    (alone,) = recorded_captions(json.loads(to_line(caption_record("a", [empty], ORIGIN))))
    assert [own.attention.shape for own in share_grid([alone, second, alone])] == [(0, *GRID), (3, *GRID), (0, *GRID)]
    assert share_grid([alone]) == [alone]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": [[[0.5, 0.5]]]}, "the record is damaged: ValueError: attention has the shape"),
        ({"attention": "none"}, "the record is damaged: ValueError"),
        ({"geometry": {"width": 3}}, "the record is damaged: KeyError: 'height'"),
        ({"geometry": None}, "the record is damaged: TypeError"),
        ({"geometry": {"width": 0, "height": 2, "box": [0, 0, 1, 1], "flipped": False}}, "its geometry is"),
        ({"beta": [2, 2, 2]}, "beta is"),
        ({"words": 5}, "the record is damaged: TypeError"),
    ],
)
def test_damaged_records_are_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        recorded_captions(make_record(**changes))
    assert "\n" not in str(caught.value)


def test_records_without_attention_say_what_to_do() -> None:
    record = caption_record("a.jpg", [make_caption()], Origin("model", {}))
    with pytest.raises(ValueError, match="the record holds no attention; make it with `captioner caption --attention`"):
        recorded_captions(record)


def test_the_last_line_of_an_image_counts_and_images_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"first")
    write_tar(tmp_path / "some.tar", {"b.jpg": b"second"})
    names = ["a.jpg", "some.tar/b.jpg", "a.jpg", "gone.jpg", "some.tar/gone.jpg"]
    lines = [make_record(name, number=number) for number, name in enumerate(names)]
    (tmp_path / "captions.jsonl").write_bytes(b"".join(map(to_line, lines)))
    found = {source.name: (source, record["number"]) for source, record in recorded_images(tmp_path / "captions.jsonl")}
    assert {name: number for name, (_, number) in found.items()} == {
        "a.jpg": 2, "some.tar/b.jpg": 1, "gone.jpg": 3, "some.tar/gone.jpg": 4,
    }  # fmt: skip
    assert found["a.jpg"][0].open() == Path("a.jpg")
    assert found["some.tar/b.jpg"][0].open() == b"second"
    with pytest.raises(ValueError, match="not in the archive"):
        found["some.tar/gone.jpg"][0].open()
    with pytest.raises(ValueError, match=r"none.jsonl is not a file of records"):
        list(recorded_images(tmp_path / "none.jsonl"))
