"""Panels of words: an image under the attention of each word, in rows and columns with labels above and bars below."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.figures.boxes import attended_boxes
from captioner.figures.drawing import GREY, INK, PALE, POINT, Bar, Contours, Label, Mark, Picture, fitting_label
from captioner.figures.lettering import text_width
from captioner.figures.masks import STYLES, Blender, CaptionLike, Raster, to_levels, visible_mask
from captioner.images.formats import to_rgb

# Lengths in inches.
_SIDE, _SIDE_PER_WIDTH = 0.45, 0.085  # of a square panel, the larger the wider the figure; other shapes get its area
_SIZES = (0.75, 1.35)  # how much smaller or larger panels may be, to fill the last row
_LARGEST_SIDE = 1.7  # of a square panel where there are few words
_LONGEST_SIDE = 3.0
_NARROWEST_CELL = 0.7  # holds a word even above a panel that is narrower
_MARGIN, _GAP, _ROW_GAP, _BAND_GAP = 0.04, 0.08, 0.10, 0.08
_LABEL = 0.16  # the line above a panel
_BAR_GAP, _BAR = 0.03, 0.03  # below it

MAX_WORDS, MAX_LETTERS = 100, 100  # of a caption that is drawn
_WORD_POINTS, _SMALL_POINTS = 7.5, 5.5


@dataclass(frozen=True)
class Layout:
    """Where panels lie, in whole pixels, so that they are drawn as they were computed."""

    columns: int
    rows: int
    cell: int  # what a panel and its label may take across
    panel: tuple[int, int]  # width and height
    dpi: int
    band: int | None = None  # rows that belong together, with more room before the next

    @classmethod
    def fit(
        cls,
        panels: int,
        aspect: float,
        width: float,
        dpi: int,
        *,
        heads: int = 0,
        tracks: int | None = None,
        scale: float = 1.0,
    ) -> Layout:
        """Return rows and columns for so many panels of an aspect ratio, at most `width` inches across.

        Each row begins with `heads` further panels, and there are as many rows as `tracks` for each row's panels.
        `scale` is the size that panels should have, 1 the usual one.
        """
        wanted = max(scale * (_SIDE + _SIDE_PER_WIDTH * width) * math.sqrt(aspect), _NARROWEST_CELL)

        def cell(columns: int) -> float:
            return max((width - 2 * _MARGIN - (columns + heads - 1) * _GAP) / (columns + heads), 1 / dpi)

        def cost(columns: int) -> tuple[float, float]:
            ratio = cell(columns) / wanted
            empty = -panels % columns if _SIZES[0] <= ratio <= _SIZES[1] else math.inf
            return empty, abs(math.log(ratio))

        columns = min(range(1, max(panels, 1) + 1), key=cost)
        across = min(cell(columns), _LARGEST_SIDE * math.sqrt(aspect), _LONGEST_SIDE * aspect)
        panel = max(int(across * dpi), 1), max(round(across / aspect * dpi), 1)
        narrowest = int(min(cell(columns), _NARROWEST_CELL) * dpi)
        rows = math.ceil(max(panels, 1) / columns) * (tracks or 1)
        return cls(columns + heads, rows, max(panel[0], narrowest), panel, dpi, tracks)

    def pixels(self, inches: float) -> int:
        """Return a length in pixels, at least one."""
        return max(int(inches * self.dpi), 1)

    @property
    def row_height(self) -> int:
        """Pixels from a row's labels to its bars, both included."""
        return sum(map(self.pixels, (_LABEL, _BAR_GAP, _BAR))) + self.panel[1]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the figure in pixels."""
        width = self.columns * self.cell + (self.columns - 1) * self.pixels(_GAP)
        _, below = self.corner(self.rows - 1, 0)
        return width + 2 * self.pixels(_MARGIN), below + self.row_height + self.pixels(_ROW_GAP)

    def corner(self, row: int, column: int) -> tuple[int, int]:
        """Return the left and top of a panel's label."""
        left = self.pixels(_MARGIN) + column * (self.cell + self.pixels(_GAP))
        top = self.pixels(_MARGIN) + row * (self.row_height + self.pixels(_ROW_GAP))
        return left, top + (row // self.band * self.pixels(_BAND_GAP) if self.band else 0)

    def panel_corner(self, row: int, column: int) -> tuple[int, int]:
        """Return the left and top of a panel, which stands in the middle of a cell that is wider."""
        left, top = self.corner(row, column)
        return left + (self.cell - self.panel[0]) // 2, top + self.pixels(_LABEL)

    def baseline(self, row: int, column: int) -> float:
        """Return the height of the text above a panel."""
        return self.corner(row, column)[1] + 0.7 * self.pixels(_LABEL)


class Panels:
    """The image of a figure at the size of its panels, drawn plain or under the attention of words."""

    def __init__(self, image: Image.Image, layout: Layout, style: str) -> None:
        self.layout, self.style = layout, style
        small = to_rgb(image).resize(layout.panel, Image.Resampling.LANCZOS, reducing_gap=3.0)
        self.levels = np.asarray(small)  # (height, width, 3)
        plain = self.levels.astype(np.float32) / np.float32(255)  # (height, width, 3)
        self.blend = Blender(plain, style, layout.dpi)
        self.rasters: dict[int, Raster] = {}

    def draw_plain(self, row: int, column: int, name: str | None = None) -> list[Mark]:
        """Return the image as it is, with a name above."""
        marks: list[Mark] = [Picture(*self.layout.panel_corner(row, column), self.levels)]
        if name is not None:
            left, _ = self.layout.corner(row, column)
            place = left, self.layout.baseline(row, column)
            marks.append(fitting_label(*place, name, _WORD_POINTS, self.layout.dpi, self.layout.cell, GREY))
        return marks

    def draw_attention(self, row: int, column: int, caption: CaptionLike, word: int) -> list[Mark]:
        """Return the image under the attention of one word, and the box that it looked at most, where it has boxes."""
        corner = self.layout.panel_corner(row, column)
        mask = self.mask(caption, word)
        marks: list[Mark] = [Picture(*corner, to_levels(self.blend(mask)))]
        if self.style == "contour":
            marks.append(Contours(*corner, mask))
        return [*marks, *attended_boxes(caption, word, corner, self.layout.panel)]

    def move(self, marks: list[Mark], row: int, column: int) -> list[Mark]:
        """Return what `draw_attention` has drawn in one place in another, without outlines."""
        left, top = self.layout.panel_corner(row, column)
        return [replace(mark, left=left, top=top) for mark in marks if isinstance(mark, Picture | Contours)]

    def mask(self, caption: CaptionLike, word: int) -> NDArray[np.float32]:
        """Return the mask (height, width) of a word; all words of a caption share what depends on its grid alone."""
        key = id(caption)
        if key not in self.rasters:
            self.rasters[key] = Raster(caption.geometry, caption.attention.shape[1:], self.layout.panel)
        weights = caption.attention[word]  # (rows, columns)
        return visible_mask(self.rasters[key].spread(weights), weights.size)

    def draw_label(self, row: int, column: int, word: str, number: float) -> list[Mark]:
        """Return a word and a number of 0..1 above a panel."""
        layout = self.layout
        left, _ = layout.corner(row, column)
        baseline, shown = layout.baseline(row, column), f"{number:.2f}"
        room = layout.cell - text_width(shown, _SMALL_POINTS * POINT * layout.dpi) - 1.5 * layout.pixels(_MARGIN)
        return [
            Label(left + layout.cell, baseline, shown, _SMALL_POINTS, GREY, "right"),
            fitting_label(left, baseline, word, _WORD_POINTS, layout.dpi, room),
        ]

    def draw_bar(self, row: int, column: int, beta: float) -> list[Mark]:
        """Return a bar below a panel, filled from the left to a gate of 0..1."""
        left, top = self.layout.corner(row, column)
        top += self.layout.pixels(_LABEL) + self.layout.panel[1] + self.layout.pixels(_BAR_GAP)
        height = self.layout.pixels(_BAR)
        return [Bar(left, top, share * self.layout.cell, height, ink) for share, ink in ((1.0, PALE), (beta, INK))]

    def draw_word(self, row: int, column: int, caption: CaptionLike, word: int) -> list[Mark]:
        """Return all there is to show of a word: attention, probability and gate."""
        return [
            *self.draw_attention(row, column, caption, word),
            *self.draw_label(row, column, caption.words[word], float(caption.probabilities[word])),
            *self.draw_bar(row, column, float(caption.beta[word])),
        ]

    def draw_key(self, row: int, column: int, above: str | None, below: str) -> list[Mark]:
        """Say beside the plain image what the numbers and bars of the others are."""
        layout = self.layout
        left, top = layout.corner(row, column)
        right = left + layout.cell
        lower = top + layout.row_height + layout.pixels(0.045)
        places = ((layout.baseline(row, column), above), (lower, below))
        return [
            fitting_label(right, baseline, key, _SMALL_POINTS, layout.dpi, layout.cell, GREY, "right")
            for baseline, key in places
            if key
        ]


def check_figure(image: Image.Image, caption: CaptionLike, style: str, width: float, dpi: float) -> None:
    """Raise ValueError for a setting that no figure can have, or an image that the caption is not of."""
    check_style(style)
    check_page(width, dpi)
    check_size(image, caption)


def check_page(width: float, dpi: float) -> None:
    """Raise ValueError for a figure of more inches or pixels than any page has, or fewer than can be read."""
    if not 1 <= width <= 20:
        raise ValueError(f"width is {width}; it must be from 1 to 20 inches")
    if not 30 <= dpi <= 1200:
        raise ValueError(f"dpi is {dpi}; it must be from 30 to 1200")


def check_style(style: str) -> None:
    """Raise ValueError for a style that there is not."""
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; choose from {', '.join(STYLES)}")


def check_words(caption: CaptionLike) -> None:
    """Raise ValueError for a caption that is too long to draw: each word takes a picture's room."""
    letters = max(map(len, caption.words), default=0)
    if len(caption.words) > MAX_WORDS or letters > MAX_LETTERS:
        raise ValueError(
            f"the caption has {len(caption.words):,} words of up to {letters:,} letters; "
            f"at most {MAX_WORDS} words of {MAX_LETTERS} letters are drawn"
        )


def check_size(image: Image.Image, caption: CaptionLike) -> None:
    """Raise ValueError for an image that the caption is not of, or a caption that is too long to draw."""
    check_words(caption)
    # A smaller copy of the image will do, its sides rounded to pixels; one that lies on its side will not.
    original = caption.geometry
    if abs(image.width * original.height - image.height * original.width) > (original.width + original.height) / 2:
        raise ValueError(
            f"the image is {image.width} x {image.height} pixels; "
            f"the caption is of one of {original.width} x {original.height}"
        )
