from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from captioner.training.curves import draw_curves


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *arguments: Any, **options: Any) -> None:
        found.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def write_log(path: Path, lines: list[dict[str, Any]], end: str = "") -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
    return path


def curves_of(figure: Figure) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the points of each labelled curve by panel."""
    return {
        axes.get_title(): {
            str(line.get_label()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
            for line in axes.get_lines()
            if not str(line.get_label()).startswith("_")
        }
        for axes in figure.axes
    }


def test_every_number_is_drawn_at_its_step(tmp_path: Path, figures: list[Figure]) -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "epoch": 1, "loss": 3.0, "cross_entropy": 2.5, "penalty": 0.5, "rate": 0.1},
        {"step": 2, "epoch": 1, "loss": 2.0, "cross_entropy": 1.75, "penalty": 0.25, "rate": 0.2},
        {"step": 2, "epoch": 1, "bleu1": 40.0, "bleu4": 10.0, "cider": 30.0, "movement": 0.5},
        {"step": 3, "epoch": 2, "loss": 1.5, "reward": 0.75, "attention_entropy": 1.0, "residual": 0.5, "rate": 0.1},
    ]
    draw_curves(write_log(tmp_path / "log.jsonl", lines), tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == (990, 660)
    (figure,) = figures
    assert curves_of(figure) == {
        "loss": {
            "loss": [(1, 3.0), (2, 2.0), (3, 1.5)],
            "cross entropy": [(1, 2.5), (2, 1.75)],
            "penalty": [(1, 0.5), (2, 0.25)],
            "reward": [(3, 0.75)],
        },
        "scores in per cent": {"bleu1": [(2, 40.0)], "bleu4": [(2, 10.0)], "cider": [(2, 30.0)]},
        "attention": {"attention entropy": [(3, 1.0)], "residual": [(3, 0.5)], "movement": [(2, 0.5)]},
        "learning rate": {"rate": [(1, 0.1), (2, 0.2), (3, 0.1)]},
    }


def test_several_data_sets_have_curves_of_their_own(tmp_path: Path, figures: list[Figure]) -> None:
    lines = [{"step": step, "set": name, "bleu4": step + add} for step in (4, 8) for name, add in (("a", 0), ("b", 9))]
    draw_curves(write_log(tmp_path / "log.jsonl", lines), tmp_path / "curves.png")
    assert curves_of(figures[0])["scores in per cent"] == {"bleu4, a": [(4, 4), (8, 8)], "bleu4, b": [(4, 13), (8, 17)]}


def test_a_long_log_is_drawn_with_its_means(tmp_path: Path, figures: list[Figure]) -> None:
    lines = [{"step": step, "loss": 10.0 + (-1) ** step} for step in range(1, 1001)]
    draw_curves(write_log(tmp_path / "log.jsonl", lines), tmp_path / "curves.png")
    points = curves_of(figures[0])["loss"]["loss"]
    assert len(points) == 100
    assert points[0] == (5.5, 10.0)  # the mean of the first ten
    assert {y for _, y in points} == {10.0}
    axes = figures[0].axes[0]
    assert any(len(np.asarray(line.get_xdata())) == 1000 for line in axes.get_lines())  # behind them, all


@pytest.mark.parametrize("end", ["", '{"step": 3, "lo'])
def test_a_log_that_is_empty_torn_or_not_finite_is_drawn(end: str, tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves(write_log(tmp_path / "log.jsonl", [], end), tmp_path / "empty.png")
    lines: list[dict[str, Any]] = [{"step": 1, "loss": "nan"}, {"step": 2, "loss": 1.0}]
    draw_curves(write_log(tmp_path / "log.jsonl", lines, end), tmp_path / "curves.png")
    assert all(not curves for curves in curves_of(figures[0]).values())
    assert curves_of(figures[1])["loss"] == {"loss": [(2, 1.0)]}
    assert (tmp_path / "empty.png").exists()
