"""Captions with made-up attention, on images of several shapes fitted in several ways."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.captioning.caption import Caption
from captioner.figures.masks import Raster
from captioner.images.geometry import Geometry
from captioner.images.preprocessing import Preprocessing

SIDE = 63  # of the network's input
SIZES = {"landscape": (330, 220), "portrait": (172, 244), "square": (200, 200), "panorama": (500, 60)}
FITTINGS: dict[str, dict[str, Any]] = {
    "squash": {"fit": "squash"},
    "crop": {"fit": "crop"},
    "crop of a larger one": {"fit": "crop", "resize": 72},
}
GRID = (7, 9)


def caption_of(
    attention: NDArray[Any], geometry: Geometry, words: tuple[str, ...] | None = None, seed: int = 0
) -> Caption:
    chance = np.random.default_rng(seed)
    words = words or tuple(f"word{number}" for number in range(len(attention)))
    return Caption(
        " ".join(words),
        words,
        chance.random(len(words)).astype(np.float32),
        -3.0,
        attention.astype(np.float32),
        chance.random(len(words)).astype(np.float32),
        geometry,
    )


def one_cell(row: int, column: int, grid: tuple[int, int] = GRID) -> NDArray[np.float32]:
    """Return the attention of one word (1, rows, columns) that looks at one cell alone."""
    attention = np.zeros((1, *grid), dtype=np.float32)
    attention[0, row, column] = 1
    return attention


def attention_map(caption: Caption, word: int, size: tuple[int, int]) -> NDArray[np.float32]:
    """Return one word's weights (height, width) over the whole original image, on a raster of `size` of it."""
    weights = caption.attention[word]  # (rows, columns)
    return Raster(caption.geometry, weights.shape, size).spread(weights)


def flat(words: int, size: tuple[int, int], fit: str = "squash") -> Caption:
    """Return a caption of so many words that looked everywhere alike."""
    return caption_of(np.full((words, *GRID), 1 / (GRID[0] * GRID[1])), Preprocessing(SIDE, fit).geometry(*size))


def seen_box(size: tuple[int, int], fitting: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return left, top, width and height of what the network sees, from the definition of the fits."""
    if fitting["fit"] == "squash":
        return 0.0, 0.0, *size
    length = min(size) * SIDE / fitting.get("resize", SIDE)
    return (size[0] - length) / 2, (size[1] - length) / 2, length, length
