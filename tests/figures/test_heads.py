"""The figure of all layers and heads: that each panel shows its own head and word, at its own place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.toy_captions import GRID, SIDE, caption_of
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.drawing import Label, Picture, figure_bytes
from captioner.figures.heads import heads_figure
from captioner.images.preprocessing import Preprocessing


def make_caption(words: int, layers: int, heads: int, size: tuple[int, int] = (330, 220)) -> Caption:
    """A caption whose every word looks at a cell of its own in every head; the mean is what it is."""
    looks = np.zeros((words, layers, heads, *GRID), dtype=np.float32)
    for index, place in enumerate(np.ndindex(words, layers, heads)):
        looks[(*place, *divmod(index * 11 % 63, GRID[1]))] = 1
    return replace(caption_of(looks[:, -1].mean(axis=1), Preprocessing(SIDE).geometry(*size)), heads=looks)


def brightest(panel: Picture) -> tuple[float, float]:
    """Return the row and column of a grid where a panel of the mask style over a flat image is brightest."""
    levels = panel.pixels.astype(float).sum(axis=2)
    row, column = np.unravel_index(levels.argmax(), levels.shape)
    return (row + 0.5) / levels.shape[0] * GRID[0] - 0.5, (column + 0.5) / levels.shape[1] * GRID[1] - 0.5


@pytest.mark.parametrize("size", [(330, 220), (172, 244), (500, 60)])
def test_each_panel_shows_its_head_and_word(size: tuple[int, int]) -> None:
    caption = make_caption(4, 2, 3, size)
    assert caption.heads is not None
    sheet = heads_figure(Image.new("RGB", size, (180, 180, 180)), caption)
    panels = [mark for mark in sheet.marks if isinstance(mark, Picture)]
    assert len(panels) == 4 * (2 * 3 + 1)
    columns, rows = sorted({panel.left for panel in panels}), sorted({panel.top for panel in panels})
    assert (len(columns), len(rows)) == (4, 7)
    for panel in panels:
        row = rows.index(panel.top)
        if row < 6:  # below these are means
            expected = np.unravel_index(caption.heads[columns.index(panel.left), row // 3, row % 3].argmax(), GRID)
            assert brightest(panel) == pytest.approx(expected, abs=0.6)
    names = [mark.text for mark in sheet.marks if isinstance(mark, Label) and mark.side == "right"]
    assert names[:2] == ["layer 1, head 1", "layer 1, head 2"]
    assert names[-2:] == ["layer 2, head 3", "mean of layer 2"]


def test_nothing_overlaps_or_leaves_the_sheet() -> None:
    for words, layers, heads, width in ((1, 1, 1, 3.3), (11, 3, 8, 7.0), (30, 6, 8, 7.0), (12, 2, 4, 1.5)):
        sheet = heads_figure(Image.new("RGB", (330, 220)), make_caption(words, layers, heads), width=width, dpi=100)
        panels = [mark for mark in sheet.marks if isinstance(mark, Picture)]
        assert len(panels) == words * (layers * heads + (layers * heads > 1))
        covered = np.zeros((sheet.height, sheet.width), dtype=int)
        for panel in panels:
            height, across = panel.pixels.shape[:2]
            part = covered[panel.top : panel.top + height, panel.left : panel.left + across]
            assert part.shape == (height, across), "a panel leaves the sheet"
            part += 1
        assert covered.max() == 1, "panels overlap"
        assert sheet.width <= width * 100 + 1
    assert figure_bytes(sheet, ".svg")


def test_a_caption_without_heads_says_how_to_get_them() -> None:
    plain = replace(make_caption(2, 1, 1), heads=None)
    with pytest.raises(ValueError, match=r"^the caption does not have its heads; .* --attention all`$"):
        heads_figure(Image.new("RGB", (330, 220)), plain)


def test_no_words() -> None:
    caption = make_caption(1, 2, 2)
    assert caption.heads is not None
    none = replace(caption, words=(), probabilities=caption.probabilities[:0], beta=caption.beta[:0],
                   attention=caption.attention[:0], heads=caption.heads[:0])  # fmt: skip
    assert heads_figure(Image.new("RGB", (330, 220)), none).image().size
