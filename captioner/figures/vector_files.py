"""Sheets as matplotlib figures, and these as files: PDF and SVG whose text is text, in fonts that a PDF carries."""

from __future__ import annotations

import io
import threading
import warnings
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from captioner.figures.drawing import BRIGHT, INK, PAPER, Bar, Contours, Label, Outline, Picture, Sheet, Trace
from captioner.figures.lettering import font_families, visual_order
from captioner.figures.masks import CONTOURS, RIM

# Vector files keep their text as text and are the same each time.
_SETTINGS: Any = {
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "captioner",
    "image.composite_image": False,
    "savefig.bbox": "standard",
}
_METADATA: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_lock = threading.Lock()  # matplotlib's settings, fonts and our filter of its warnings are global
_LAYS_OUT = matplotlib.__version_info__ >= (3, 11)  # before, text ran from left to right whatever its letters


def matplotlib_bytes(drawing: Sheet | Figure, suffix: str) -> bytes:
    """Return what matplotlib makes of a sheet or a figure: the contents of a ".png", ".pdf" or ".svg" file."""
    buffer = io.BytesIO()
    with _lock, matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A character that no font has is an empty box in a PDF; a reader of SVG may have one.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        # What shows SVG lays text out itself.
        reorder = not _LAYS_OUT and suffix != ".svg"
        figure = make_figure(drawing, reorder=reorder) if isinstance(drawing, Sheet) else drawing
        figure.savefig(buffer, format=suffix[1:], dpi=figure.dpi, metadata=_METADATA[suffix])
    return buffer.getvalue()


def make_figure(sheet: Sheet, *, reorder: bool) -> Figure:
    """Return a matplotlib figure of a sheet, known to no pyplot; its axes' units are the sheet's pixels.

    `reorder` puts right-to-left text into the order of its glyphs, for what draws from left to right.
    """
    figure = Figure(figsize=(sheet.width / sheet.dpi, sheet.height / sheet.dpi), dpi=sheet.dpi, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    axes.set_xlim(0, sheet.width)
    axes.set_ylim(sheet.height, 0)
    for order, mark in enumerate(sheet.marks):
        if isinstance(mark, Picture):
            _add_picture(axes, mark, order)
        elif isinstance(mark, Contours):
            _add_contours(axes, mark, order)
        elif isinstance(mark, Bar):
            box = Rectangle((mark.left, mark.top), mark.width, mark.height, facecolor=mark.colour, linewidth=0)
            axes.add_patch(box).set_zorder(order)
        elif isinstance(mark, Outline):
            _add_outline(axes, mark, order, sheet.dpi)
        elif isinstance(mark, Trace):
            for colour, points in ((INK, 2 * mark.points), (BRIGHT, mark.points)):
                axes.plot(*zip(*mark.places, strict=True), color=colour, linewidth=points, zorder=order)
        else:
            _add_label(axes, mark, len(sheet.marks), reorder)
    return figure


def _add_picture(axes: Axes, mark: Picture, order: int) -> None:
    height, width = mark.pixels.shape[:2]
    extent = (mark.left, mark.left + width, mark.top + height, mark.top)
    axes.imshow(mark.pixels, extent=extent, aspect="auto", origin="upper", interpolation="none", zorder=order)


def _add_contours(axes: Axes, mark: Contours, order: int) -> None:
    height, width = mark.mask.shape
    if min(height, width) < 2:  # no room for lines
        return
    across, down = np.arange(width) + mark.left + 0.5, np.arange(height) + mark.top + 0.5
    widths = list(CONTOURS.values())
    rims = [each + RIM for each in widths]
    lines = axes.contour(across, down, mark.mask, levels=list(CONTOURS), colors=INK, linewidths=rims, zorder=order)
    bright = PathCollection(lines.get_paths(), facecolors="none", edgecolors=BRIGHT, linewidths=widths, zorder=order)
    bright.set_transform(axes.transData)
    axes.add_collection(bright, autolim=False)


def _add_outline(axes: Axes, mark: Outline, order: int, dpi: int) -> None:
    inset = mark.points / 144 * dpi  # half of the line, which lies inside
    corner = mark.left + inset, mark.top + inset
    width, height = mark.right - mark.left - 2 * inset, mark.bottom - mark.top - 2 * inset
    for colour, points in ((INK, 2 * mark.points), (BRIGHT, mark.points)):
        frame = Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=points, joinstyle="miter")
        axes.add_patch(frame).set_zorder(order)


def _add_label(axes: Axes, mark: Label, order: int, reorder: bool) -> None:
    text = visual_order(mark.text) if reorder else mark.text
    # A dollar sign in a caption is money.
    axes.text(
        mark.x, mark.baseline, text, fontsize=mark.points, color=mark.colour, va="baseline", zorder=order,
        ha="center" if mark.side == "middle" else mark.side, parse_math=False, usetex=False, clip_on=False,
        family=font_families(mark.text),
    )  # fmt: skip
