"""The curve from log probabilities to confidence, and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_checkpoints import make_checkpoint
from helpers.toy_confidence import CALIBRATION

from captioner.cli import main
from captioner.model.confidence import CONFIDENCE, LARGEST, Group, is_low, read_calibration
from captioner.model.export import export_model


def test_the_curve_rises_and_stays_within_0_and_1() -> None:
    found = [CALIBRATION.confidence(log_prob, 4) for log_prob in (-1e9, -50.0, -10.0, -5.0, -2.0, -0.5, 0.0)]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == pytest.approx(1 / (1 + 2.718281828**-3), abs=1e-3)
    assert CALIBRATION.confidence(-5.0, 4) == pytest.approx(0.5)  # 3 - 3 x 5 / (4 words and the end)


def test_a_caption_is_as_sure_as_its_words_not_as_it_is_long() -> None:
    assert CALIBRATION.confidence(-5.0, 4) == CALIBRATION.confidence(-10.0, 9)


def test_nobody_accepts_a_caption_without_words() -> None:
    assert CALIBRATION.confidence(-0.01, 0) == 0


def test_what_is_low() -> None:
    assert is_low(0.499)
    assert is_low(0)
    assert not any(map(is_low, (0.5, 1.0, None, "0.1")))


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    for each in (CALIBRATION, replace(CALIBRATION, low=Group(0, None))):
        (tmp_path / CONFIDENCE).write_text(each.to_text())
        assert read_calibration(tmp_path / CONFIDENCE, each.model) == each


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "no calibration of format 1"),
        ({"model": "0" * 16}, "is of the model 0000000000000000, not "),
        ({"model": 3}, "damaged: model"),
        ({"slope": -1}, "damaged: slope"),
        ({"slope": float("nan")}, "damaged: slope"),
        ({"slope": True}, "damaged: slope"),
        ({"intercept": "1"}, "damaged: intercept"),
        ({"intercept": 1e9}, "damaged: intercept"),
        ({"error": None}, "damaged: error"),
        ({"search": []}, "damaged: search"),
        ({"data": "x" * 5000}, "damaged: data"),
        ({"low": {"images": -1, "accepted": 0.5}}, "damaged: low"),
        ({"others": {"images": 3, "accepted": 2}}, "damaged: others"),
        ({"others": None}, "damaged: others"),
    ],
)
def test_a_damaged_one_is_one_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / CONFIDENCE
    path.write_text(json.dumps({**json.loads(CALIBRATION.to_text()), **change}))
    with pytest.raises(ValueError, match=said) as refusal:
        read_calibration(path, CALIBRATION.model)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("contents", [b"", b"[]", b"{", b"\xff", b" " * (LARGEST + 1)])
def test_what_is_no_calibration_at_all(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / CONFIDENCE).write_bytes(contents)
    with pytest.raises(ValueError, match=CONFIDENCE):
        read_calibration(tmp_path / CONFIDENCE, CALIBRATION.model)


def test_export_takes_the_calibration_of_its_model_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    path, folder = tmp_path / "fitted.json", tmp_path / "model"
    mine = replace(CALIBRATION, model=checkpoint.digest)
    path.write_text(mine.to_text())
    export_model(checkpoint, folder, confidence=path, half=False)
    assert read_calibration(folder / CONFIDENCE, checkpoint.digest) == mine
    export_model(checkpoint, folder, half=False)  # again, for another reason
    assert (folder / CONFIDENCE).exists()
    path.write_text(CALIBRATION.to_text())
    with pytest.raises(ValueError, match="is of the model"):
        export_model(checkpoint, folder, confidence=path, half=False)
    (folder / CONFIDENCE).write_text(CALIBRATION.to_text())  # of the model that was there before
    export_model(checkpoint, folder, half=False)
    assert not (folder / CONFIDENCE).exists()


def test_graphs_have_no_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "coco-fast", str(tmp_path / "page"), "--onnx", "--confidence", "x.json"]) == 2
    assert "--confidence is for a checkpoint" in capsys.readouterr().err
