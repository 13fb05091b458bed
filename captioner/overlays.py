"""Figures of captions: the image once plain, then once for each word under the attention it was chosen with."""

from __future__ import annotations

import io
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from captioner.files import write_whole
from captioner.images import to_rgb
from captioner.masks import STYLES, CaptionLike, blend, visible_mask
from captioner.masks import attention_map as attention_map

SUFFIXES = (".png", ".pdf", ".svg")

# Lengths in inches.
_SIDE, _SIDE_PER_WIDTH = 0.45, 0.085  # of a square panel, the larger the wider the figure; other shapes get its area
_SIZES = (0.75, 1.35)  # how much smaller or larger panels may be, to fill the last row
_LARGEST_SIDE = 1.7  # of a square panel where there are few words
_LONGEST_SIDE = 3.0
_NARROWEST_CELL = 0.7  # holds a word even above a panel that is narrower
_MARGIN, _GAP, _ROW_GAP = 0.04, 0.08, 0.10
_LABEL = 0.16  # the line above a panel
_BAR_GAP, _BAR = 0.03, 0.03  # below it

_WORD_POINTS, _SMALL_POINTS = 7.5, 5.5
_INK, _GREY, _PALE, _CONTOUR = "#1a1a1a", "#707070", "#dedede", "#ffe14d"
_CONTOURS = {0.6: 0.5, 0.75: 0.8, 0.9: 1.1}  # levels of the mask, and the widths of their lines

# Vector files keep their text as text and are the same each time.
_VECTOR_SETTINGS: Any = {
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "captioner",
    "image.composite_image": False,
    "savefig.bbox": "standard",
}
_vector_lock = threading.Lock()  # matplotlib's settings are global


@dataclass(frozen=True)
class _Layout:
    """Where panels lie, in whole pixels, so that they are drawn as they were computed."""

    columns: int
    rows: int
    cell: int  # what a panel and its label may take across
    panel: tuple[int, int]  # width and height
    dpi: int

    @classmethod
    def fit(cls, panels: int, aspect: float, width: float, dpi: int) -> _Layout:
        """Return rows and columns for so many panels of an aspect ratio, at most `width` inches across."""
        wanted = max((_SIDE + _SIDE_PER_WIDTH * width) * math.sqrt(aspect), _NARROWEST_CELL)

        def cell(columns: int) -> float:
            return max((width - 2 * _MARGIN - (columns - 1) * _GAP) / columns, 1 / dpi)

        def cost(columns: int) -> tuple[float, float]:
            ratio = cell(columns) / wanted
            empty = -panels % columns if _SIZES[0] <= ratio <= _SIZES[1] else math.inf
            return empty, abs(math.log(ratio))

        columns = min(range(1, panels + 1), key=cost)
        across = min(cell(columns), _LARGEST_SIDE * math.sqrt(aspect), _LONGEST_SIDE * aspect)
        panel = max(int(across * dpi), 1), max(round(across / aspect * dpi), 1)
        narrowest = int(min(cell(columns), _NARROWEST_CELL) * dpi)
        return cls(columns, math.ceil(panels / columns), max(panel[0], narrowest), panel, dpi)

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
        height = self.rows * (self.row_height + self.pixels(_ROW_GAP))
        return width + 2 * self.pixels(_MARGIN), height + self.pixels(_MARGIN)

    def corner(self, index: int) -> tuple[int, int]:
        """Return the left and top of a panel's label."""
        row, column = divmod(index, self.columns)
        left, top = column * (self.cell + self.pixels(_GAP)), row * (self.row_height + self.pixels(_ROW_GAP))
        return left + self.pixels(_MARGIN), top + self.pixels(_MARGIN)

    def panel_corner(self, index: int) -> tuple[int, int]:
        """Return the left and top of a panel, which stands in the middle of a cell that is wider."""
        left, top = self.corner(index)
        return left + (self.cell - self.panel[0]) // 2, top + self.pixels(_LABEL)


def word_grid(
    image: Image.Image, caption: CaptionLike, *, style: str = "mask", width: float = 7.0, dpi: int = 200
) -> Figure:
    """Return a figure of an upright image: first plain, then under the attention of each word, in reading order.

    At most `width` inches wide. Above each panel stand the word and its probability, below it a bar for its gate beta,
    0..1 from left to right. `style` is "mask" (bright and coloured where the word looked, the rest dim and grey),
    "heat" (a colour scale over the grey image) or "contour" (lines around the highest weights). Each word's attention
    is shown from its own lowest to its own highest weight, but if these differ by less than uniform attention weighs,
    with as much less contrast (see `captioner.masks.visible_mask`): uniform attention is flat. What the network did not
    see is pale and hatched. Glyphs that DejaVu Sans lacks are taken from matplotlib's `font.sans-serif` setting.
    """
    _check(image, caption, style, width, dpi)
    geometry = caption.geometry
    layout = _Layout.fit(len(caption.words) + 1, geometry.width / geometry.height, width, dpi)
    small = to_rgb(image).resize(layout.panel, Image.Resampling.LANCZOS, reducing_gap=3.0)
    plain = np.asarray(small).astype(np.float32) / np.float32(255)  # (height, width, 3)
    figure, axes = _blank_figure(layout)
    _draw_panel(axes, layout, 0, plain)
    if caption.words:
        _draw_key(axes, layout)
    for index, word in enumerate(caption.words):
        weights = attention_map(caption, index, layout.panel)  # (height, width)
        mask = visible_mask(weights, caption.attention[index].size)  # (height, width)
        _draw_panel(axes, layout, index + 1, blend(plain, mask, style, dpi))
        if style == "contour":
            _draw_contours(axes, layout, index + 1, mask)
        _draw_label(axes, layout, index + 1, word, float(caption.probabilities[index]))
        _draw_bar(axes, layout, index + 1, float(caption.beta[index]))
    return figure


def _check(image: Image.Image, caption: CaptionLike, style: str, width: float, dpi: int) -> None:
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; choose from {', '.join(STYLES)}")
    if not 1 <= width <= 20:
        raise ValueError(f"width is {width}; it must be from 1 to 20 inches")
    if not 30 <= dpi <= 1200:
        raise ValueError(f"dpi is {dpi}; it must be from 30 to 1200")
    # A smaller copy of the image will do, its sides rounded to pixels; one that lies on its side will not.
    original = caption.geometry
    if abs(image.width * original.height - image.height * original.width) > (original.width + original.height) / 2:
        raise ValueError(
            f"the image is {image.width} x {image.height} pixels; "
            f"the caption is of one of {original.width} x {original.height}"
        )


def _blank_figure(layout: _Layout) -> tuple[Figure, Axes]:
    """Return a new figure with axes all over it, whose units are pixels from the top left."""
    width, height = layout.size
    figure = Figure(figsize=(width / layout.dpi, height / layout.dpi), dpi=layout.dpi, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    return figure, axes


def _draw_panel(axes: Axes, layout: _Layout, index: int, pixels: NDArray[np.float32]) -> None:
    left, top = layout.panel_corner(index)
    width, height = layout.panel
    levels = np.round(pixels * 255).astype(np.uint8)  # a quarter of the memory
    extent = (left, left + width, top + height, top)
    axes.imshow(levels, extent=extent, aspect="auto", origin="upper", interpolation="none")


def _draw_contours(axes: Axes, layout: _Layout, index: int, mask: NDArray[np.float32]) -> None:
    left, top = layout.panel_corner(index)
    height, width = mask.shape
    if min(height, width) < 2:  # no room for lines
        return
    across, down = np.arange(width) + left + 0.5, np.arange(height) + top + 0.5
    widths = list(_CONTOURS.values())
    lines = axes.contour(across, down, mask, levels=list(_CONTOURS), colors=_INK, linewidths=[w + 0.7 for w in widths])
    bright = PathCollection(lines.get_paths(), facecolors="none", edgecolors=_CONTOUR, linewidths=widths, zorder=3)
    bright.set_transform(axes.transData)
    axes.add_collection(bright, autolim=False)


def _write(axes: Axes, x: float, y: float, words: str, points: float, colour: str, side: str) -> Text:
    # A dollar sign in a caption is money.
    return axes.text(
        x, y, words, fontsize=points, color=colour, ha=side, va="baseline", parse_math=False, usetex=False,
        family=["DejaVu Sans", "sans-serif"], clip_on=False,
    )  # fmt: skip


def _draw_label(axes: Axes, layout: _Layout, index: int, word: str, probability: float) -> None:
    left, top = layout.corner(index)
    right, baseline = left + layout.cell, top + 0.7 * layout.pixels(_LABEL)
    number = _write(axes, right, baseline, f"{probability:.2f}", _SMALL_POINTS, _GREY, "right")
    text = _write(axes, left, baseline, word, _WORD_POINTS, _INK, "left")
    _shrink(text, _WORD_POINTS, layout.cell - number.get_window_extent().width - layout.pixels(_MARGIN))


def _shrink(text: Text, points: float, room: float) -> None:
    """Make a text of so many points small enough for so many pixels across."""
    needed = text.get_window_extent().width
    if needed > room:
        text.set_fontsize(points * max(room, 1) / needed)


def _draw_bar(axes: Axes, layout: _Layout, index: int, beta: float) -> None:
    left, top = layout.corner(index)
    top += layout.pixels(_LABEL) + layout.panel[1] + layout.pixels(_BAR_GAP)
    height = layout.pixels(_BAR)
    for share, colour in ((1.0, _PALE), (beta, _INK)):
        axes.add_patch(Rectangle((left, top), share * layout.cell, height, facecolor=colour, linewidth=0))


def _draw_key(axes: Axes, layout: _Layout) -> None:
    """Say beside the plain image what the numbers and bars of the others are."""
    left, top = layout.corner(0)
    above, below = top + 0.7 * layout.pixels(_LABEL), top + layout.row_height + layout.pixels(0.045)
    for baseline, key in ((above, "probability"), (below, "bar: gate β, 0 to 1")):
        text = _write(axes, left + layout.cell, baseline, key, _SMALL_POINTS, _GREY, "right")
        _shrink(text, _SMALL_POINTS, layout.cell)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as the PNG, PDF or SVG that the suffix asks for, whole or not at all, the same bytes each time."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path.name!r} has the suffix {path.suffix!r}; choose from {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    if suffix == ".png":
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])  # figures are opaque
        # A stronger compression takes four times as long for 5 % of the bytes.
        drawn.save(buffer, "PNG", compress_level=2, dpi=(figure.dpi, figure.dpi))
    else:
        metadata: dict[str, Any] = {"CreationDate": None} if suffix == ".pdf" else {"Date": None}
        with _vector_lock, matplotlib.rc_context(_VECTOR_SETTINGS):
            figure.savefig(buffer, format=suffix[1:], dpi=figure.dpi, metadata=metadata)
    write_whole(path, buffer.getvalue())
