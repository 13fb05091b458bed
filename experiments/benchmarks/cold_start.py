"""Seconds from a cold start to the caption of one image, against those of `import torch` alone.

    python experiments/benchmarks/cold_start.py
    python experiments/benchmarks/cold_start.py --image PHOTO.jpg --model coco-best --rounds 9

Both run in turn, each in a process of its own, so that a busy spell of the machine meets both; the first round, which
reads the files from the disk, does not count.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

IMAGE = Path(__file__).parents[2] / "data" / "examples" / "cat.jpg"


def seconds(*arguments: str) -> float:
    """Return how long a Python process takes from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Measure, and print medians and their ratio."""
    parser = argparse.ArgumentParser(description="Seconds from a cold start to the first caption.")
    parser.add_argument("--image", type=Path, default=IMAGE, help="the image to caption (default: %(default)s)")
    parser.add_argument("--model", help="a bundled model or a checkpoint folder (default: the default model)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default: %(default)s)")
    options = parser.parse_args()
    model = ["--model", options.model] if options.model else []
    commands = {
        "import torch": ["-c", "import torch"],
        "captioner caption": ["-m", "captioner", "caption", str(options.image), "--quiet", *model],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(options.rounds + 1):
        for name, command in commands.items():
            found = seconds(*command)
            if number:
                taken[name].append(found)
    for name, times in taken.items():
        print(f"{name:18} {statistics.median(times):5.2f} s ({min(times):.2f} to {max(times):.2f})")
    ratio = statistics.median(b / a for a, b in zip(*taken.values(), strict=True))
    print(f"ratio, the median of {options.rounds} rounds: {ratio:.2f}")


if __name__ == "__main__":
    main()
