"""A training log as a picture: losses, scores, attention and learning rate over the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from captioner.training.log import read_log

# Steps are noisy: each curve is also drawn as a mean over so many parts of the log.
PARTS = 100
LOSSES = (
    "loss",
    "cross_entropy",
    "validation_loss",
    "penalty",
    "guide",
    "objects",
    "reinforce",
    "value",
    "self_critical",
    "reward",
)
PANELS = (
    ("loss", LOSSES),
    ("scores in per cent", ("bleu1", "bleu2", "bleu3", "bleu4", "cider")),
    ("attention", ("attention_entropy", "residual", "movement")),
    ("learning rate", ("rate",)),
)


def draw_curves(log: Path, picture: Path) -> None:
    """Draw the numbers of a log.jsonl into a PNG; a log without lines gives empty panels."""
    lines = read_log(log)
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        _draw_panel(axes, title, names, lines)
    figure.savefig(picture, dpi=110)


def _draw_panel(axes: Axes, title: str, names: tuple[str, ...], lines: list[dict[str, Any]]) -> None:
    shown = 0
    sets = list(dict.fromkeys(line.get("set") for line in lines))  # None where there is but one data set
    for name, each in ((name, each) for name in names for each in sets):
        points = _points(name, [line for line in lines if line.get("set") == each])
        if not len(points):
            continue
        steps, values = points.T
        label = name.replace("_", " ") + (f", {each}" if each else "")
        if len(steps) > 2 * PARTS:
            colour = f"C{shown}"
            axes.plot(steps, values, color=colour, alpha=0.2, linewidth=0.6)
            parts = np.array_split(points, PARTS)
            axes.plot(*np.array([part.mean(axis=0) for part in parts]).T, color=colour, label=label)
        else:
            axes.plot(
                steps, values, color=f"C{shown}", marker="o" if len(steps) < 40 else None, markersize=3, label=label
            )
        shown += 1
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if shown > 1:
        # Below the axes: within them it would lie on some curve.
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)


def _points(name: str, lines: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return (steps, 2): the steps at which a number was logged, and its values; those that are not finite left out."""
    found = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]
    return np.array(found, dtype=np.float64).reshape(-1, 2)
