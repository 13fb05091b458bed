"""Looks of hard attention: that they are drawn as probable as they are, and outlined where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, caption_of, flat, one_cell, seen_box
from PIL import Image, ImageColor

from captioner.figures.attention_samples import likeliest_regions, sample_regions, samples_figure
from captioner.figures.drawing import BRIGHT, Label, Outline, Picture, figure_bytes
from captioner.images.preprocessing import Preprocessing


def test_looks_are_as_frequent_as_their_weights() -> None:
    weights = np.array(
        [
            [[0.1, 0.2], [0.3, 0.4]],
            [
                [
                    0,
                    0,
                ],
                [1, 0],
            ],
        ]
    )
    caption = caption_of(weights, Preprocessing(SIDE).geometry(40, 40))
    looks = sample_regions(caption, 20_000, seed=1)
    assert looks.shape == (20_000, 2, 2)
    shares = np.bincount(looks[:, 0, 0] * 2 + looks[:, 0, 1], minlength=4) / 20_000
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.015)  # four standard deviations
    assert (looks[:, 1] == (1, 0)).all()


def test_seeds_decide_and_more_samples_begin_alike() -> None:
    caption = flat(5, (90, 70))
    assert np.array_equal(sample_regions(caption, 8, seed=3)[:3], sample_regions(caption, 3, seed=3))
    assert not np.array_equal(sample_regions(caption, 3, seed=3), sample_regions(caption, 3, seed=4))
    with pytest.raises(ValueError, match="samples is 0; it must be at least 1"):
        sample_regions(caption, 0)


def test_weights_that_sum_to_less_than_one_by_rounding_still_lead_inside() -> None:
    attention = np.full((1, 3, 3), np.float32(0.99 / 9))
    looks = sample_regions(caption_of(attention, Preprocessing(SIDE).geometry(30, 30)), 5_000)
    assert looks.min() == 0
    assert looks.max() == 2


def test_likeliest_look_is_the_highest_weight() -> None:
    caption = caption_of(np.concatenate([one_cell(2, 6), one_cell(6, 0)]), Preprocessing(SIDE).geometry(90, 70))
    assert likeliest_regions(caption).tolist() == [[2, 6], [6, 0]]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_outlines_lie_on_the_cells(shape: str, fitting: str, flip: bool) -> None:
    size = SIZES[shape]
    left, top, width, height = seen_box(size, FITTINGS[fitting])
    geometry = Preprocessing(SIDE, **FITTINGS[fitting], flip=flip).geometry(*size)
    caption = caption_of(np.concatenate([one_cell(2, 6), one_cell(4, 3)]), geometry)
    sheet = samples_figure(Image.new("RGB", size, (40, 40, 40)), caption, samples=2)
    outlines = [mark for mark in sheet.marks if isinstance(mark, Outline)]
    panels = [mark for mark in sheet.marks if isinstance(mark, Picture)]
    attended = [each for each in panels if each.left != panels[0].left]  # the first column is plain
    assert len(outlines) == len(attended) == 6  # two words, looked at once most likely and twice by chance
    for outline in outlines:
        panel = next(
            each for each in attended
            if each.left - 1 <= outline.left and outline.right <= each.left + each.pixels.shape[1] + 1
            and each.top - 1 <= outline.top and outline.bottom <= each.top + each.pixels.shape[0] + 1
        )  # fmt: skip
        scale = panel.pixels.shape[1] / size[0], panel.pixels.shape[0] / size[1]
        x = ((outline.left + outline.right) / 2 - panel.left) / scale[0]
        y = ((outline.top + outline.bottom) / 2 - panel.top) / scale[1]
        column = (x - left) / width * GRID[1] - 0.5
        cell = ((y - top) / height * GRID[0] - 0.5, GRID[1] - 1 - column if flip else column)
        assert cell == pytest.approx((2, 6), abs=0.2) or cell == pytest.approx((4, 3), abs=0.2)
        assert (outline.right - outline.left) / scale[0] == pytest.approx(width / GRID[1], rel=0.02)
        assert (outline.bottom - outline.top) / scale[1] == pytest.approx(height / GRID[0], rel=0.02)


def test_a_row_for_the_likeliest_and_each_sample() -> None:
    image = Image.new("RGB", (330, 220), (40, 40, 40))
    sheet = samples_figure(image, flat(3, (330, 220)), samples=4, seed=2)
    names = [
        mark.text for mark in sheet.marks if isinstance(mark, Label) and mark.text.split()[0] in ("likeliest", "sample")
    ]
    assert names == ["likeliest", "sample 1", "sample 2", "sample 3", "sample 4"]
    outlines = [mark for mark in sheet.marks if isinstance(mark, Outline)]
    assert len(outlines) == 15
    drawn = np.asarray(sheet.image())
    yellow = (drawn == ImageColor.getrgb(BRIGHT)).all(axis=2)
    for outline in outlines:
        assert yellow[round(outline.top), round((outline.left + outline.right) / 2)]
        assert yellow[round((outline.top + outline.bottom) / 2), round(outline.left)]
        assert not yellow[round((outline.top + outline.bottom) / 2), round((outline.left + outline.right) / 2)]
    for suffix in (".png", ".pdf", ".svg"):
        assert figure_bytes(sheet, suffix)


def test_no_words() -> None:
    assert samples_figure(Image.new("RGB", (30, 20)), flat(0, (30, 20))).image().size
