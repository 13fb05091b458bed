"""Figures per second of a word grid against the plain way, in one run: rounds of both in turn, the median of each.

    python experiments/benchmarks/overlays.py
    python experiments/benchmarks/overlays.py --leak 1000

The plain way is `pyplot.subplots`, `imshow` twice a word, `savefig`. Both draw the same captions at the same width and
resolution as PNG files, of the example photographs, with attention drawn at random. Seconds are of the processor's
time, which others on the machine do not change. --leak draws so many figures of several kinds and tells the memory and
the number of objects before and after.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.alignment import alignment_matrix
from captioner.figures.animation import save_animation
from captioner.figures.attention_samples import samples_figure
from captioner.figures.drawing import save_figure
from captioner.figures.word_grid import word_grid
from captioner.images.finding import find_images
from captioner.images.opening import open_image
from captioner.images.preprocessing import Preprocessing

EXAMPLES = Path(__file__).parent.parent.parent / "data" / "examples"
WORDS = ("a", "man", "in", "a", "red", "shirt", "is", "standing", "in", "front", "of", "a", "crowd")
GRID = (9, 9)
WIDTH, DPI = 7.0, 200
Draw = Callable[[Image.Image, Caption, Path], None]


def make_caption(image: Image.Image, seed: int) -> Caption:
    """Return a caption of an image with attention drawn at random."""
    chance = np.random.default_rng(seed)
    attention = chance.dirichlet(np.full(GRID[0] * GRID[1], 0.3), len(WORDS)).astype(np.float32)
    numbers = chance.random((2, len(WORDS))).astype(np.float32)
    geometry = Preprocessing(288).geometry(*image.size)
    return Caption(" ".join(WORDS), WORDS, numbers[0], -9.0, attention.reshape(-1, *GRID), numbers[1], geometry)


def draw_grid(image: Image.Image, caption: Caption, path: Path) -> None:
    """Draw a word grid."""
    save_figure(word_grid(image, caption, width=WIDTH, dpi=DPI), path)


def draw_plainly(image: Image.Image, caption: Caption, path: Path) -> None:
    """Draw a word grid as it is done where nothing speaks against it."""
    from matplotlib import pyplot

    columns = 7
    rows = -(-(len(caption.words) + 1) // columns)
    height = WIDTH / columns * image.height / image.width * rows * 1.25
    figure, axes = pyplot.subplots(rows, columns, figsize=(WIDTH, height), dpi=DPI)
    for place in axes.flat:
        place.axis("off")
    axes.flat[0].imshow(image)
    for index, word in enumerate(caption.words):
        place = axes.flat[index + 1]
        place.imshow(image)
        weights = Image.fromarray(caption.attention[index]).resize(image.size, Image.Resampling.BICUBIC)
        place.imshow(weights, alpha=0.6, cmap="gray")
        place.set_title(f"{word} {caption.probabilities[index]:.2f}", fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


def compare(images: list[Image.Image], rounds: int, folder: Path) -> None:
    """Print a table of both ways."""
    ways: dict[str, Draw] = {"plain": draw_plainly, "captioner": draw_grid}
    captions = [make_caption(image, seed) for seed, image in enumerate(images)]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, draw in ways.items():
            started = time.process_time()
            for image, caption in zip(images, captions, strict=True):
                draw(image, caption, folder / f"{name}.png")
            if turn:  # the first warms up
                seconds[name].append((time.process_time() - started) / len(images))
    plain = statistics.median(seconds["plain"])
    print(
        f"{len(images)} images, {len(WORDS)} words, {WIDTH:g} inches at {DPI} dpi, matplotlib {matplotlib.__version__}"
    )
    print(f"{'way':<12}{'figures/s':>10}{'ratio':>8}{'kilobytes':>11}")
    for name, values in seconds.items():
        each = statistics.median(values)
        size = (folder / f"{name}.png").stat().st_size / 1000
        print(f"{name:<12}{1 / each:>10.1f}{plain / each:>8.1f}{size:>11.0f}")


def look_for_leaks(images: list[Image.Image], figures: int, folder: Path) -> None:
    """Print what is left of many figures."""

    def draw(count: int) -> None:
        for number in range(count):
            image = images[number % len(images)]
            caption = make_caption(image, number)
            kind = number % 10
            if kind == 0:
                save_figure(
                    word_grid(image, caption, style="contour"), folder / f"leak{('.pdf', '.svg')[number % 20 > 9]}"
                )
            elif kind == 1:
                save_animation(image, caption, folder / "leak.webp")
            elif kind == 2:
                save_figure(alignment_matrix(caption), folder / "leak.png")
            elif kind == 3:
                save_figure(samples_figure(image, caption, samples=1), folder / "leak.png")
            else:
                draw_grid(image, caption, folder / "leak.png")

    draw(40)  # caches fill
    print(f"{'figures':>8}{'objects':>10}{'peak MB':>9}")
    drawn = 0
    for count in (0, figures // 2, figures - figures // 2):
        draw(count)
        drawn += count
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{drawn:>8}{len(gc.get_objects()):>10}{peak:>9.0f}")


def main() -> None:
    """Print the table, or what many figures leave behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leak", type=int, metavar="N", help="draw N figures and look for leaks instead")
    options = parser.parse_args()
    matplotlib.use("Agg")
    images = [open_image(path) for path in find_images([EXAMPLES])]
    with tempfile.TemporaryDirectory() as folder:
        if options.leak:
            look_for_leaks(images, options.leak, Path(folder))
        else:
            compare(images, options.rounds, Path(folder))


if __name__ == "__main__":
    main()
