"""Figures before they are drawn: pictures, bars, outlines and labels at their places on a sheet.

A sheet becomes pixels at once, by Pillow, or a matplotlib figure, for vector files (see `vector_files`). Both look
alike: all places are whole pixels or texts' anchors, computed beforehand. Lengths are pixels of the sheet, from its top
left.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from captioner.figures.lettering import draw_text, text_width
from captioner.figures.masks import draw_contours, to_levels
from captioner.figures.png import png_bytes
from captioner.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GREY, PALE, PAPER = "#1a1a1a", "#707070", "#dedede", "#ffffff"
BRIGHT = "#ffe14d"  # lines over images, with a rim of ink
POINT = 1 / 72  # inches


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels (height, width, 3) uint8, drawn one for one."""

    left: int
    top: int
    pixels: NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Contours:
    """Lines around the highest levels of a mask (height, width), over the picture at the same place."""

    left: int
    top: int
    mask: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True)
class Bar:
    """A filled rectangle."""

    left: float
    top: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Outline:
    """A bright rectangle with a dark rim, `points` wide."""

    left: float
    top: float
    right: float
    bottom: float
    points: float


@dataclass(frozen=True)
class Trace:
    """Bright straight lines from place to place, x and y, with a dark rim, `points` wide."""

    places: tuple[tuple[float, float], ...]
    points: float


@dataclass(frozen=True)
class Label:
    """A line of text, never mathematics; `x` is its "left", "middle" or "right", as `side` says."""

    x: float
    baseline: float
    text: str
    points: float
    colour: str = INK
    side: str = "left"


Mark = Picture | Contours | Bar | Outline | Trace | Label


@dataclass(frozen=True, eq=False)
class Sheet:
    """A figure of `width` x `height` pixels at `dpi` pixels an inch, and what is on it, the lowest first."""

    width: int
    height: int
    dpi: int
    marks: tuple[Mark, ...]

    def pixels(self) -> NDArray[np.uint8]:
        """Return the figure as RGB pixels (height, width, 3)."""
        canvas = np.full((self.height, self.width, 3), 255, dtype=np.uint8)
        for mark in self.marks:
            if not isinstance(mark, Label):
                _put(canvas, mark, self.dpi)
        for mark in self.marks:
            if isinstance(mark, Label):
                size = mark.points * POINT * self.dpi
                draw_text(canvas, mark.x, mark.baseline, mark.text, size, mark.colour, mark.side)
        return canvas

    def image(self) -> Image.Image:
        """Return the figure as an RGB image."""
        return Image.fromarray(self.pixels())

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return png_bytes(self.pixels(), self.dpi)


def fitting_label(
    x: float, baseline: float, text: str, points: float, dpi: int, room: float, colour: str = INK, side: str = "left"
) -> Label:
    """Return a label, its text made smaller where it would take more than `room` pixels across."""
    needed = text_width(text, points * POINT * dpi)
    if needed > room:
        # Down to a hundredth of a point, so that few fonts are made, and never up to more than there is room for.
        points = max(math.floor(100 * points * max(room, 1) / needed) / 100, 0.1)
    return Label(x, baseline, text, points, colour, side)


def _put(canvas: NDArray[np.uint8], mark: Picture | Contours | Bar | Outline | Trace, dpi: int) -> None:
    if isinstance(mark, Picture):
        height, width = mark.pixels.shape[:2]
        canvas[mark.top : mark.top + height, mark.left : mark.left + width] = mark.pixels
    elif isinstance(mark, Contours):
        height, width = mark.mask.shape
        below = canvas[mark.top : mark.top + height, mark.left : mark.left + width]
        below[:] = to_levels(draw_contours(below.astype(np.float32) / np.float32(255), mark.mask, dpi))
    elif isinstance(mark, Bar):
        _fill(canvas, (mark.left, mark.top, mark.left + mark.width, mark.top + mark.height), mark.colour)
    elif isinstance(mark, Trace):
        image = Image.fromarray(canvas)
        for colour, points in ((INK, 2 * mark.points), (BRIGHT, mark.points)):
            line = max(round(points * POINT * dpi), 1)
            ImageDraw.Draw(image).line(mark.places, ImageColor.getrgb(colour), line, joint="curve")
        canvas[:] = np.asarray(image)
    else:
        line = max(round(mark.points * POINT * dpi), 1)
        rim = max(line // 2, 1)
        _frame(canvas, mark, line + 2 * rim, rim, INK)
        _frame(canvas, mark, line, 0, BRIGHT)


def _frame(canvas: NDArray[np.uint8], mark: Outline, line: int, outwards: int, colour: str) -> None:
    """Draw the four sides of an outline, inside of it but for so many pixels outwards."""
    left, top = round(mark.left) - outwards, round(mark.top) - outwards
    right, bottom = round(mark.right) + outwards, round(mark.bottom) + outwards
    for box in ((left, top, right, top + line), (left, bottom - line, right, bottom),
                (left, top, left + line, bottom), (right - line, top, right, bottom)):  # fmt: skip
        _fill(canvas, box, colour)


def _fill(canvas: NDArray[np.uint8], box: tuple[float, float, float, float], colour: str) -> None:
    left, top, right, bottom = (max(round(edge), 0) for edge in box)
    canvas[top:bottom, left:right] = ImageColor.getrgb(colour)[:3]


SUFFIXES = (".png", ".pdf", ".svg")


def figure_bytes(drawing: Sheet | Figure, suffix: str) -> bytes:
    """Return a sheet, or a figure of matplotlib's, as the contents of a ".png", ".pdf" or ".svg" file."""
    if suffix not in SUFFIXES:
        raise ValueError(f"suffix is {suffix!r}; choose from {', '.join(SUFFIXES)}")
    if suffix != ".png" or not isinstance(drawing, Sheet):
        from captioner.figures.vector_files import matplotlib_bytes  # takes longer to import than a PNG to draw

        return matplotlib_bytes(drawing, suffix)
    return png_bytes(drawing.pixels(), drawing.dpi)


def save_figure(drawing: Sheet | Figure, path: str | os.PathLike[str]) -> None:
    """Write a sheet or a figure as the PNG, PDF or SVG that the suffix asks for, whole or not at all."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path.name!r} has the suffix {path.suffix!r}; choose from {', '.join(SUFFIXES)}")
    write_whole(path, figure_bytes(drawing, suffix))
