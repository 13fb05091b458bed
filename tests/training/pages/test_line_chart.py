from __future__ import annotations

import html
import json
import math
import re
from itertools import pairwise

import pytest

from captioner.training.pages.line_chart import BOTTOM, DOTTED, HEIGHT, TOP, WIDTH, Curve, line_chart


def read_points(chart: str) -> list[list[tuple[float, float]]]:
    """Return the places of each line in the drawing."""
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.split())]
        for found in re.findall(r'<polyline points="([^"]*)"', chart)
    ]


def test_nothing_gives_no_chart() -> None:
    assert line_chart("Loss", []) is None
    assert line_chart("Loss", [Curve("a", [])]) is None


def test_a_value_that_is_not_finite_has_no_place() -> None:
    points = [(1.0, 2.0), (2.0, math.nan), (3.0, math.inf), (4.0, 1.0)]
    assert line_chart("loss", [Curve("train", points)]) == line_chart("loss", [Curve("train", [points[0], points[3]])])
    assert line_chart("loss", [Curve("train", points[1:3])]) is None


def test_curves_lie_within_the_axes_and_rise_upwards() -> None:
    chart = line_chart("Loss", [Curve("a <b>", [(1, 2.0), (50, 4.0)]), Curve("c", [(100, 3.0)], 1)])
    assert chart is not None
    first, second = read_points(chart)
    assert first[0][1] > second[0][1] > first[1][1]
    assert first[0][0] < first[1][0] < second[0][0]
    assert all(0 < x <= WIDTH and TOP <= y < HEIGHT for x, y in first + second)
    assert "a &lt;b&gt;" in chart
    assert "a &lt;b&gt;: 4.00 at step 50; c: 3.00 at step 100" in chart  # for who does not see it
    assert chart.count("<circle") == 3
    data = json.loads(html.unescape(re.search(r'data-points="([^"]*)"', chart)[1]))  # type: ignore[index]
    assert data["curves"] == [[[1, 2.0], [50, 4.0]], [[100, 3.0]]]
    x = data["left"] + 50 * data["scale"]
    assert x == pytest.approx(first[1][0], abs=0.1)


def test_the_first_losses_do_not_flatten_the_others() -> None:
    points = [(float(step), 1000.0 if step == 1 else 3 - step / 100) for step in range(1, 101)]
    chart = line_chart("Loss", [Curve("loss", points)])
    assert chart is not None
    [line] = read_points(chart)
    assert line[0][1] == TOP  # cut off
    assert line[-1][1] - line[5][1] > 100
    assert "<circle" not in chart
    assert len(points) > DOTTED


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([5.0], ["5"]),
        ([0.0], ["0"]),
        ([1e-5, 9e-4], ["0", "2e-4", "4e-4", "6e-4", "8e-4", "0.001"]),
        ([0.0, 2e-4], ["0", "5e-5", "1e-4", "1.5e-4", "2e-4"]),
        ([0.0, 48_000.0], ["0", "10k", "20k", "30k", "40k", "50k"]),
    ],
)
def test_axes_have_round_numbers(values: list[float], labels: list[str]) -> None:
    chart = line_chart("x", [Curve("a", [(float(step), value) for step, value in enumerate(values)])])
    assert re.findall(r'<text class="y" [^>]*>([^<]*)</text>', str(chart))[:-1] == labels


def test_a_curve_of_one_value_runs_through_the_middle() -> None:
    chart = line_chart("BLEU", [Curve("a", [(50, 100.0), (100, 100.0)])])
    assert chart is not None
    [line] = read_points(chart)
    assert [y for _, y in line] == [(TOP + HEIGHT - BOTTOM) / 2] * 2


@pytest.mark.parametrize("steps", [150, 48_000, 123_000])
def test_the_numbers_of_steps_lie_on_the_drawing_and_beside_each_other(steps: int) -> None:
    chart = line_chart("Loss", [Curve("a", [(1, 2.0), (steps, 1.0)])])
    letter = 8.0  # of the 14 pixels that a phone shows
    edges = [
        (float(x) - len(text) * letter / 2, float(x) + len(text) * letter / 2)
        for x, text in re.findall(r'<text class="x" x="([\d.]+)" [^>]*>([^<]*)</text>', str(chart))
    ]
    step_ends = float(re.findall(r'<text class="y" x="([\d.]+)" [^>]*>step</text>', str(chart))[0])
    edges.insert(0, (step_ends - 4 * letter, step_ends))
    assert edges[0][0] >= 0
    assert edges[-1][1] <= WIDTH
    assert all(left[1] + 2 <= right[0] for left, right in pairwise(edges))
