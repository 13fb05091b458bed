"""Where a network's input lies on the image it was made of, and the way back from grid cells to pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SIDES = 2**31  # pixels: no format has more
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the upright original


@dataclass(frozen=True)
class Geometry:
    """Where the regions lie on the upright original image of `width` x `height` pixels: a grid, or boxes."""

    width: int
    height: int
    box: Box  # the part the network sees
    flipped: bool = False  # the network saw it mirrored left to right
    boxes: tuple[Box, ...] | None = None  # of the regions, where a detector found them; a grid is then (1, boxes)

    def cell_box(self, row: int, column: int, grid: tuple[int, int]) -> Box:
        """Return the box of one cell of a `grid` of (rows, columns), in pixels of the original."""
        rows, columns = grid
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"cell ({row}, {column}) is outside a grid of {rows} x {columns}")
        if self.boxes is not None:
            return self.boxes[column]
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; boxes only where there are some."""
        values: dict[str, Any] = {
            "width": self.width,
            "height": self.height,
            "box": list(self.box),
            "flipped": self.flipped,
        }
        return values if self.boxes is None else {**values, "boxes": [list(box) for box in self.boxes]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Geometry:
        """Rebuild from `to_dict`, through JSON or not; raise ValueError for what lies on no image."""
        width, height = int(values["width"]), int(values["height"])
        boxes = values.get("boxes")
        geometry = cls(
            width,
            height,
            _to_box(values["box"]),
            bool(values["flipped"]),
            tuple(map(_to_box, boxes)) if boxes is not None else None,
        )
        if not (1 <= width < _SIDES and 1 <= height < _SIDES):
            raise ValueError(f"its geometry is {values}")
        return geometry


def _to_box(edges: Any) -> Box:
    left, top, right, bottom = map(float, edges)
    if not (-_SIDES < left < right < _SIDES and -_SIDES < top < bottom < _SIDES):
        raise ValueError(f"its geometry has the box {list(edges)}")
    return left, top, right, bottom
