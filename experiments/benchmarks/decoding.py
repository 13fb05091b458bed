"""Images per second decoded and fitted to an encoder's input, by the size of the photographs.

    python experiments/benchmarks/decoding.py PATH/TO/IMAGES

Copies of the images are resized to so many megapixels and written as JPEGs below --scratch; one thread reads them.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

from PIL import Image

from captioner.images.preprocessing import Preprocessing

SHORT = 256  # pixels of the shortest side of small images


def make_copies(paths: list[Path], folder: Path, pixels: float | None) -> list[Path]:
    """Write copies with so many pixels each, or with a shortest side of SHORT, and return their paths."""
    folder.mkdir()
    copies = []
    for path in paths:
        with Image.open(path) as image:
            factor = math.sqrt(pixels / (image.width * image.height)) if pixels else SHORT / min(image.size)
            size = (round(image.width * factor), round(image.height * factor))
            copies.append(folder / path.name)
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(copies[-1], quality=90)
    return copies


def main() -> None:
    """Print a line for each size, rounds of all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of images")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=168, help="pixels of the encoder's input (default: %(default)s)")
    parser.add_argument("--megapixels", type=float, nargs="+", default=[2, 12])
    parser.add_argument("--scratch", type=Path, help="where to write the copies (default: the system's place)")
    options = parser.parse_args()
    paths = sorted(options.data.rglob("*.jpg"))[: options.images]
    preprocessing = Preprocessing(options.size)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        sizes = {f"{SHORT} pixels": make_copies(paths, Path(scratch) / "small", None)}
        for number in options.megapixels:
            sizes[f"{number:g} megapixels"] = make_copies(paths, Path(scratch) / f"{number:g}", 1e6 * number)
        times = dict.fromkeys(sizes, 0.0)
        for _ in range(options.rounds):
            for name, copies in sizes.items():
                started = time.process_time()
                for path in copies:
                    preprocessing.read(path)
                times[name] += time.process_time() - started
        print(f"{len(paths)} images, {options.rounds} rounds, to {options.size} pixels, core time")
        for name, seconds in times.items():
            total = options.rounds * len(paths)
            kilobytes = sum(path.stat().st_size for path in sizes[name]) / len(paths) / 1000
            print(f"{name:<16}{total / seconds:>8.1f} images/s{1000 * seconds / total:>8.2f} ms{kilobytes:>9.0f} kB")


if __name__ == "__main__":
    main()
