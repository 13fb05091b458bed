"""How much of each cell of a region grid lies inside boxes: exact areas, no pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.images.geometry import Geometry


def covered_shares(boxes: NDArray[Any], geometry: Geometry, grid: tuple[int, int]) -> NDArray[np.float64]:
    """Return the share (rows, columns), 0..1, of each cell of the grid that lies inside the union of boxes (n, 4)."""
    if geometry.boxes is not None:  # each region is a box: a grid of one cell
        alone = (replace(geometry, box=box, boxes=None) for box in geometry.boxes)
        return np.array([[covered_shares(boxes, each, (1, 1))[0, 0] for each in alone]])
    rows, columns = grid
    left, top, right, bottom = geometry.box
    across, down = np.linspace(left, right, columns + 1), np.linspace(top, bottom, rows + 1)
    # The edges of cells and boxes cut what the network saw into pieces that are either inside a box or outside of all.
    xs = np.unique(np.concatenate([across, boxes[:, [0, 2]].ravel().clip(left, right)]))
    ys = np.unique(np.concatenate([down, boxes[:, [1, 3]].ravel().clip(top, bottom)]))
    middle_x, middle_y = (xs[1:] + xs[:-1]) / 2, (ys[1:] + ys[:-1]) / 2
    inside_x = (boxes[:, :1] < middle_x) & (middle_x < boxes[:, 2:3])  # (n, pieces across)
    inside_y = (boxes[:, 1:2] < middle_y) & (middle_y < boxes[:, 3:])  # (n, pieces down)
    inside = inside_y.T.astype(np.float64) @ inside_x > 0  # (pieces down, pieces across)
    areas = inside * np.outer(np.diff(ys), np.diff(xs))
    column = np.searchsorted(across, middle_x) - 1
    row = np.searchsorted(down, middle_y) - 1
    shares = np.zeros(grid)
    np.add.at(shares, (row[:, None], column[None]), areas)
    shares /= (right - left) / columns * (bottom - top) / rows
    return shares[:, ::-1] if geometry.flipped else shares
