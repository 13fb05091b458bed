"""Figures of a report: charts as SVG within the page, in its colours and once more for narrow screens, and as files."""

from __future__ import annotations

import base64
import io
import re
import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from captioner.evaluation.report.charts import COLOURS
from captioner.evaluation.report.html import Html, tag
from captioner.figures.drawing import GREY, INK, PALE, PAPER, figure_bytes, save_figure

FIGURES = "figures"  # the folder beside the page
SUFFIXES = (".svg", ".pdf")
NARROW = 3.6  # inches, about as wide as a telephone's screen is read
_LONGEST_LABEL = 42  # characters along an axis of that width
_QUALITY = 82
# Colours of charts by the names that the page's style gives them, for it to be light or dark.
_NAMES = {
    "#000000": "--chart-ink",
    INK: "--chart-ink",
    GREY: "--chart-grey",
    PALE: "--chart-pale",
    PAPER: "--chart-paper",
    **{colour: f"--chart-{number}" for number, colour in enumerate(COLOURS, start=1)},
}
_OWN = re.compile(r"(lengths|attention)-\w+\.(svg|pdf)|(system-\d+-)?(best|median|worst)-\d+\.png")
_COLOUR = re.compile("|".join(_NAMES))
_NEEDLESS = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)
_FONT = re.compile(r" font-family: [^;\"]*;?| font: [^;\"]*;")
_ID = re.compile(r' id="([^"]*)"')


class Charts:
    """Puts charts into a page, and their files into the folder `figures` beside it, where an earlier report's go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FIGURES
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if _OWN.fullmatch(old.name):
                old.unlink()

    def add(self, name: str, figure: Figure, alt: str, caption: str, *, half: bool = False) -> Html:
        """Return a chart with what it shows, told by `alt` with numbers to who does not see it; write its files.

        Where it takes `half` the page's width, it is drawn for narrow screens alone.
        """
        for suffix in SUFFIXES:
            save_figure(figure, self.folder / f"{name}{suffix}")
        drawings = []
        if not half:
            wide = inline_svg(figure_bytes(figure, ".svg").decode(), f"{name}-wide")
            drawings.append(tag("div", wide, class_="wide", aria_hidden="true"))
        _make_narrow(figure)
        narrow = inline_svg(figure_bytes(figure, ".svg").decode(), f"{name}-narrow")
        drawings.append(tag("div", narrow, class_=None if half else "narrow", aria_hidden="true"))
        drawing = tag("div", *drawings, role="img", aria_label=alt)
        return tag("figure", drawing, tag("figcaption", caption), class_="chart")


def inline_svg(svg: str, key: str) -> Html:
    """Return a matplotlib SVG as part of a page: without names of its own, in the page's colours and font."""
    root = re.search(r'<svg[^>]*(viewBox="[^"]*")[^>]*>', svg)
    if root is None:
        raise ValueError(f"{svg[:40]!r} is no SVG with a viewBox")
    svg = _NEEDLESS.sub("", svg[root.end() :])
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = _ID.sub(lambda match: f' id="{key}-{match[1]}"' if match[1] in used else "", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{key}-', svg).replace("url(#", f"url(#{key}-")
    svg = _COLOUR.sub(lambda match: f"var({_NAMES[match[0]]})", _FONT.sub("", svg))
    return Html(f'<svg {root[1]} focusable="false">{svg.strip()}')


def jpeg(image: Image.Image) -> str:
    """Return an RGB image as a data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _make_narrow(figure: Figure) -> None:
    """Put a figure's panels below each other, and its names too where they are long."""
    panels = figure.axes
    height = figure.get_size_inches()[1]
    figure.set_size_inches(NARROW, height * (0.85 * len(panels) if len(panels) > 1 else 0.9))
    grid = figure.add_gridspec(len(panels), 1)
    for place, axes in enumerate(panels):
        axes.set_subplotspec(grid[place, 0])
        axes.tick_params(axis="x", labelsize=6.5)
        axes.set_xlabel(textwrap.fill(axes.get_xlabel(), _LONGEST_LABEL), parse_math=False)
    for legend in list(figure.legends):
        names = [text.get_text() for text in legend.get_texts()]
        handles = [handle for handle in legend.legend_handles if handle is not None]
        legend.remove()
        columns = 1 if sum(map(len, names)) + 4 * len(names) > _LONGEST_LABEL else len(names)
        new = figure.legend(handles, names, loc="outside upper center", ncols=columns, fontsize=8, frameon=False)
        for text in new.get_texts():
            text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
