from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES
from numpy.typing import NDArray

from captioner.datasets.coverage import covered_shares
from captioner.images.geometry import Geometry
from captioner.images.preprocessing import Preprocessing


def pixel_shares(boxes: NDArray[Any], geometry: Geometry, grid: tuple[int, int], fineness: int) -> NDArray[np.float64]:
    """Count points instead of computing areas."""
    shares = np.zeros(grid)
    for row in range(grid[0]):
        for column in range(grid[1]):
            left, top, right, bottom = geometry.cell_box(row, column, grid)
            xs = left + (np.arange(fineness) + 0.5) * (right - left) / fineness
            ys = (top + (np.arange(fineness) + 0.5) * (bottom - top) / fineness)[:, None]
            inside = np.zeros((fineness, fineness), dtype=bool)
            for box in boxes:
                inside |= (box[0] <= xs) & (xs <= box[2]) & (box[1] <= ys) & (ys <= box[3])
            shares[row, column] = inside.mean()
    return shares


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS.values(), ids=FITTINGS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_areas_agree_with_counted_points(size: tuple[int, int], fitting: dict[str, Any], flip: bool) -> None:
    geometry = Preprocessing(SIDE, flip=flip, **fitting).geometry(*size)
    chance = np.random.default_rng(0)
    corners = chance.uniform(-0.2, 1.2, (6, 2, 2)) * size
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)  # (6, 4), some of them overlap
    shares = covered_shares(boxes, geometry, GRID)
    np.testing.assert_allclose(shares, pixel_shares(boxes, geometry, GRID, 60), atol=0.04)
