"""Charts of what attention does: scores by length, spread and movement by word, and grounding, for several models.

Each function takes results by the models' names and returns a matplotlib figure, known to no pyplot, for `figure_files`
to save. Bars start at zero and stand for shares or differences; curves are drawn over the range of their values, which
their axes tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from captioner.datasets.word_classes import CLASSES
from captioner.evaluation.analysis.diagnostics import Diagnostics
from captioner.evaluation.analysis.grounding import MEASURES, METHODS, Grounding
from captioner.evaluation.analysis.length_curves import METRICS, LengthCurves
from captioner.evaluation.metrics.bootstrap import LEVEL
from captioner.evaluation.tables import LABELS
from captioner.figures.drawing import GREY, INK, PALE, PAPER
from captioner.files import printable

WIDTH, DPI = 7.0, 150  # inches; a column and a half of a paper
FEWEST = 10  # words below which a mean by position is left out: the longest captions are few
LONGEST_NAME = 40  # characters of a model's name, which would otherwise leave no room for the panels
# Told apart by those who do not see all colours, too (after Okabe and Ito); markers help in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
MARKERS = "osD^vPX"
METHOD_LABELS = {
    "attention": "the word's attention",
    "caption": "mean of all words",
    "centre": "image centre",
    "uniform": "uniform",
}
METHOD_COLOURS = (COLOURS[0], COLOURS[5], GREY, PALE)
MEASURE_LABELS = {"pointing": "strongest region inside a box, %", "mass": "attention inside boxes, %"}


def length_figure(curves: LengthCurves, metric: str = "bleu4") -> Figure:
    """Return a metric ("bleu4" or "cider") of each model over the length of the references, with its intervals."""
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; choose from {', '.join(METRICS)}")
    figure, (axes,) = _figure(3.6)
    places = np.arange(len(curves.buckets))
    for index, (name, scored) in enumerate(curves.models.items()):
        values = [bucket.scores[metric] for bucket in scored]
        bounds = [(bucket.intervals[metric].low, bucket.intervals[metric].high) for bucket in scored]
        # Side by side, so that no interval hides another's.
        offset = 0.07 * (index - (len(curves.models) - 1) / 2)
        axes.errorbar(places + offset, values, _reach(values, bounds), **_line(index), label=_label(name), capsize=2)
    spans = [f"{bucket.shortest:.1f} to {bucket.longest:.1f}\n{bucket.images} images" for bucket in curves.buckets]
    axes.set_xticks(places, spans)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xlabel("mean length of the references, in words")
    axes.set_ylabel(f"{LABELS[metric]}, {LEVEL:.0%} intervals")
    axes.set_ylim(bottom=0)
    _legend(figure, axes, len(curves.models))
    return figure


def position_figure(models: Mapping[str, Diagnostics]) -> Figure:
    """Return how wide attention is and how far it moves by the word's position; means of 10 words or more."""
    _check(models)
    figure, (spread, movement) = _figure(3.2, panels=2)
    for index, (name, found) in enumerate(models.items()):
        rows = [(place, row) for place, row in enumerate(found.positions, start=1) if row.words >= FEWEST]
        entropies = [(place, row.entropy) for place, row in rows]
        moves = [(place, row.movement) for place, row in rows if row.moves >= FEWEST]
        for axes, points in ((spread, entropies), (movement, moves)):
            axes.plot(*np.array(points, dtype=np.float64).reshape(-1, 2).T, **_line(index), label=_label(name))
    for regions in sorted({found.regions for found in models.values()}):
        spread.axhline(math.log(regions), color=GREY, linestyle=":", linewidth=1)
        spread.annotate(
            f"uniform over {regions}", (1, math.log(regions)), (0, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="bottom", fontsize=7, color=GREY,
        )  # fmt: skip
    spread.set_ylabel("entropy of attention, nats")
    spread.margins(y=0.12)
    movement.set_ylabel("movement since the previous word")
    movement.set_ylim(bottom=0)
    for axes in (spread, movement):
        axes.set_xlabel("position of the word")
        axes.locator_params(axis="x", integer=True)
    _legend(figure, spread, len(models))
    return figure


def class_figure(models: Mapping[str, Diagnostics]) -> Figure:
    """Return how far below uniform the entropy of attention is, in nats, by class of word, with numbers of words."""
    _check(models)
    first = next(iter(models.values()))
    names = [name for name in CLASSES if any(name in found.classes for found in models.values())]

    def gap(found: Diagnostics, name: str) -> float:
        return math.log(found.regions) - found.classes[name].entropy if name in found.classes else math.nan

    # The most concentrated class on top; what the first model never says at the bottom.
    names.sort(key=lambda name: (math.isnan(gap(first, name)), -gap(first, name) if name in first.classes else 0.0))
    thickness = 0.8 / len(models)
    figure, (axes,) = _figure(0.9 + max(0.2, 0.13 * len(models)) * max(len(names), 3))
    for index, (name, found) in enumerate(models.items()):
        places = np.arange(len(names)) + thickness * (index - (len(models) - 1) / 2)
        gaps = [gap(found, word_class) for word_class in names]
        axes.barh(places, gaps, 0.9 * thickness, color=COLOURS[index % len(COLOURS)], label=_label(name))
        for place, value, word_class in zip(places, gaps, names, strict=True):
            if word_class in found.classes:
                _write_beside(axes, value, float(place), f"{found.classes[word_class].words:,}")
    _name_rows(axes, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.set_xlabel("entropy of attention below uniform, nats (numbers: words)")
    _legend(figure, axes, len(models))
    return figure


def grounding_figure(models: Mapping[str, Grounding]) -> Figure:
    """Return the pointing game and the mass inside boxes of each model beside their baselines, with intervals."""
    _check(models)
    figure, panels = _figure(1.1 + 0.75 * len(models), panels=2)
    thickness = 0.8 / len(METHODS)
    for axes, measure in zip(panels, MEASURES, strict=True):
        for index, method in enumerate(METHODS):
            scores = [getattr(found.overall, measure)[method] for found in models.values()]
            values = [100 * score.value for score in scores]
            bounds = [
                (100 * score.interval.low, 100 * score.interval.high) if score.interval else (value, value)
                for score, value in zip(scores, values, strict=True)
            ]
            places = np.arange(len(scores)) + thickness * (index - (len(METHODS) - 1) / 2)
            axes.barh(
                places, values, 0.92 * thickness, color=METHOD_COLOURS[index], label=METHOD_LABELS[method],
                xerr=_reach(values, bounds), ecolor=INK, error_kw={"linewidth": 0.8, "capsize": 2},
            )  # fmt: skip
        axes.set_xlabel(MEASURE_LABELS[measure])
        axes.set_xlim(left=0)
        _name_rows(axes, [])
    _name_rows(panels[0], [f"{_label(name)}\n{found.overall.words:,} words" for name, found in models.items()])
    for axes in panels:
        axes.set_ylim(len(models) - 0.5, -0.5)
    _legend(figure, panels[0], len(METHODS))
    return figure


def _figure(height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels side by side, `height` inches high without its legend."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    found = list(figure.subplots(1, panels, squeeze=False).flat)
    for axes in found:
        axes.grid(color=PALE, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8, color=GREY, labelcolor=INK)
        axes.xaxis.label.set_fontsize(9)
        axes.yaxis.label.set_fontsize(9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def _line(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def _label(name: str) -> str:
    shown = printable(name)
    if len(shown) > LONGEST_NAME:
        shown = f"{shown[: LONGEST_NAME - 3]}..."
    return f" {shown}" if shown.startswith("_") else shown  # matplotlib leaves out labels that start with one


def _legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Put the names above the panels, where no curve runs."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(entries, 4) if max(map(len, labels), default=0) <= 22 else 1
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write names beside rows of bars, the first at the top."""
    for tick in axes.set_yticks(range(len(names)), names):
        tick.label1.set_parse_math(False)
    axes.grid(False, axis="y")


def _reach(values: Sequence[float], bounds: Sequence[tuple[float, float]]) -> Any:
    """Return how far intervals reach below and above values (2, n); a value may lie just outside of its own."""
    pairs = [(value - low, high - value) for value, (low, high) in zip(values, bounds, strict=True)]
    return np.maximum(np.array(pairs, dtype=np.float64).T.reshape(2, -1), 0.0)


def _write_beside(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(
        text, (x, y), (3, 0), textcoords="offset points", ha="left", va="center", fontsize=6.5, color=GREY
    )  # fmt: skip


def _check(models: Mapping[str, object]) -> None:
    if not models:
        raise ValueError("there are no models to draw; expected at least one")
