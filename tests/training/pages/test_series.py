from __future__ import annotations

from typing import Any

import pytest

from captioner.training.pages import series
from captioner.training.pages.series import RunCurves, Series


def test_few_points_are_kept_and_many_become_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST", 4)
    curve = Series()
    for step in range(1, 5):
        curve.add(step, 10.0 * step)
    assert curve.points() == [(1, 10), (2, 20), (3, 30), (4, 40)]
    for step in range(5, 12):
        curve.add(step, 10.0 * step)
    assert curve.points() == [(2.5, 25), (6.5, 65), (10, 100)]  # four by four, and those that are left
    assert len(curve.points()) <= 4


def line(epoch: int, name: str | None, score: float, *images: str) -> dict[str, Any]:
    samples = [{"image": image, "caption": "a", "references": ["b"], "overlay": None} for image in images]
    return {"step": 4 * epoch, "epoch": epoch, "bleu4": score, "samples": samples} | ({"set": name} if name else {})


def test_curves_of_a_log() -> None:
    lines = [{"step": 1, "epoch": 1, "loss": 2.0, "gradient": "nan"}, {"step": 2, "epoch": 1, "loss": 1.0}]
    curves = RunCurves([*lines, line(1, None, 7.0, "a.jpg"), line(2, None, 7.0), line(3, None, 5.0, "a.jpg", "b.jpg")])
    assert curves.series["train/loss"].points() == [(1, 2), (2, 1)]
    assert "train/gradient" not in curves.series
    assert curves.series["validation/bleu4"].points() == [(4, 7), (8, 7), (12, 5)]
    assert curves.step == 12
    assert curves.best("bleu4") == (7.0, 1)
    assert {epoch: [each["image"] for each in found] for epoch, found in curves.samples().items()} == {
        1: ["a.jpg"],
        3: ["a.jpg", "b.jpg"],
    }


def test_the_best_of_several_sets_is_the_highest_mean() -> None:
    assert RunCurves().best("bleu4") is None
    lines = [line(1, "a", 9.0), line(1, "b", 1.0), line(2, "a", 6.0), line(2, "b", 6.0)]
    assert RunCurves(lines).best("bleu4") == (6.0, 2)
