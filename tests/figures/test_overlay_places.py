"""From a photograph's file to the figure: attention is drawn on the very pixels that the network looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.awkward_images import ORIENTATIONS, exif, jpeg, stored
from helpers.toy_captions import FITTINGS, SIDE, caption_of, one_cell, seen_box
from numpy.typing import NDArray

from captioner.figures.animation import animation_frames
from captioner.figures.attention_samples import samples_figure
from captioner.figures.drawing import Outline, Picture, Sheet
from captioner.figures.word_grid import comparison, word_grid
from captioner.figures.word_images import word_image
from captioner.images.opening import open_image
from captioner.images.preprocessing import Preprocessing

GRID = (7, 7)
SIZES = {"landscape": (280, 190), "portrait": (190, 280), "square": (210, 210)}
GREY, MARK = (100, 100, 100), (0, 150, 105)  # of one brightness, so that a heat map does not show the mark


def brightest(pixels: NDArray[np.uint8]) -> tuple[float, float]:
    """Return the brightest coloured point of a heat map, x and y in 0..1; what was not seen is grey."""
    levels = pixels.astype(int)
    bright = np.where(levels[..., 0] - levels[..., 2] > 10, levels[..., :2].sum(axis=2), 0)
    y, x = (np.argwhere(bright >= bright.max() - 1).mean(axis=0) + 0.5) / bright.shape
    return float(x), float(y)


def panels(sheet: Sheet) -> list[NDArray[np.uint8]]:
    """Return the panels as they come out of the drawing."""
    drawn = np.asarray(sheet.image())
    found = [mark for mark in sheet.marks if isinstance(mark, Picture)]
    return [
        drawn[each.top : each.top + each.pixels.shape[0], each.left : each.left + each.pixels.shape[1]]
        for each in found
    ]


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_figures_show_the_mark_that_was_looked_at(orientation: int, fitting: str, shape: str, tmp_path: Path) -> None:
    size, preprocessing = SIZES[shape], Preprocessing(SIDE, **FITTINGS[fitting])
    left, top, width, height = seen_box(size, FITTINGS[fitting])
    row, column = orientation % 5 + 1, (orientation * 3) % 4 + 1  # nowhere near a mirror image of itself
    across, down = width / GRID[1], height / GRID[0]
    centre = left + (column + 0.5) * across, top + (row + 0.5) * down
    picture = np.full((size[1], size[0], 3), GREY, dtype=np.uint8)
    picture[round(centre[1] - down / 2) : round(centre[1] + down / 2),
            round(centre[0] - across / 2) : round(centre[0] + across / 2)] = MARK  # fmt: skip
    path = tmp_path / "photo.jpg"
    path.write_bytes(jpeg(stored(picture, orientation), exif=exif(orientation)))

    prepared = preprocessing.read(path)
    green = prepared.pixels[..., 1].astype(int) - prepared.pixels[..., 0]  # (S, S)
    cells = green.reshape(GRID[0], SIDE // GRID[0], GRID[1], SIDE // GRID[1]).mean(axis=(1, 3))
    looked = divmod(int(cells.argmax()), GRID[1])
    caption = caption_of(one_cell(*looked, GRID), prepared.geometry)
    image = open_image(path)

    found = {
        "grid": brightest(panels(word_grid(image, caption, style="heat", width=3, dpi=100))[1]),
        "word": brightest(np.asarray(word_image(image, caption, 0, style="heat"))),
        "frame": brightest(np.asarray(animation_frames(image, caption, style="heat", width=200)[1][0])[
            : round(200 * size[1] / size[0])
        ]),
        "compared": brightest(
            panels(comparison(image, (caption, caption), ("a", "b"), style="heat", width=3, dpi=100))[-1]
        ),
        "outline": _outlined(samples_figure(image, caption, samples=1, width=3, dpi=100)),
    }  # fmt: skip
    for kind, (x, y) in found.items():
        assert abs(x * size[0] - centre[0]) <= 0.5 * across, kind
        assert abs(y * size[1] - centre[1]) <= 0.5 * down, kind


def _outlined(sheet: Sheet) -> tuple[float, float]:
    outline = next(mark for mark in sheet.marks if isinstance(mark, Outline))
    panel = next(mark for mark in sheet.marks if isinstance(mark, Picture) and mark.left > sheet.width / 3)
    x = ((outline.left + outline.right) / 2 - panel.left) / panel.pixels.shape[1]
    return x, ((outline.top + outline.bottom) / 2 - panel.top) / panel.pixels.shape[0]
