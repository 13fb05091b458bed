"""Words against places: how much weight each word gave to every region, row and column of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captioner.figures.drawing import GREY, PAPER, POINT, Bar, Label, Mark, Picture, Sheet, fitting_label
from captioner.figures.lettering import text_width
from captioner.figures.masks import CaptionLike, colour_scale, to_levels
from captioner.figures.panels import check_page, check_words

# Lengths in inches.
_MARGIN, _GAP = 0.05, 0.14
_ROW = 0.17  # of a word
_WORDS = 0.24  # the share of the width that words may take
_SIDE, _SIDE_SHARE = 0.13, 0.17  # of a cell of rows and columns, and the share of the width that all of them may take
_HEAD, _NUMBERS, _KEY_GAP, _KEY, _FOOT = 0.17, 0.13, 0.05, 0.05, 0.13

_WORD_POINTS, _SMALL_POINTS = 7.5, 5.5


@dataclass(frozen=True)
class Marginals:
    """The weights of T words, each word's summing to one in every table; left and right are those of the original."""

    regions: NDArray[np.float32]  # (T, rows * columns), row by row
    rows: NDArray[np.float32]  # (T, rows), from the top
    columns: NDArray[np.float32]  # (T, columns), from the left


def marginals(caption: CaptionLike) -> Marginals:
    """Return the weights of a caption's words by region, by row and by column."""
    attention = caption.attention  # (T, rows, columns)
    words, rows, columns = attention.shape
    if caption.geometry.flipped:
        attention = attention[:, :, ::-1]
    return Marginals(attention.reshape(words, rows * columns), attention.sum(axis=2), attention.sum(axis=1))


def alignment_matrix(caption: CaptionLike, *, width: float = 7.0, dpi: int = 200) -> Sheet:
    """Return a figure of three tables, a line for each word: its weights by region, by image row and by image column.

    About `width` inches wide. Regions stand row by row of the image, with a thin line between rows, which are numbered
    from the top as columns are from the left. Each table has its own colour scale from 0, shown below it, in which
    equal steps look equal. Boxes of a detector have one table, in the order in which it gave them.
    """
    check_page(width, dpi)
    check_words(caption)
    tables = marginals(caption)
    words, rows, columns = caption.attention.shape
    points = _WORD_POINTS * POINT * dpi
    widest = max((text_width(word, points) for word in caption.words), default=0)
    left = int(min(widest, _WORDS * width * dpi) + (_MARGIN + 0.06) * dpi)
    has_boxes = caption.geometry.boxes is not None
    side = max(int(min(_SIDE, _SIDE_SHARE * width / max(rows, columns)) * dpi), 1)
    gap, margin = int(_GAP * dpi), int(_MARGIN * dpi)
    room = width * dpi - left - margin - (0 if has_boxes else (rows + columns) * side + 2 * gap)
    region = max(int(room / (rows * columns)), 1)
    height = max(int(_ROW * dpi), 1)
    top = int((_MARGIN + _HEAD) * dpi)
    marks: list[Mark] = []
    for index, word in enumerate(caption.words):
        baseline, space = top + (index + 0.68) * height, left - margin - 0.06 * dpi
        marks.append(fitting_label(left - 0.06 * dpi, baseline, word, _WORD_POINTS, dpi, space, side="right"))
    table = _Table(top, height, dpi)
    drawn = [
        (region, tables.regions, "region, row by row", [columns] * rows),
        (side, tables.rows, "row", [1] * rows),
        (side, tables.columns, "column", [1] * columns),
    ]
    if has_boxes:
        drawn = [(min(region, int(2 * _SIDE * dpi)), tables.regions, "box", [1] * columns)]
    x = left - gap
    for cell, weights, title, groups in drawn:
        x += gap
        marks += table.draw(x, cell, weights, title, groups)
        x += cell * weights.shape[1]
    bottom = top + words * height + int((_NUMBERS + _KEY_GAP + _KEY + _FOOT + _MARGIN) * dpi)
    return Sheet(x + margin, bottom, dpi, tuple(marks))


def word_alignment(
    words: Sequence[str], sources: Sequence[str], weights: NDArray[np.float32], *, dpi: int = 200
) -> Sheet:
    """Return a table of the weights (T, L) that each of T words gave to L others, which stand above their columns.

    A column is as wide as its word. The colour scale is that of `alignment_matrix`.
    """
    if weights.shape != (len(words), len(sources)) or not weights.size:
        raise ValueError(f"weights are {weights.shape}; expected one row for each word, and one column for each source")
    points = _WORD_POINTS * POINT * dpi
    margin, pad, height = int(_MARGIN * dpi), 0.06 * dpi, max(int(_ROW * dpi), 1)
    left = int(max(text_width(word, points) for word in words) + margin + pad)
    widths = [max(height, int(text_width(source, points) + 2 * pad)) for source in sources]
    top = margin + height
    edges = np.cumsum([left, *widths])  # (L + 1,)
    marks: list[Mark] = []
    for row, word in enumerate(words):
        marks.append(Label(left - pad, top + (row + 0.68) * height, word, _WORD_POINTS, side="right"))
    for start, end, source in zip(edges, edges[1:], sources, strict=False):
        marks.append(Label((start + end) / 2, top - 0.3 * height, source, _WORD_POINTS, side="middle"))
    table = _Table(top, height, dpi)
    marks += table.cells(left, widths, weights)
    marks += table.key(left, sum(widths), table.highest(weights), top + len(words) * height - int(_NUMBERS * dpi))
    bottom = top + len(words) * height + int((_KEY_GAP + _KEY + _FOOT + _MARGIN) * dpi)
    return Sheet(int(edges[-1]) + margin, bottom, dpi, tuple(marks))


@dataclass(frozen=True)
class _Table:
    """Where tables begin, and how high their lines are, in pixels."""

    top: int
    height: int
    dpi: int

    def draw(self, left: int, side: int, weights: NDArray[np.float32], title: str, groups: list[int]) -> list[Mark]:
        """Return a table of weights (T, cells), each `side` pixels wide, numbered in groups of so many cells."""
        words, cells = weights.shape
        width, bottom = cells * side, self.top + words * self.height
        marks: list[Mark] = [
            fitting_label(left, self.top - 0.05 * self.dpi, title, _SMALL_POINTS + 1, self.dpi, width, GREY)
        ]
        marks += self.cells(left, [side] * cells, weights)
        marks += self._numbers(left, side, groups, bottom)
        return marks + self.key(left, width, self.highest(weights), bottom)

    @staticmethod
    def highest(weights: NDArray[np.float32]) -> float:
        """Return the weight at the upper end of the colour scale."""
        return float(weights.max(initial=0)) or 1.0

    @property
    def thin(self) -> int:
        """The width of the lines between cells."""
        return max(round(0.004 * self.dpi), 1)

    def cells(self, left: int, widths: Sequence[int], weights: NDArray[np.float32]) -> list[Mark]:
        """Return the weights (T, cells) as colours, each cell as wide as `widths` say."""
        shades = np.rint(weights / self.highest(weights) * 255).astype(np.uint8)  # (T, cells)
        colours = to_levels(colour_scale())  # (256, 3)
        pixels = colours[shades.repeat(self.height, axis=0).repeat(widths, axis=1)]  # (T * height, width, 3)
        marks: list[Mark] = [Picture(left, self.top, pixels)] if len(weights) else []
        for word in range(1, len(weights)):  # a hair of paper between the lines keeps them apart
            top = self.top + word * self.height - self.thin // 2
            marks.append(Bar(left, top, sum(widths), self.thin, PAPER))
        return marks

    def _numbers(self, left: int, side: int, groups: list[int], bottom: int) -> list[Mark]:
        marks: list[Mark] = []
        thin = self.thin
        pixels = _SMALL_POINTS * POINT * self.dpi
        room = groups[0] * side
        every = 1 + int(text_width(str(len(groups)), pixels) * 1.4 / room)  # numbers that have room
        start = 0
        for number, group in enumerate(groups, start=1):
            if start and groups[0] > 1:
                marks.append(Bar(left + start * side - thin // 2, self.top, thin, bottom - self.top, "#8c8c8c"))
            if (number - 1) % every == 0:
                middle, baseline = left + (start + group / 2) * side, bottom + 0.09 * self.dpi
                marks.append(Label(middle, baseline, str(number), _SMALL_POINTS, GREY, "middle"))
            start += group
        return marks

    def key(self, left: int, width: int, high: float, bottom: int) -> list[Mark]:
        """Return the colour scale below a table, with the weights at its ends."""
        top, height = bottom + int((_NUMBERS + _KEY_GAP) * self.dpi), max(int(_KEY * self.dpi), 1)
        scale = to_levels(colour_scale())[np.linspace(0, 255, width).round().astype(np.uint8)]  # (width, 3)
        baseline = top + height + 0.1 * self.dpi
        return [
            Picture(left, top, np.broadcast_to(scale, (height, width, 3))),
            Label(left, baseline, "0", _SMALL_POINTS, GREY),
            Label(left + width, baseline, f"{high:.2f}", _SMALL_POINTS, GREY, "right"),
        ]
