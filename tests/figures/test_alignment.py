"""Tables of words against regions, rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.toy_captions import GRID, SIDE, caption_of, flat, one_cell

from captioner.figures.alignment import alignment_matrix, marginals, word_alignment
from captioner.figures.drawing import Label, Picture, Sheet, figure_bytes
from captioner.figures.masks import colour_scale, to_levels
from captioner.images.preprocessing import Preprocessing


def tables(sheet: Sheet) -> list[Picture]:
    """Return the three tables and their colour scales, in turn."""
    return [mark for mark in sheet.marks if isinstance(mark, Picture)]


@pytest.mark.parametrize("flip", [False, True])
def test_weights_by_region_row_and_column(flip: bool) -> None:
    attention = np.concatenate([one_cell(2, 6), 0.25 * one_cell(0, 0) + 0.75 * one_cell(0, 8)])
    found = marginals(caption_of(attention, Preprocessing(SIDE, flip=flip).geometry(90, 70)))
    mirrored = (lambda column: 8 - column) if flip else (lambda column: column)
    assert found.regions.shape == (2, 63)
    assert found.regions[0, 2 * 9 + mirrored(6)] == 1
    assert found.rows[0].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert found.columns[0].argmax() == mirrored(6)
    assert found.columns[1][mirrored(8)] == 0.75
    for table in (found.regions, found.rows, found.columns):
        assert table.sum(axis=1) == pytest.approx([1, 1])


def test_tables_show_the_weights() -> None:
    attention = np.random.default_rng(0).dirichlet(np.full(63, 0.3), 4).reshape(4, *GRID).astype(np.float32)
    caption = caption_of(attention, Preprocessing(SIDE).geometry(90, 70))
    sheet = alignment_matrix(caption)
    expected = marginals(caption)
    colours = to_levels(colour_scale())
    for picture, weights in zip(tables(sheet)[::2], (expected.regions, expected.rows, expected.columns), strict=True):
        height, width = (side // cells for side, cells in zip(picture.pixels.shape, weights.shape, strict=False))
        centres = picture.pixels[height // 2 :: height, width // 2 :: width]
        assert np.array_equal(centres, colours[np.rint(weights / weights.max() * 255).astype(int)])


@pytest.mark.parametrize("width", [1.5, 3.3, 7.0])
@pytest.mark.parametrize("grid", [(1, 1), (9, 9), (14, 14), (2, 30)])
def test_everything_lies_on_the_sheet_apart(grid: tuple[int, int], width: float) -> None:
    attention = np.full((12, *grid), 1 / (grid[0] * grid[1]))
    sheet = alignment_matrix(caption_of(attention, Preprocessing(SIDE).geometry(90, 70)), width=width, dpi=150)
    boxes = [
        (each.left, each.top, each.left + each.pixels.shape[1], each.top + each.pixels.shape[0])
        for each in tables(sheet)
    ]
    assert len(boxes) == 6
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= sheet.width
        assert 0 <= top < bottom <= sheet.height
        for other in boxes[number + 1 :]:
            assert other[0] >= right or other[1] >= bottom or other[2] <= left
    if width == 7:
        assert sheet.width <= 7 * 150
    assert figure_bytes(sheet, ".png")


def test_words_stand_beside_their_lines() -> None:
    caption = caption_of(
        np.full((3, *GRID), 1 / 63), Preprocessing(SIDE).geometry(90, 70), ("a", "$x$", "incomprehensibilities")
    )
    sheet = alignment_matrix(caption, width=3.3)
    words = [mark for mark in sheet.marks if isinstance(mark, Label) and mark.text in caption.words]
    assert [word.text for word in words] == list(caption.words)
    table = tables(sheet)[0]
    line = table.pixels.shape[0] / 3
    for index, word in enumerate(words):
        assert table.top + index * line < word.baseline < table.top + (index + 1) * line
        assert word.x < table.left


def test_no_words_and_wrong_settings() -> None:
    assert figure_bytes(alignment_matrix(flat(0, (30, 20))), ".png")
    with pytest.raises(ValueError, match=r"width is 0.5; it must be from 1 to 20 inches"):
        alignment_matrix(flat(1, (30, 20)), width=0.5)
    with pytest.raises(ValueError, match="dpi is 5000; it must be from 30 to 1200"):
        alignment_matrix(flat(1, (30, 20)), dpi=5000)


def test_a_table_of_words_against_words() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 2).astype(np.float32)
    sources = ["a", "considerably", "b"]
    sheet = word_alignment(["ein", "beträchtlich"], sources, weights)
    labels = {mark.text: mark for mark in sheet.marks if isinstance(mark, Label)}
    assert {"ein", "beträchtlich", *sources} <= labels.keys()
    picture, _ = tables(sheet)
    colours = to_levels(colour_scale())
    for row in range(2):
        for column, source in enumerate(sources):  # under the middle of its word
            x = int(labels[source].x) - picture.left
            y = int((row + 0.5) * picture.pixels.shape[0] / 2)
            shade = int(np.rint(weights[row, column] / weights.max() * 255))
            assert np.array_equal(picture.pixels[y, x], colours[shade])
    assert picture.left + picture.pixels.shape[1] <= sheet.width


def test_a_table_of_words_needs_a_weight_for_each() -> None:
    with pytest.raises(ValueError, match=r"weights are \(2, 3\)"):
        word_alignment(["one"], ["eins"], np.zeros((2, 3), np.float32))
