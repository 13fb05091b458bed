"""Attention as pixels: the weights of a grid, or of boxes, spread over the original image, and blended with it.

Arrays of pixels are `(height, width, 3)` float32, 0..1; a mask is `(height, width)` float32, 0..1, NaN where the
network saw nothing of the image.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from captioner.images.geometry import Box, Geometry

STYLES = ("mask", "heat", "contour")
# The standard deviation of the hill that a cell's weight becomes, in cells. On 9 x 9 cells it is that of the paper, 20
# of 224 pixels; less would show the cells, more would merge what lies two cells apart.
SMOOTHING = 0.8
CONTOURS = {0.6: 0.5, 0.75: 0.8, 0.9: 1.1}  # levels of the mask, and the widths of their lines in points
RIM = 0.7  # points that the dark rim of a line adds to its width
INK, BRIGHT = (0.1, 0.1, 0.1), (1.0, 0.88, 0.3)  # of lines over an image: legible on anything, one above the other
_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_HATCH_INCHES = 0.06


class CaptionLike(Protocol):
    """What overlays draw of a caption of T words; `captioner.captioning.caption.Caption` is one."""

    @property
    def words(self) -> tuple[str, ...]:
        """The T words."""

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Of each word, (T,), 0..1."""

    @property
    def attention(self) -> NDArray[np.float32]:
        """Weights (T, rows, columns), or (T, 1, boxes); each word's sum to one."""

    @property
    def beta(self) -> NDArray[np.float32]:
        """The gate of each word, (T,), 0..1."""

    @property
    def geometry(self) -> Geometry:
        """Where the grid or the boxes lie on the original pixels."""

    @property
    def points(self) -> NDArray[np.float32] | None:
        """Where the eye rested, (T, glimpses, 2), row and column in cells; None where no points were chosen."""

    @property
    def extents(self) -> tuple[float, ...]:
        """How far the patch of each scale reaches from a point, in cells."""


class Raster:
    """A raster of `size` (width, height) pixels over the whole original, onto which weights of regions are spread.

    Each cell's weight becomes a Gaussian hill around the cell's centre, mirrored at the edges of the grid, so that
    uniform attention stays 1 / (rows * columns) everywhere and the mean over what was seen stays that of the weights.
    Boxes are filled as they are: a pixel has the highest weight of the boxes that it lies in, 0 where it lies in none.
    """

    def __init__(self, geometry: Geometry, grid: tuple[int, int], size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError(f"size is {size}; it must be at least 1 x 1 pixels")
        self.size = size
        self.boxes = [_pixels_within(box, geometry, size) for box in geometry.boxes] if geometry.boxes else None
        left, top, right, bottom = geometry.box
        across = _cells_at(size[0], geometry.width, left, right, grid[1])  # (width,)
        down = _cells_at(size[1], geometry.height, top, bottom, grid[0])  # (height,)
        self.flipped = geometry.flipped
        self.down = _hills(down, grid[0])  # (height, rows)
        self.across = _hills(across, grid[1]).T  # (columns, width)
        self.unseen_down, self.unseen_across = ~_within(down, grid[0]), ~_within(across, grid[1])

    def spread(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return weights (rows, columns) over the original, (height, width), NaN where the network saw nothing."""
        weights = weights.astype(np.float32)
        if self.boxes is not None:
            filled: NDArray[np.float32] = np.zeros(self.size[::-1], np.float32)  # (height, width)
            for index in weights[0].argsort(kind="stable"):  # the highest weight comes last, over the others
                filled[self.boxes[index]] = weights[0, index]
            return filled
        if self.flipped:
            weights = weights[:, ::-1]
        spread: NDArray[np.float32] = self.down @ weights @ self.across
        spread[self.unseen_down] = np.nan
        spread[:, self.unseen_across] = np.nan
        return spread


def _pixels_within(box: Box, geometry: Geometry, size: tuple[int, int]) -> tuple[slice, slice]:
    """Return the rows and columns of a raster of `size` (width, height) whose pixels' centres lie in a box."""
    left, top, right, bottom = box
    across, down = size[0] / geometry.width, size[1] / geometry.height
    rows, columns = (
        slice(max(0, math.ceil(start * scale - 0.5)), max(0, math.ceil(stop * scale - 0.5)))
        for start, stop, scale in ((top, bottom, down), (left, right, across))
    )
    return rows, columns


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
    low, high = float(np.fmin.reduce(weights, axis=None)), float(np.fmax.reduce(weights, axis=None))
    if np.isnan(low):  # of an image so long that no pixel lies in the middle
        return weights
    mask: NDArray[np.float32] = (weights - np.float32((low + high) / 2)) / np.float32(max(high - low, 1 / cells))
    mask += np.float32(0.5)
    return np.clip(mask, 0, 1, out=mask)  # which rounding may leave


def blend(
    pixels: NDArray[np.float32], mask: NDArray[np.float32], style: str, dpi: float, *, top: int = 0
) -> NDArray[np.float32]:
    """Return an image (height, width, 3) under a mask (height, width) in one of STYLES, as `Blender` does."""
    return Blender(pixels, style, dpi, top=top)(mask)


class Blender:
    """An image (height, width, 3) to be shown under masks (height, width) in one of STYLES, hatched where they are NaN.

    The lines of "contour" are not drawn: see `draw_contours`. Of a strip of a larger image, `top` is its first row.
    What all masks share is computed once. Colours lie in planes, where they are computed several times faster.
    """

    def __init__(self, pixels: NDArray[np.float32], style: str, dpi: float, *, top: int = 0) -> None:
        self.style, self.dpi, self.top = style, dpi, top
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (3, height, width)
        self.grey = pixels @ _LUMINANCE  # (height, width)
        if style == "mask":
            # Colour against grey tells them apart in a colourful image, the veil of white in one that is dark or grey.
            self.dim = np.float32(0.38) * self.grey  # (height, width)
            self.lit = np.float32(0.5) * planes  # (3, height, width), what full attention adds to the dim
            self.lit += np.float32(0.5) - self.dim
        elif style == "contour":
            self.plain = np.float32(0.85) * planes + np.float32(0.15) * self.grey  # (3, height, width)

    def __call__(self, mask: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the image (height, width, 3) under a mask (height, width)."""
        unseen = np.isnan(mask)
        has_unseen = bool(unseen.any())
        level = np.where(unseen, np.float32(0), mask) if has_unseen else mask
        if self.style == "mask":
            level = level * np.sqrt(level)  # the power keeps what is half attended from competing
            blended = level * self.lit  # (3, height, width)
            blended += self.dim
        elif self.style == "heat":
            colours = colour_scale()[(level * 255).round().astype(np.uint8)]  # (height, width, 3)
            share = np.float32(0.45) + np.float32(0.25) * level
            blended = self.grey + share * (colours.transpose(2, 0, 1) - self.grey)
        else:
            blended = self.plain
        if has_unseen:
            blended = np.where(unseen, _hatched(self.grey, self.dpi, self.top), blended)
        clipped: NDArray[np.float32] = np.clip(blended, 0, 1).transpose(1, 2, 0)  # (height, width, 3)
        return clipped


@cache
def colour_scale() -> NDArray[np.float32]:
    """Return the colours (256, 3), 0..1, of weights from low to high: equal steps look equal, also in grey."""
    from matplotlib import colormaps  # slow to import, and most pictures do without

    return colormaps["inferno"](np.arange(256))[:, :3].astype(np.float32)


def _hatched(grey: NDArray[np.float32], dpi: float, top: int) -> NDArray[np.float32]:
    """Return pale grey (height, width) with faint stripes: neither bright nor dim, as attention would be."""
    height, width = grey.shape
    period = max(_HATCH_INCHES * dpi, 4)
    stripe = np.add.outer(np.arange(top, top + height), np.arange(width)) % period < period / 5  # (height, width)
    pale = 0.76 + 0.20 * grey
    return np.where(stripe, pale - 0.09, pale).astype(np.float32)


def draw_contours(pixels: NDArray[np.float32], mask: NDArray[np.float32], dpi: float) -> NDArray[np.float32]:
    """Return an image (height, width, 3) with lines around the highest levels of a mask (height, width)."""
    if min(mask.shape) < 2:  # no room for lines
        return pixels
    down, across = np.gradient(mask)
    slope = np.maximum(np.hypot(down, across), 1e-6)  # (height, width), of the mask, a pixel
    drawn = pixels
    for rim, colour in ((RIM, INK), (0.0, BRIGHT)):
        covered = np.zeros_like(mask)
        for level, width in CONTOURS.items():
            # The mask is smooth: its height above the level, over its slope, is the distance from the line in pixels.
            cover = (width + rim) * dpi / 144 + 0.5 - np.abs(mask - level) / slope  # (height, width)
            covered = np.fmax(covered, np.clip(cover, 0, 1))  # NaN, beside what was not seen, is no line
        drawn = drawn + covered[..., None] * (np.array(colour, dtype=np.float32) - drawn)
    return drawn.astype(np.float32)


def to_levels(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return pixels of 0..1 as uint8, 0..255."""
    levels: NDArray[np.uint8] = (pixels * np.float32(255) + np.float32(0.5)).astype(np.uint8)
    return levels
