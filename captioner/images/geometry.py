"""Where a network's input lies on the image it was made of, and the way back from grid cells to pixels."""

from __future__ import annotations

from dataclasses import dataclass

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the upright original


@dataclass(frozen=True)
class Geometry:
    """Where the network's square input lies on the upright original image of `width` x `height` pixels."""

    width: int
    height: int
    box: Box  # the part the network sees
    flipped: bool = False  # the network saw it mirrored left to right

    def cell_box(self, row: int, column: int, grid: tuple[int, int]) -> Box:
        """Return the box of one cell of a `grid` of (rows, columns), in pixels of the original."""
        rows, columns = grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"cell ({row}, {column}) is outside a grid of {rows} x {columns}")
        if self.flipped:
            column = columns - 1 - column
        left, top, right, bottom = self.box
        cell_width, cell_height = (right - left) / columns, (bottom - top) / rows
        return (
            left + column * cell_width,
            top + row * cell_height,
            left + (column + 1) * cell_width,
            top + (row + 1) * cell_height,
        )
