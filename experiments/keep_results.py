"""Keep what a run and its evaluation came to: settings, log, curves and scores, without weights, images or paths.

    python experiments/keep_results.py runs/flickr8k-soft evaluation experiments/results/flickr8k-soft

The second is the folder that `captioner evaluate --out` made of the run's model, or of what was exported of it. The log
is thinned: a line for each epoch with the means over its steps, beside the lines of the validations.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from captioner.files import write_whole
from captioner.model.export import KEPT, without_paths
from captioner.training.recipe import load_recipe, recipe_to_dict
from captioner.training.yaml_text import write_yaml

PER_CAPTION = ("entropy_share", "movement", "peak", "beta")  # of the diagnostics over all words


def thin(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the validations as they are, each after one line with the means over the steps of its epoch."""
    epochs: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        epochs.setdefault(line["epoch"], []).append(line)
    found = []
    for epoch in epochs.values():
        steps = [line for line in epoch if "loss" in line]
        if steps:
            names = [name for name, value in steps[-1].items() if isinstance(value, float)]
            means = {name: sum(float(line[name]) for line in steps) / len(steps) for name in names}
            found.append({**steps[-1], **{name: float(f"{value:.5g}") for name, value in means.items()}})
        found += [line for line in epoch if "loss" not in line]
    return found


def read_evaluation(evaluation: Path) -> dict[str, Any]:
    """Return the scores, intervals, diversity and protocol of an evaluation, with what attention does in short."""
    metrics = json.loads((evaluation / "metrics.json").read_text())
    found = {name: metrics[name] for name in KEPT}
    diagnostics = evaluation / "diagnostics.json"
    if diagnostics.exists():
        known = json.loads(diagnostics.read_text())
        found["attention"] = {name: known["overall"][name] for name in PER_CAPTION}
        found["attention"]["collapsed"] = known["collapsed"]
    return found


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = without_paths(recipe_to_dict(load_recipe(options.run / "settings.yaml")))
    write_whole(options.out / "settings.yaml", write_yaml(settings))
    lines = [json.loads(line) for line in (options.run / "log.jsonl").read_text().splitlines()]
    write_whole(options.out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in thin(lines)))
    write_whole(options.out / "metrics.json", json.dumps(read_evaluation(options.evaluation), indent=2) + "\n")
    shutil.copy(options.run / "curves.png", options.out / "curves.png")


if __name__ == "__main__":
    main()
