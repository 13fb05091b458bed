"""The attention study: equally short trainings that differ in one setting each, compared on the validation split.

    python experiments/study.py PATH/TO/FLICKR8K --features CACHES --runs runs/study --out results

Trainings that are finished are not done again, and those that were stopped go on, so that the study can be made in
several sittings. `--jobs` run side by side with one thread each. In the end all are evaluated together, as `captioner
evaluate` does, and `study.md` and `study.json` in `--out` hold a row for each; `--only` names some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keep_results import read_evaluation
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from captioner.evaluation.tables import label

RECIPE = "flickr8k-soft"
# For all trainings: half as wide as the recipe's and a fifth as long, so that all of them fit into an hour or so
# of one core.
SHORT = ["epochs=2", "self_critical.epochs=0", "decoder.hidden=256", "decoder.regions=256", "attention.width=256"]
SHORT += ["validation.overlays=0"]
FIRST = "soft additive"
# What each training sets otherwise than the first, under the question that it helps to answer.
VARIATIONS: dict[str, dict[str, list[str]]] = {
    "the recipe": {FIRST: []},
    "score function": {
        name: [f"attention.score={name}"] for name in ("concat", "general", "dot", "scaled-dot", "cosine", "location")
    },
    "mode": {mode: [f"attention.mode={mode}"] for mode in ("none", "hard", "gumbel", "local")},
    "doubly stochastic penalty": {"no penalty": ["loss.penalty=0"]},
    "gate": {"no gate": ["decoder.gate=none"], "scalar gate": ["decoder.gate=scalar"]},
}
METRICS = ("bleu1", "bleu4", "meteor", "cider")
ATTENTION = {"entropy_share": "entropy, of the largest", "movement": "weight that moves from word to word"}


def folder_name(name: str) -> str:
    """Return the run folder's name of a variation."""
    return name.replace(" ", "-")


def fill_caches(options: argparse.Namespace) -> None:
    """Encode what the trainings read, once for all of them: side by side they would be in each other's way."""
    place = ["--out", str(options.features)] if options.features else []
    command = [sys.executable, "-m", "captioner", "features", str(options.data), "--flips", *place]
    subprocess.run(command, check=True)


def train(name: str, changes: Sequence[str], options: argparse.Namespace) -> None:
    """Train one variation, or go on with it, its output in a log beside the run folder."""
    run = options.runs / folder_name(name)
    if (run / "finished").exists():
        return
    settings = [f"data.root={options.data}", *([f"data.features={options.features}"] if options.features else [])]
    resume = ["--resume"] if (run / "last").exists() else []
    command = [sys.executable, "-m", "captioner", "train", RECIPE, *settings, *SHORT, *changes, *options.settings]
    options.runs.mkdir(parents=True, exist_ok=True)
    with (options.runs / f"{folder_name(name)}.log").open("a") as log:
        command += ["--run", str(run), *resume]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} has ended with exit code {ended.returncode}; its output is in {log.name}")
    (run / "finished").touch()
    print(f"{name}: done", file=sys.stderr, flush=True)


def evaluate(names: Sequence[str], options: argparse.Namespace) -> None:
    """Evaluate all trainings together, the first against each other one; of it and none of attention, draw charts."""
    _evaluate(names, options.runs / "evaluation", [], options)
    options.out.mkdir(parents=True, exist_ok=True)
    if len(names) > 1:
        shutil.copy(options.runs / "evaluation" / "lengths.txt", options.out)
    if {FIRST, "none"} <= set(names):
        report = options.runs / "report"
        _evaluate([FIRST, "none"], options.runs / "pair", ["--report", str(report)], options)
        # The charts only: the report's overlays show images of the data set, which are not ours to hand on.
        for chart in (report / "figures").glob("lengths-*.svg"):
            shutil.copy(chart, options.out / chart.name)


def _evaluate(names: Sequence[str], out: Path, arguments: Sequence[str], options: argparse.Namespace) -> None:
    models = [str(options.runs / folder_name(name)) for name in names]
    features = ["--features", str(options.features)] if options.features else []
    command = [sys.executable, "-m", "captioner", "evaluate", *models, str(options.data), "--split", "val", *features]
    subprocess.run([*command, "--out", str(out), *arguments], check=True)


def collect(names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each training: scores, intervals, and what attention does."""
    rows = []
    for name in names:
        folder = options.runs / "evaluation" / folder_name(name) if len(names) > 1 else options.runs / "evaluation"
        found = read_evaluation(folder)
        rows.append(
            {
                "name": name,
                "question": next(question for question, names in VARIATIONS.items() if name in names),
                "scores": found["scores"],
                "intervals": found["intervals"],
                "distinct": found["diversity"]["distinct"],
                **{key: found["attention"][key] for key in ("entropy_share", "movement", "collapsed")},
            }
        )
    return rows


def write(rows: Sequence[dict[str, Any]], out: Path) -> str:
    """Write the table as Markdown and JSON, and return the former."""
    head = ["", *map(label, METRICS), "distinct captions", "entropy, of log L", "movement", "collapsed"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for question in VARIATIONS:
        group = [row for row in rows if row["question"] == question]
        if group and question != "the recipe":
            lines.append(f"| *{question}* |{' |' * (len(head) - 1)}")
        for row in group:
            spans = {key: (high - low) / 2 for key, (low, high) in row["intervals"].items()}
            scores = [f"{row['scores'][key]:.1f} ±{spans[key]:.1f}" if key in spans else "-" for key in METRICS]
            shares = [f"{row[key]:.1%}" for key in ("entropy_share", "movement", "collapsed")]
            lines.append(f"| {' | '.join([row['name'], *scores, str(row['distinct']), *shares])} |")
    table = "\n".join(lines) + "\n"
    (out / "study.md").write_text(table)
    (out / "study.json").write_text(json.dumps(list(rows), indent=2) + "\n")
    return table


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Draw CIDEr-D with its intervals, and how spread out and how lively attention is, a line for each training."""
    figure = Figure(figsize=(9, 0.32 * len(rows) + 1.2), layout="constrained")
    FigureCanvasSVG(figure)
    scores, attention = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    places = [-place for place in range(len(rows))]
    values = [row["scores"]["cider"] for row in rows]
    low, high = zip(*(row["intervals"]["cider"] for row in rows), strict=True)
    spans = [[value - end for value, end in zip(values, low, strict=True)],
             [end - value for value, end in zip(values, high, strict=True)]]  # fmt: skip
    scores.axvline(values[0], color="0.8", zorder=0)
    scores.errorbar(values, places, xerr=spans, fmt="o", capsize=2)
    scores.set_xlabel("CIDEr-D, 95 % intervals", fontsize=9)
    scores.set_yticks(places, [row["name"] for row in rows])
    for name, mark in (("entropy_share", "o"), ("movement", "^")):
        attention.plot([100 * row[name] for row in rows], places, mark, label=ATTENTION[name])
    attention.set_xlabel("per cent", fontsize=9)
    figure.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    for axes in (scores, attention):
        axes.tick_params(labelsize=9)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.hashsalt": "captioner"}):  # equal numbers give equal files
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    """Train what is not trained, evaluate it all and print the table."""
    variations = {name: changes for group in VARIATIONS.values() for name, changes in group.items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--features", type=Path, help="region caches")
    parser.add_argument("--runs", type=Path, default=Path("runs/attention-study"))
    parser.add_argument("--out", type=Path, default=Path("experiments/results/attention-study"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings side by side")
    parser.add_argument("--only", nargs="+", choices=variations, metavar="NAME", help="some of the trainings")
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for all of them")
    options = parser.parse_args()
    names = options.only or list(variations)
    fill_caches(options)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda name: train(name, variations[name], options), names))
    evaluate(names, options)
    rows = collect(names, options)
    draw(rows, options.out / "scores.svg")
    print(write(rows, options.out), end="")


if __name__ == "__main__":
    main()
