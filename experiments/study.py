"""The attention studies: equally short trainings that differ in one setting each, compared on the validation split.

    python experiments/study.py PATH/TO/FLICKR8K --features CACHES --runs runs/study --out results
    python experiments/study.py PATH/TO/FLICKR8K --study lectures --seeds 0 1 2

`variations.py` has the trainings of each study.

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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keep_results import read_evaluation
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from variations import RUNS, STUDIES, Study

from captioner.evaluation.tables import label
from captioner.training.recipe import load_recipe

METRICS = ("bleu1", "bleu4", "meteor", "cider")
ATTENTION = {"entropy_share": "entropy, of the largest", "movement": "weight that moves from word to word"}


def folder_name(name: str) -> str:
    """Return the run folder's name of a training."""
    return name.replace(" ", "-")


def with_seed(name: str, seed: int) -> str:
    """Return the name of a training with another seed than the first."""
    return f"{name} seed {seed}"


def make_trainings(study: Study, names: Sequence[str], seeds: Sequence[int]) -> dict[str, list[str]]:
    """Return the settings of every training by its name, those of other seeds than the first last."""
    trainings = {name: [*study.trainings[name], f"seed={seeds[0]}"] for name in names}
    for seed in seeds[1:]:
        seeded = [name for name in names if name in study.seeded]
        trainings |= {with_seed(name, seed): [*study.trainings[name], f"seed={seed}"] for name in seeded}
    return trainings


def fill_caches(study: Study, trainings: Mapping[str, Sequence[str]], options: argparse.Namespace) -> None:
    """Encode what the trainings read, once for all of them: side by side they would be in each other's way."""
    place = ["--out", str(options.features)] if options.features else []
    filled: list[list[str]] = []
    for changes in trainings.values():
        recipe = load_recipe(study.recipe, [*study.settings, *changes, *options.settings])
        encoder = {f"--{key}": value for key, value in asdict(recipe.encoder).items() if value is not None}
        arguments = [f"--encoder={encoder.pop('--name')}", *(f"{key}={value}" for key, value in encoder.items())]
        arguments += ["--flips"] if recipe.batches.flips else []
        if arguments not in filled:
            filled.append(arguments)
            command = [sys.executable, "-m", "captioner", "features", str(options.data), *arguments, *place]
            subprocess.run(command, check=True)


def train(study: Study, name: str, changes: Sequence[str], options: argparse.Namespace) -> None:
    """Train one variation, or resume it; its output goes to a log beside the run folder."""
    run = options.runs / folder_name(name)
    if (run / "finished").exists():
        return
    settings = [f"data.root={options.data}", *([f"data.features={options.features}"] if options.features else [])]
    settings += [each.replace(RUNS, str(options.runs)) for each in (*study.settings, *changes, *options.settings)]
    resume = ["--resume"] if (run / "last").exists() else []
    command = [sys.executable, "-m", "captioner", "train", study.recipe, *settings]
    options.runs.mkdir(parents=True, exist_ok=True)
    with (options.runs / f"{folder_name(name)}.log").open("a") as log:
        command += ["--run", str(run), *resume]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} has ended with exit code {ended.returncode}; its output is in {log.name}")
    (run / "finished").touch()
    print(f"{name}: done", file=sys.stderr, flush=True)


def train_all(study: Study, trainings: Mapping[str, Sequence[str]], options: argparse.Namespace) -> None:
    """Train what is not trained, and what starts from another training after all that do not."""
    later = {name for name, changes in trainings.items() if any(RUNS in each for each in changes)}
    for wave in ([name for name in trainings if name not in later], [name for name in trainings if name in later]):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda name: train(study, name, trainings[name], options), wave))


def evaluate(first: str, names: Sequence[str], options: argparse.Namespace) -> None:
    """Evaluate all trainings together, the first against each other one; of it and none of attention, draw charts."""
    _evaluate(names, options.runs / "evaluation", [], options)
    options.out.mkdir(parents=True, exist_ok=True)
    if len(names) > 1:
        shutil.copy(options.runs / "evaluation" / "lengths.txt", options.out)
    if {first, "none"} <= set(names):
        report = options.runs / "report"
        _evaluate([first, "none"], options.runs / "pair", ["--report", str(report)], options)
        # The charts only: the report's overlays show images of the data set, which are not ours to hand on.
        for chart in (report / "figures").glob("lengths-*.svg"):
            shutil.copy(chart, options.out / chart.name)


def _evaluate(names: Sequence[str], out: Path, arguments: Sequence[str], options: argparse.Namespace) -> None:
    models = [str(options.runs / folder_name(name)) for name in names]
    features = ["--features", str(options.features)] if options.features else []
    command = [sys.executable, "-m", "captioner", "evaluate", *models, str(options.data), "--split", "val", *features]
    subprocess.run([*command, "--out", str(out), *arguments], check=True)


def collect(
    study: Study, names: Sequence[str], seeds: Sequence[int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each training with the first seed: scores, intervals, what attention does; CIDEr-D by seed."""
    found = {}
    for name in names:
        folder = options.runs / "evaluation" / folder_name(name) if len(names) > 1 else options.runs / "evaluation"
        found[name] = read_evaluation(folder)
    rows = []
    for name in (name for name in names if name in study.trainings):
        every = [name, *(with_seed(name, seed) for seed in seeds[1:] if with_seed(name, seed) in found)]
        rows.append(
            {
                "name": name,
                "question": study.question(name),
                "scores": found[name]["scores"],
                "intervals": found[name]["intervals"],
                "distinct": found[name]["diversity"]["distinct"],
                **{key: found[name]["attention"][key] for key in ("entropy_share", "movement", "collapsed")},
                "seeds": [found[each]["scores"]["cider"] for each in every],
            }
        )
    return rows


def write(study: Study, rows: Sequence[dict[str, Any]], out: Path) -> str:
    """Write the table as Markdown and JSON, and return the former."""
    seeded = any(len(row["seeds"]) > 1 for row in rows)
    head = ["", *map(label, METRICS), *(["CIDEr-D by seed"] if seeded else [])]
    head += ["distinct captions", "entropy, of log L", "movement", "collapsed"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for question in study.variations:
        group = [row for row in rows if row["question"] == question]
        if group and question != "the recipe":
            lines.append(f"| *{question}* |{' |' * (len(head) - 1)}")
        for row in group:
            spans = {key: (high - low) / 2 for key, (low, high) in row["intervals"].items()}
            cells = [f"{row['scores'][key]:.1f} ±{spans[key]:.1f}" if key in spans else "-" for key in METRICS]
            if seeded:
                cells.append(", ".join(f"{each:.1f}" for each in row["seeds"]) if len(row["seeds"]) > 1 else "")
            cells += [str(row["distinct"]), *(f"{row[key]:.1%}" for key in ("entropy_share", "movement", "collapsed"))]
            lines.append(f"| {' | '.join([row['name'], *cells])} |")
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
    others = [(value, place) for row, place in zip(rows, places, strict=True) for value in row["seeds"][1:]]
    if others:
        scores.plot(*zip(*others, strict=True), "x", color="0.4", markersize=5)
    marked = "; x: other seeds" if others else ""
    scores.set_xlabel(f"CIDEr-D, 95 % intervals{marked}", fontsize=9)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--study", choices=STUDIES, default="parts", help="which one (default: %(default)s)")
    parser.add_argument("--features", type=Path, help="region caches")
    parser.add_argument(
        "--runs", type=Path, help="of the trainings (default: runs/attention-study or runs/lectures-study)"
    )
    parser.add_argument("--out", type=Path, help="table and charts (default: the same in experiments/results)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings side by side")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the trainings")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="of the main trainings")
    parser.add_argument("--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="for all of them")
    options = parser.parse_args()
    study = STUDIES[options.study]
    folder = "attention-study" if options.study == "parts" else f"{options.study}-study"
    options.runs = options.runs or Path("runs") / folder
    options.out = options.out or Path("experiments/results") / folder
    names = options.only or list(study.trainings)
    if unknown := [name for name in names if name not in study.trainings]:
        parser.error(f"--only has {unknown[0]!r}; choose from {', '.join(study.trainings)}")
    trainings = make_trainings(study, names, options.seeds)
    fill_caches(study, trainings, options)
    train_all(study, trainings, options)
    evaluate(study.first, list(trainings), options)
    rows = collect(study, list(trainings), options.seeds, options)
    draw(rows, options.out / "scores.svg")
    print(write(study, rows, options.out), end="")


if __name__ == "__main__":
    main()
