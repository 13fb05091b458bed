"""Line charts of pages of runs: SVG in the page's colours, and the points for its script to read out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from captioner.evaluation.report.html import Html, tag

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 10, 30  # around the axes; half of the last number is right of them
DOTTED = 40  # points up to which each is marked
COLOURS = 7  # that the page's style has
USUAL = 0.98  # share of the values that the axis is made for: the first steps' losses are many times the others'

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One line of a chart: its name, its points (step, value), and which of the page's colours it has."""

    name: str
    points: Points
    colour: int = 0
    dashed: bool = False


def line_chart(title: str, curves: Sequence[Curve], *, steps: float = 0, digits: int = 2) -> Html | None:
    """Return curves over `steps` or as far as they go; None where there is nothing to draw.

    A legend tells their last values, with so many `digits` after the point; none are for 1.00e-04.
    """
    # A loss that is not finite has no place on an axis.
    drawn = [replace(each, points=[(x, y) for x, y in each.points if math.isfinite(y)]) for each in curves]
    curves = [curve for curve in drawn if curve.points]
    if not curves:
        return None
    xs = [x for curve in curves for x, _ in curve.points]
    ys = sorted(y for curve in curves for _, y in curve.points)
    right, low = max(steps, *xs), ys[0]
    high = ys[-1] if len(ys) < DOTTED else ys[math.ceil(USUAL * len(ys)) - 1]
    x_ticks, y_ticks = [x for x in _ticks(0.0, right) if 0 <= x <= right], _ticks(low, high)
    bottom, top = min(low, y_ticks[0]), max(high, y_ticks[-1])
    if bottom == top:
        bottom, top = bottom - 1, top + 1  # a curve of one value runs through the middle
    across = (WIDTH - LEFT - RIGHT) / max(right, 1.0)
    down = (HEIGHT - TOP - BOTTOM) / (top - bottom)

    def x_at(x: float) -> float:
        return round(LEFT + x * across, 1)

    def y_at(y: float) -> float:
        return round(max(TOP, HEIGHT - BOTTOM - (y - bottom) * down), 1)

    parts = []
    for y in y_ticks:
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_at(y)}" y2="{y_at(y)}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{y_at(y) + 3.5}">{_number(y)}</text>')
    for x in x_ticks:
        parts.append(f'<text class="x" x="{x_at(x)}" y="{HEIGHT - BOTTOM + 17}">{_number(x)}</text>')
    parts.append(f'<text class="y" x="{LEFT - 14}" y="{HEIGHT - BOTTOM + 17}">step</text>')
    for curve in curves:
        stroke = f"var(--chart-{curve.colour % COLOURS + 1})"
        places = [(x_at(x), y_at(y)) for x, y in curve.points]
        line = " ".join(f"{x:g},{y:g}" for x, y in places)
        dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
        parts.append(f'<polyline points="{line}" stroke="{stroke}"{dashes}/>')
        if len(places) <= DOTTED:
            parts += [f'<circle cx="{x:g}" cy="{y:g}" r="2.5" fill="{stroke}"/>' for x, y in places]
    parts.append(f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" hidden="hidden"/>')
    drawing = Html(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" focusable="false" aria-hidden="true">{"".join(parts)}</svg>')
    data = {
        "left": LEFT,
        "scale": across,
        "digits": digits,
        "curves": [[[round(x, 1), float(f"{y:.5g}")] for x, y in curve.points] for curve in curves],
    }
    told = "; ".join(f"{curve.name}: {_last(curve, digits)} at step {curve.points[-1][0]:,.0f}" for curve in curves)
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", "", class_="at muted")),
        tag("ul", *(_legend(curve, digits) for curve in curves), class_="legend"),
        tag("div", drawing, role="img", aria_label=f"{title}. {told}"),
        class_="chart curves",
        data_points=json.dumps(data, separators=(",", ":")),
    )


def _legend(curve: Curve, digits: int) -> Html:
    swatch = tag(
        "i", "", class_="dashed" if curve.dashed else None, style=f"--c: var(--chart-{curve.colour % COLOURS + 1})"
    )
    return tag("li", swatch, tag("bdi", curve.name), " ", tag("output", _last(curve, digits)))


def _last(curve: Curve, digits: int) -> str:
    value = curve.points[-1][1]
    return f"{value:.{digits}f}" if digits else f"{value:.2e}"


def _ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers from about `low` to about `high`."""
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 4))
    step = next(factor * unit for factor in (1, 2, 5, 10) if span / (factor * unit) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.9g}") for number in range(first, last + 1)]


def _number(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:,.6g}"
