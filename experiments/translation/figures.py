"""Draw BLEU against the length of sentences, from the evaluations of several runs.

python experiments/translation/figures.py runs/en-de runs/en-de-none --labels "attention" "none" --out lengths.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from runs import run_command

from captioner.files import printable, read_json_object, replacing

FORMATS = (".svg", ".png")


def draw(evaluations: Sequence[dict[str, Any]], labels: Sequence[str]) -> Figure:
    """Return a chart with a line for each evaluation, and the number of sentences of each length below."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for evaluation, label, mark in zip(evaluations, labels, "os^Dvx*P" * len(labels), strict=False):
        lengths = evaluation["lengths"]
        whole = f"{label} ({evaluation['bleu']:.1f})"
        axes.plot([each["words"] for each in lengths], [each["bleu"] for each in lengths], f"{mark}-", label=whole)
    for each in evaluations[0]["lengths"]:
        span = f"{each['shortest']}-{each['longest']}" if each["shortest"] < each["longest"] else f"{each['longest']}"
        place = (each["words"], 0)
        text = f"{span}\nn={each['sentences']}"
        axes.annotate(text, place, (0, 3), textcoords="offset points", ha="center", fontsize=7, color="0.4")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("words in the source sentence, mean of each group", fontsize=9)
    axes.set_ylabel("BLEU", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder with an evaluation.json")
    parser.add_argument("--labels", nargs="+", metavar="TEXT", help="one for each run (default: their names)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="an .svg or .png file")
    options = parser.parse_args(arguments)
    labels = options.labels or [run.name for run in options.runs]
    if len(labels) != len(options.runs):
        parser.error(f"{len(labels)} labels for {len(options.runs)} runs; give one for each")
    if options.out.suffix not in FORMATS:
        parser.error(f"--out is {printable(str(options.out))}; it must end in {' or '.join(FORMATS)}")
    evaluations = []
    for run in options.runs:
        if not (run / "evaluation.json").exists():
            raise ValueError(f"{printable(str(run))} has no evaluation.json; run evaluate.py first")
        evaluations.append(read_json_object(run / "evaluation.json", most=1 << 24))
    figure = draw(evaluations, labels)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "captioner"}), replacing(options.out) as file:  # equal numbers give equal files
        metadata = {"Date": None} if options.out.suffix == ".svg" else None
        figure.savefig(file, format=options.out.suffix[1:], dpi=150, metadata=metadata)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
