"""Regions as outlines over a picture of the image: a cell of the grid, or the box of a detector."""

from __future__ import annotations

from captioner.figures.drawing import Outline
from captioner.figures.fixations import fixation_outlines
from captioner.figures.masks import CaptionLike

POINTS = 0.8  # of an outline


def region_outline(
    caption: CaptionLike, region: tuple[int, int], corner: tuple[float, float], size: tuple[int, int]
) -> Outline:
    """Return the outline of a region (row, column) on a picture of the whole image at a `corner`, `size` pixels."""
    geometry = caption.geometry
    rows, columns = caption.attention.shape[1:]
    left, top, right, bottom = geometry.cell_box(*region, (rows, columns))
    across, down = size[0] / geometry.width, size[1] / geometry.height
    x, y = corner
    return Outline(x + left * across, y + top * down, x + right * across, y + bottom * down, POINTS)


def attended_boxes(
    caption: CaptionLike, word: int, corner: tuple[float, float], size: tuple[int, int]
) -> list[Outline]:
    """Return the outline of the box that a word looked at most; where regions are cells, of the points it looked at.

    None where these were not chosen: cells show themselves.
    """
    if caption.geometry.boxes is None:
        return fixation_outlines(caption, word, corner, size)
    return [region_outline(caption, (0, int(caption.attention[word].argmax())), corner, size)]
