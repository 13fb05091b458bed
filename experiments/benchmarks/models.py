"""Images per second of the bundled models, from files to captions with the default search and by their encoders alone.

    python experiments/benchmarks/models.py
    python experiments/benchmarks/models.py --write captioner/pretrained/speed.json

Rounds of all models in turn, the median of each; a warm-up of one batch comes before. The encoder alone has images that
are decoded already. `--write` keeps the rates for
`captioner models`, which shows them as shares of the fastest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import captioner
from captioner.files import write_whole
from captioner.model.bundled import bundled_models
from captioner.threads import available_cores

PHOTOGRAPHS = Path(__file__).parents[2] / "data" / "photographs"


def main() -> None:
    """Print a table of models, the fastest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=PHOTOGRAPHS, help="a folder of images")
    parser.add_argument("--images", type=int, default=208, help="how many are captioned, some of them several times")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="JSON", help="keep the rates in this file")
    parser.add_argument("--models", nargs="+", default=list(bundled_models()), help="names, by default all")
    options = parser.parse_args()
    files = sorted(options.data.rglob("*.jpg"))
    paths = [files[place % len(files)] for place in range(options.images)]
    torch.set_num_threads(1)  # as the command has it: a search beside the encoder's threads
    models = {name: captioner.load(name) for name in options.models}
    rates: dict[str, list[float]] = {name: [] for name in models}
    encoders: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model.caption(paths[:64])
    for _ in range(options.rounds):
        for name, model in models.items():
            started = time.perf_counter()
            model.caption(paths)
            rates[name].append(len(paths) / (time.perf_counter() - started))
            prepared = [model.preprocessing.read(path) for path in paths]
            started = time.perf_counter()
            model.encode(prepared)
            encoders[name].append(len(paths) / (time.perf_counter() - started))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    fastest = max(medians.values())
    print(f"{len(paths)} images, median of {options.rounds} rounds, {available_cores()} cores")
    print(f"{'model':<20}{'images/s':>10}{'ratio':>8}{'encoder alone':>16}{'times as long':>16}")
    for name, rate in sorted(medians.items(), key=lambda pair: -pair[1]):
        alone = statistics.median(encoders[name])
        print(f"{name:<20}{rate:>10.1f}{rate / fastest:>8.2f}{alone:>16.1f}{alone / rate:>16.2f}")
    if options.write:
        rounded = {name: float(f"{rate:.4g}") for name, rate in medians.items()}
        write_whole(options.write, json.dumps(rounded, indent=2) + "\n")


if __name__ == "__main__":
    main()
