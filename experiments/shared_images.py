"""Images that two data sets share, or two splits of one, by what an encoder makes of them: none may be tested on.

    python experiments/shared_images.py features/coco/CACHE features/flickr8k/CACHE data/coco data/flickr8k

The first two are region caches of one encoder, as `captioner features` fills them, the others the data sets that they
are of. Every training image of the first is compared with every validation and test image of both. Copies differ in
size and compression only, so that their mean regions point the same way; `--sheet PNG` draws the closest pairs, to be
judged by eye.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from captioner.datasets.dataset import CaptionedImage, load_dataset
from captioner.images.opening import open_image
from captioner.model.encoders.region_cache import RegionCache

BLOCK = 512  # images that are compared, or read, at a time
HELD_OUT = ("val", "test")
TILE, LINE = 192, 16  # pixels of the sheet

Pair = tuple[float, CaptionedImage, CaptionedImage]


def directions(cache: RegionCache, images: Sequence[CaptionedImage]) -> NDArray[np.float32]:
    """Return the directions (I, D), of length 1, of the images' mean regions."""
    found = np.empty((len(images), cache.shape[1]), np.float32)
    for start in range(0, len(images), BLOCK):
        part = images[start : start + BLOCK]
        found[start : start + len(part)] = cache.regions([image.file_name for image in part]).mean(1, np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def closest(
    training: Sequence[CaptionedImage],
    held_out: Sequence[CaptionedImage],
    sides: tuple[NDArray[np.float32], NDArray[np.float32]],
    count: int,
) -> list[Pair]:
    """Return the `count` held-out images that have the most alike training image, with it, the most alike first."""
    left, right = sides  # (I, D) and (J, D)
    best, place = np.full(len(right), -1.0, np.float32), np.zeros(len(right), np.int64)
    for start in range(0, len(left), BLOCK):
        likeness = left[start : start + BLOCK] @ right.T  # (B, J)
        largest = likeness.argmax(0)
        value = likeness[largest, np.arange(len(right))]
        better = value > best
        best[better], place[better] = value[better], start + largest[better]
    order = np.argsort(-best, kind="stable")[:count].tolist()
    return [(float(best[index]), training[place[index]], held_out[index]) for index in order]


def draw_sheet(pairs: Sequence[Pair], path: Path) -> None:
    """Draw the pairs side by side, two in a row, each below its likeness."""
    width, height = 2 * TILE + 16, TILE + LINE + 8
    sheet = Image.new("RGB", (2 * width, -(-len(pairs) // 2) * height), "white")
    for index, (value, *images) in enumerate(pairs):
        x, y = index % 2 * width, index // 2 * height
        ImageDraw.Draw(sheet).text((x + 4, y + 2), f"{value:.4f}", fill="black")
        for place, image in enumerate(images):
            sheet.paste(open_image(image.path).resize((TILE, TILE)), (x + place * TILE, y + LINE))
    sheet.save(path)


def main() -> None:
    """Print the closest pairs for each held-out split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("caches", type=Path, nargs=2, metavar="CACHE")
    parser.add_argument("data", type=Path, nargs=2, metavar="DATA")
    parser.add_argument("--count", type=int, default=20, help="pairs for each split (default: %(default)s)")
    parser.add_argument("--sheet", type=Path, metavar="PNG", help="where to draw them")
    options = parser.parse_args()
    caches = [RegionCache(folder) for folder in options.caches]
    sets = [load_dataset(folder, restval_to_train=True) for folder in options.data]
    training = sets[0].split("train")
    left = directions(caches[0], training)
    pairs: list[Pair] = []
    for cache, dataset in zip(caches, sets, strict=True):
        for split in [split for split in HELD_OUT if split in dataset.splits()]:
            images = dataset.split(split)
            found = closest(training, images, (left, directions(cache, images)), options.count)
            print(f"{dataset.name} {split}: {len(images):,} images against {len(training):,} of {sets[0].name} train")
            for value, known, image in found:
                print(f"  {value:.4f}  {known.file_name}  {image.file_name}")
            pairs += found
    for cache in caches:
        cache.close()
    if options.sheet:
        draw_sheet(pairs, options.sheet)


if __name__ == "__main__":
    main()
