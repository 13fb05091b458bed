"""Confidence in captions, in records, tables and what people have corrected."""

from __future__ import annotations

import csv
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers.toy_captioner import make_toy, write_images
from helpers.toy_captions import flat
from helpers.toy_confidence import CALIBRATION

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.corrections import corrected
from captioner.captioning.output.derived import Derived
from captioner.captioning.recorded_captions import recorded_captions, recorded_confidence
from captioner.captioning.records import CAPTIONS, Origin, caption_record, to_line
from captioner.captioning.schema import record_schema
from captioner.model.encoders.encoder import Encoder

ORIGIN = Origin("0123456789abcdef", {"method": "beam"}, attention=True)
SURE, DOUBTFUL = (replace(flat(2, (20, 10)), confidence=confidence) for confidence in (0.8, 0.3))
UNKNOWN = flat(2, (20, 10))


@pytest.fixture(scope="module")
def model(lite0: Encoder) -> Captioner:
    return Captioner(make_toy(lite0), device="cpu", calibration=CALIBRATION)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("photos"), 4)


def expected(caption: Caption) -> float:
    return CALIBRATION.confidence(caption.log_prob, len(caption.words))


def test_the_first_caption_of_a_beam_has_one(model: Captioner, photos: list[Path]) -> None:
    for first, *others in model.caption(photos, n_best=3):
        assert first.confidence == expected(first)
        assert [caption.confidence for caption in others] == [None] * len(others)
    assert {caption.confidence for caption in model.caption(photos, sample=True)} == {None}


def test_a_model_that_is_not_calibrated_has_none(lite0: Encoder, model: Captioner, photos: list[Path]) -> None:
    plain = Captioner(make_toy(lite0), device="cpu")
    assert plain.digest == model.digest
    for found, same in zip(plain.caption(photos), model.caption(photos), strict=True):
        assert found.confidence is None
        assert to_line(found.to_dict()) == to_line(replace(same, confidence=None).to_dict())


def test_it_travels_with_the_model(model: Captioner, photos: list[Path]) -> None:
    assert pickle.loads(pickle.dumps(model)).caption(photos[0]).confidence == model.caption(photos[0]).confidence


def test_a_caption_through_its_record() -> None:
    record = json.loads(to_line(caption_record("a.jpg", [DOUBTFUL, UNKNOWN], ORIGIN)))
    assert record["confidence"] == 0.3
    assert list(record).index("confidence") == list(record).index("log_prob") + 1
    assert "confidence" not in record["alternatives"][0]
    jsonschema.validate(record, record_schema())
    assert [caption.confidence for caption in recorded_captions(record)] == [0.3, None]
    assert "confidence=0.30" in repr(DOUBTFUL)
    for wrong in (1.5, -0.1, "x"):
        with pytest.raises(ValueError, match="damaged"):
            recorded_captions({**record, "confidence": wrong})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**record, "confidence": 1.5}, record_schema())


def test_nothing_changes_without() -> None:
    record = caption_record("a.jpg", [UNKNOWN], ORIGIN)
    assert "confidence" not in record
    assert recorded_captions(json.loads(to_line(record)))[0].confidence is None
    assert ORIGIN.difference(record) is ORIGIN.difference({**record, "confidence": 0.5}) is None


def test_what_somebody_chose_is_not_doubted() -> None:
    other = replace(UNKNOWN, text="another one")
    record = json.loads(to_line(caption_record("a.jpg", [DOUBTFUL, other], ORIGIN)))
    assert recorded_confidence(record) == 0.3
    for text in (DOUBTFUL.text, "my own words", "another one"):
        assert recorded_confidence(corrected(record, text)) is None
    swapped = corrected(record, "another one")
    assert "confidence" not in swapped
    assert swapped["alternatives"][0]["confidence"] == 0.3  # with the words that it is of
    back = corrected(swapped, DOUBTFUL.text)
    assert {key: back[key] for key in record} == record
    assert recorded_confidence({**record, "confidence": "0.3"}) is None


def rows(out: Path, *records: dict[str, Any]) -> list[dict[str, str]]:
    out.mkdir()
    (out / CAPTIONS).write_bytes(b"".join(map(to_line, records)))
    Derived(out).bring_up_to_date(["csv"])
    with (out / "captions.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_the_table_marks_low_ones(tmp_path: Path) -> None:
    kinds = {"sure": SURE, "doubtful": DOUBTFUL, "unknown": UNKNOWN}
    records = [caption_record(name, [caption], ORIGIN) for name, caption in kinds.items()]
    found = rows(tmp_path / "out", *records, {**records[1], "file_name": "chosen", "corrected": True})
    assert list(found[0]) == ["file_name", "text", "log_prob", "confidence", "low_confidence"]
    assert [(row["file_name"], row["confidence"], row["low_confidence"]) for row in found] == [
        ("sure", "0.8", ""),
        ("doubtful", "0.3", "yes"),
        ("unknown", "", ""),
        ("chosen", "", ""),
    ]


def test_the_table_of_a_model_without(tmp_path: Path) -> None:
    found = rows(tmp_path / "out", caption_record("a.jpg", [UNKNOWN], ORIGIN))
    assert list(found[0]) == ["file_name", "text", "log_prob"]
