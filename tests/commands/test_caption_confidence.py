"""`captioner caption` with a model that tells how likely people would accept its captions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_captioner import make_toy, use_toys, write_images
from helpers.toy_confidence import CALIBRATION

from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.model.confidence import LOW
from captioner.model.encoders.encoder import Encoder


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> dict[str, Captioner]:
    """The same model without a calibration, with one that doubts everything, and with one between."""
    checkpoint = make_toy(lite0)
    calibrations = {"plain": None, "doubts": replace(CALIBRATION, intercept=-500.0), "some": CALIBRATION}
    return {name: Captioner(checkpoint, device="cpu", calibration=each) for name, each in calibrations.items()}


@pytest.fixture
def place(tmp_path: Path, models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> Path:
    write_images(tmp_path / "photos", 8)
    use_toys(models, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caption(model: str, *arguments: str) -> int:
    return main(["caption", "photos", *arguments, "--model", model])


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "captions.jsonl").read_text().splitlines()]


def test_the_summary_counts_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("doubts", "--out", "all") == 0
    assert capsys.readouterr().out.endswith(" 0 skipped, 0 failed, 8 captions of low confidence\n")
    assert caption("doubts", "--out", "all") == 0  # nothing is done, and nothing is said of it
    assert capsys.readouterr().out == "all/captions.jsonl: 0 captioned, 8 skipped, 0 failed\n"
    assert caption("some", "--out", "some") == 0
    low = sum(record["confidence"] < LOW for record in records(place / "some"))
    said = f", {low} caption{'' if low == 1 else 's'} of low confidence" if low else ""
    assert capsys.readouterr().out.endswith(f" 0 failed{said}\n")
    assert main(["caption", "photos/0000.jpg", "--model", "doubts"]) == 0
    assert capsys.readouterr().err.endswith(" 0 failed, 1 caption of low confidence\n")
    assert caption("doubts", "--sample") == 0
    assert capsys.readouterr().err.endswith(" 0 skipped, 0 failed\n")


def test_records_are_the_same_to_the_byte_but_for_it(place: Path) -> None:
    for name, batch in (("plain", "8"), ("some", "8"), ("some", "3")):
        assert caption(name, "--out", f"{name}-{batch}", "--batch-size", batch, "--attention") == 0
    contents = (place / "some-8" / "captions.jsonl").read_bytes()
    assert contents == (place / "some-3" / "captions.jsonl").read_bytes()
    kept = [{key: each[key] for key in each if key != "confidence"} for each in records(place / "some-8")]
    assert [json.dumps(each) for each in records(place / "plain-8")] == [json.dumps(each) for each in kept]


def test_records_without_it_are_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("plain", "--out", "out", "--format", "csv") == 0
    before = (place / "out" / "captions.jsonl").read_bytes()
    write_images(place / "photos", 9)
    capsys.readouterr()
    assert caption("doubts", "--out", "out", "--format", "csv") == 0
    assert "1 captioned" in (said := capsys.readouterr().out)
    assert "8 skipped" in said
    assert said.endswith("1 caption of low confidence\n")
    assert (place / "out" / "captions.jsonl").read_bytes().startswith(before)
    assert ["confidence" in record for record in records(place / "out")] == [False] * 8 + [True]
    lines = (place / "out" / "captions.csv").read_text(encoding="utf-8-sig").splitlines()
    assert lines[0] == "file_name,text,log_prob,confidence,low_confidence"
    assert [line.endswith(",yes") for line in lines[1:]] == [False] * 8 + [True]
    assert [line.endswith(",,") for line in lines[1:]] == [True] * 8 + [False]
    # And the other way round: by a model that knows none.
    assert caption("plain", "--out", "out") == 0
