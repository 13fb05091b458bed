"""All layers and heads of a decoder of attention: a row of small panels for each head, a column for each word."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.drawing import GREY, INK, POINT, Mark, Sheet, fitting_label
from captioner.figures.lettering import text_width
from captioner.figures.masks import CaptionLike
from captioner.figures.panels import Layout, Panels, check_figure
from captioner.images.geometry import Geometry

# Lengths in inches.
_MARGIN, _GAP, _LAYER_GAP, _BAND_GAP = 0.05, 0.03, 0.06, 0.12
_HEAD = 0.15  # the line of words above their columns
_NARROWEST, _WIDEST = 0.34, 0.9  # of a panel
_TALLEST = 9.0  # what the rows of a band may take together, where panels need not be narrower than the narrowest for it
_WORD_POINTS, _NAME_POINTS = 7.0, 5.5


@dataclass(frozen=True, eq=False)
class _Look:
    """A caption with the attention of one head."""

    words: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (T,)
    attention: NDArray[np.float32]  # (T, rows, columns)
    beta: NDArray[np.float32]  # (T,)
    geometry: Geometry
    points: NDArray[np.float32] | None = None
    extents: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Rows(Layout):
    """Bands of rows close to each other, names at the left, words above; a layer's rows stand a little apart."""

    names: int = 0  # pixels that names take
    heads: int = 1  # rows of a layer

    def panel_corner(self, row: int, column: int) -> tuple[int, int]:
        """Return the left and top of a panel."""
        assert self.band is not None
        band, place = divmod(row, self.band)
        left = self.pixels(_MARGIN) + self.names + column * (self.cell + self.pixels(_GAP))
        top = self.pixels(_MARGIN) + band * (self.band_height + self.pixels(_BAND_GAP)) + self.pixels(_HEAD)
        return left, top + place * (self.panel[1] + self.pixels(_GAP)) + place // self.heads * self.pixels(_LAYER_GAP)

    @property
    def band_height(self) -> int:
        """Pixels of one band, its words included."""
        assert self.band is not None
        layers = (self.band - 1) // self.heads
        return self.pixels(_HEAD) + self.band * (self.panel[1] + self.pixels(_GAP)) + layers * self.pixels(_LAYER_GAP)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the figure in pixels."""
        assert self.band is not None
        width = self.names + self.columns * (self.cell + self.pixels(_GAP)) + 2 * self.pixels(_MARGIN)
        bands = self.rows // self.band
        height = bands * self.band_height + (bands - 1) * self.pixels(_BAND_GAP) + 2 * self.pixels(_MARGIN)
        return width, height


def heads_figure(
    image: Image.Image, caption: Caption, *, style: str = "mask", width: float = 7.0, dpi: int = 200
) -> Sheet:
    """Return a figure of an upright image under the attention of every layer and head, with a column for each word.

    At most `width` inches wide; captions of more words than fit go on below. The last row is the caption's attention,
    the mean over the last layer's heads; it is the only one where there is one head. Panels are those of `word_grid`.
    Raises ValueError for a caption that does not know its heads.
    """
    check_figure(image, caption, style, width, dpi)
    if caption.heads is None:
        raise ValueError("the caption does not have its heads; make it with `captioner caption --attention all`")
    layers, heads = caption.heads.shape[1:3]
    looks: list[tuple[str, CaptionLike]] = [
        (f"layer {layer + 1}, head {head + 1}", _look(caption, caption.heads[:, layer, head]))
        for layer in range(layers)
        for head in range(heads)
    ]
    looks = [*looks, (f"mean of layer {layers}", caption)] if len(looks) > 1 else [("attention", caption)]
    layout = _fit(caption, [name for name, _ in looks], heads, width, dpi)
    panels = Panels(image, layout, style)
    marks: list[Mark] = []
    for word, text in enumerate(caption.words):
        band, column = divmod(word, layout.columns)
        left, top = layout.panel_corner(band * len(looks), column)
        marks.append(fitting_label(left, top - 0.045 * dpi, text, _WORD_POINTS, dpi, layout.cell, INK))
        for row, (_, look) in enumerate(looks):
            marks += panels.draw_attention(band * len(looks) + row, column, look, word)
    for row in range(layout.rows):
        left, top = layout.panel_corner(row, 0)
        baseline = top + layout.panel[1] / 2 + 0.35 * _NAME_POINTS * POINT * dpi
        name, room = looks[row % len(looks)][0], layout.names - layout.pixels(_GAP)
        marks.append(
            fitting_label(left - 2 * layout.pixels(_GAP), baseline, name, _NAME_POINTS, dpi, room, GREY, "right")
        )
    return Sheet(*layout.size, dpi, tuple(marks))


def _look(caption: Caption, attention: NDArray[np.float32]) -> _Look:
    return _Look(caption.words, caption.probabilities, attention, caption.beta, caption.geometry)


def _fit(caption: Caption, names: list[str], heads: int, width: float, dpi: int) -> _Rows:
    """Return rows for all names and columns for as many words as fit."""
    aspect = caption.geometry.width / caption.geometry.height
    widest = max(text_width(name, _NAME_POINTS * POINT * dpi) for name in names) / dpi + 3 * _GAP
    room, words = width - widest - 2 * _MARGIN, max(len(caption.words), 1)
    low = aspect * (_TALLEST / len(names) - _GAP)  # as wide as a panel may be for all rows to be low enough
    most = max(int(room / (_NARROWEST + _GAP)), 1)
    bands = math.ceil(words / most)
    columns = math.ceil(words / bands)
    across = max(min(room / columns - _GAP, _WIDEST, low), min(_NARROWEST, room / columns - _GAP))
    panel = max(int(across * dpi), 1), max(round(across / aspect * dpi), 1)
    return _Rows(columns, bands * len(names), panel[0], panel, dpi, len(names), math.ceil(widest * dpi), heads)
