"""Attention as pixels: the weights of a grid spread smoothly over the original image, and blended with it.

Arrays of pixels are `(height, width, 3)` float32, 0..1; a mask is `(height, width)` float32, 0..1, NaN where the
network saw nothing of the image.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from captioner.images import Geometry

STYLES = ("mask", "heat", "contour")
# The standard deviation of the hill that a cell's weight becomes, in cells. On 9 x 9 cells it is that of the paper, 20
# of 224 pixels; less would show the cells, more would merge what lies two cells apart.
SMOOTHING = 0.8
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_HATCH_INCHES = 0.06


class CaptionLike(Protocol):
    """What overlays draw of a caption of T words; `captioner.captions.Caption` is one."""

    @property
    def words(self) -> tuple[str, ...]:
        """The T words."""

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Of each word, (T,), 0..1."""

    @property
    def attention(self) -> NDArray[np.float32]:
        """Weights (T, rows, columns), each word's sum to one."""

    @property
    def beta(self) -> NDArray[np.float32]:
        """The gate of each word, (T,), 0..1."""

    @property
    def geometry(self) -> Geometry:
        """Where the grid lies on the original pixels."""


def attention_map(caption: CaptionLike, word_index: int, size: tuple[int, int]) -> NDArray[np.float32]:
    """Return one word's weights over the whole original image, on a raster of `size` (width, height) of it.

    (height, width), 0..1, NaN where the network saw nothing. Each cell's weight is spread as a Gaussian hill around the
    cell's centre and mirrored at the edges of the grid, so that uniform attention stays 1 / (rows * columns) everywhere
    and the mean over the part that was seen stays that of the weights.
    """
    if not 0 <= word_index < len(caption.words):
        raise ValueError(f"word_index is {word_index}; the caption has words 0 to {len(caption.words) - 1}")
    if min(size) < 1:
        raise ValueError(f"size is {size}; it must be at least 1 x 1 pixels")
    geometry = caption.geometry
    weights = caption.attention[word_index].astype(np.float32)  # (rows, columns)
    if geometry.flipped:
        weights = weights[:, ::-1]
    left, top, right, bottom = geometry.box
    across = _cells_at(size[0], geometry.width, left, right, weights.shape[1])  # (width,)
    down = _cells_at(size[1], geometry.height, top, bottom, weights.shape[0])  # (height,)
    spread: NDArray[np.float32] = _hills(down, weights.shape[0]) @ weights @ _hills(across, weights.shape[1]).T
    spread[~_within(down, weights.shape[0])] = np.nan
    spread[:, ~_within(across, weights.shape[1])] = np.nan
    return spread  # (height, width)


def _cells_at(pixels: int, length: int, start: float, stop: float, cells: int) -> NDArray[np.float32]:
    """Return where the centres of `pixels` over `length` fall in a row of `cells` that runs from start to stop."""
    centres = (np.arange(pixels) + 0.5) * (length / pixels)
    return ((centres - start) / (stop - start) * cells).astype(np.float32)


def _within(places: NDArray[np.float32], cells: int) -> NDArray[np.bool_]:
    return (places >= 0) & (places < cells)


def _hills(places: NDArray[np.float32], cells: int) -> NDArray[np.float32]:
    """Return the share of each cell at each place, (places, cells); the shares of a place sum to one."""
    centres = np.arange(cells) + 0.5
    mirrored = np.stack([-centres, centres, 2 * cells - centres])  # (3, cells)
    inside = np.clip(places, 0, cells)  # far outside the hills would all be zero
    distances = (inside[:, None, None] - mirrored) / SMOOTHING  # (places, 3, cells)
    hills: NDArray[np.float32] = np.exp(-0.5 * distances**2).sum(axis=1).astype(np.float32)  # (places, cells)
    total: NDArray[np.float32] = hills.sum(axis=1, keepdims=True)  # (places, 1)
    return hills / total


def visible_mask(weights: NDArray[np.float32], cells: int) -> NDArray[np.float32]:
    """Return weights (height, width) of a grid of so many `cells` as a mask, from their own lowest 0 to highest 1.

    Where the two differ by less than 1 / cells, the weight of uniform attention, that much stands for the whole range
    and the middle of them for 0.5: nearly uniform attention looks nearly flat instead of peaked.
    """
    seen = weights[~np.isnan(weights)]
    if not seen.size:  # of an image so long that no pixel lies in the middle
        return weights
    low, high = float(seen.min()), float(seen.max())
    mask: NDArray[np.float32] = (weights - (low + high) / 2) / max(high - low, 1 / cells) + 0.5
    return np.clip(mask, 0, 1)  # which rounding may leave


def blend(pixels: NDArray[np.float32], mask: NDArray[np.float32], style: str, dpi: int) -> NDArray[np.float32]:
    """Return an image (height, width, 3) under a mask (height, width) in one of STYLES, hatched where it is NaN."""
    unseen = np.isnan(mask)
    level = np.where(unseen, 0, mask)[..., None]  # (height, width, 1)
    grey = (pixels @ _LUMINANCE)[..., None]  # (height, width, 1)
    if style == "mask":
        # Colour against grey tells them apart in a colourful image, the veil of white in one that is dark or grey.
        dim, bright = 0.38 * grey, 0.5 + 0.5 * pixels
        blended = dim + (bright - dim) * level**1.5  # the power keeps what is half attended from competing
    elif style == "heat":
        colours = colormaps["inferno"](level[..., 0])[..., :3]
        share = 0.45 + 0.25 * level
        blended = (1 - share) * grey + share * colours
    else:
        blended = 0.85 * pixels + 0.15 * grey
    if unseen.any():
        blended = np.where(unseen[..., None], _hatched(grey, dpi), blended)
    return np.clip(blended, 0, 1).astype(np.float32)


def _hatched(grey: NDArray[np.float32], dpi: int) -> NDArray[np.float32]:
    """Return pale grey (height, width, 1) with faint stripes: neither bright nor dim, as attention would be."""
    height, width = grey.shape[:2]
    period = max(_HATCH_INCHES * dpi, 4)
    diagonal = np.add.outer(np.arange(height), np.arange(width)) % period  # (height, width)
    stripe = (diagonal < period / 5)[..., None]
    pale = 0.76 + 0.20 * grey
    return np.where(stripe, pale - 0.09, pale).astype(np.float32)
