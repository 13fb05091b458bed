"""Attention over the original pixels: that it lies where the model looked, and how it is smoothed and scaled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.awkward_images import ORIENTATIONS, exif, jpeg, stored
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, attention_map, caption_of, one_cell, seen_box
from numpy.typing import NDArray

from captioner.figures.masks import visible_mask
from captioner.images.opening import open_image
from captioner.images.preprocessing import Preprocessing


def centroid(weights: NDArray[np.float32], size: tuple[int, int]) -> tuple[float, float]:
    """Return the centre of gravity of a map (height, width), in pixels of an original of `size` (width, height)."""
    seen = np.nan_to_num(weights.astype(np.float64))
    height, width = seen.shape
    x = (seen.sum(axis=0) * (np.arange(width) + 0.5)).sum() / seen.sum() * size[0] / width
    y = (seen.sum(axis=1) * (np.arange(height) + 0.5)).sum() / seen.sum() * size[1] / height
    return x, y


# Alignment


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_weight_of_a_cell_lies_on_the_pixels_of_the_cell(shape: str, fitting: str, flip: bool) -> None:
    size = SIZES[shape]
    left, top, width, height = seen_box(size, FITTINGS[fitting])
    across, down = width / GRID[1], height / GRID[0]
    geometry = Preprocessing(SIDE, **FITTINGS[fitting], flip=flip).geometry(*size)
    for row in range(GRID[0]):
        for column in range(GRID[1]):
            place = GRID[1] - 1 - column if flip else column
            expected = left + (place + 0.5) * across, top + (row + 0.5) * down
            caption = caption_of(one_cell(row, column), geometry)
            weights = attention_map(caption, 0, (size[0], 2 * size[1]))  # a raster of another shape than the original
            x, y = centroid(weights, size)
            # Half a cell would be allowed; only at the edges is there any need for it, as the hill is mirrored there.
            inner = 2 <= place < GRID[1] - 2 and 2 <= row < GRID[0] - 2
            tolerance = 0.05 if inner else 0.35
            assert abs(x - expected[0]) <= tolerance * across
            assert abs(y - expected[1]) <= tolerance * down
            peak = np.unravel_index(np.nanargmax(weights), weights.shape)
            assert abs(peak[1] + 0.5 - expected[0]) <= 0.5 * across
            assert abs((peak[0] + 0.5) / 2 - expected[1]) <= 0.5 * down


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_attention_lies_on_the_mark_however_the_camera_was_held(
    orientation: int, fitting: str, flip: bool, tmp_path: Path
) -> None:
    """A model that looks at the brightest cell of its input must be drawn on the bright mark of the opened image."""
    preprocessing = Preprocessing(SIDE, **FITTINGS[fitting], flip=flip)
    rows, columns = grid = (7, 7)
    for number, size in enumerate(SIZES.values()):
        left, top, width, height = seen_box(size, FITTINGS[fitting])
        row, column = (1 + number, 5 - number) if number % 2 else (5 - number, 1 + number)
        x, y = round(left + column * width / columns), round(top + row * height / rows)
        far_x, far_y = round(left + (column + 1) * width / columns), round(top + (row + 1) * height / rows)
        picture = np.full((size[1], size[0], 3), 20, dtype=np.uint8)
        picture[y:far_y, x:far_x] = 240
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(stored(picture, orientation), exif=exif(orientation)))

        prepared = preprocessing.read(path)
        cells = prepared.pixels.mean(axis=2).reshape(rows, 9, columns, 9).mean(axis=(1, 3))
        looked = np.unravel_index(cells.argmax(), grid)
        caption = caption_of(one_cell(int(looked[0]), int(looked[1]), grid), prepared.geometry)

        image = open_image(path)
        weights = attention_map(caption, 0, image.size)
        assert weights.shape == np.asarray(image).shape[:2]
        found = centroid(weights, size)
        assert abs(found[0] - (x + far_x) / 2) <= 0.5 * width / columns
        assert abs(found[1] - (y + far_y) / 2) <= 0.5 * height / rows
        bright = np.asarray(image).mean(axis=2) > 130
        inside, outside = np.nanmean(weights[bright]), np.nanmean(weights[~bright])
        assert inside > 5 * outside


@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_only_what_was_cut_off_is_missing(shape: str, fitting: str) -> None:
    width, height = size = SIZES[shape]
    left, top, seen_width, seen_height = seen_box(size, FITTINGS[fitting])
    geometry = Preprocessing(SIDE, **FITTINGS[fitting]).geometry(*size)
    weights = attention_map(caption_of(np.full((1, *GRID), 1 / 63), geometry), 0, size)
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    seen = np.outer((y >= top) & (y < top + seen_height), (x >= left) & (x < left + seen_width))
    assert np.array_equal(np.isnan(weights), ~seen)


# Smoothing and scaling


def test_uniform_attention_stays_uniform_and_no_weight_is_lost() -> None:
    for grid in ((1, 1), (2, 3), (9, 9), (14, 14)):
        cells = grid[0] * grid[1]
        geometry = Preprocessing(SIDE, "crop").geometry(300, 200)
        even = attention_map(caption_of(np.full((1, *grid), 1 / cells), geometry), 0, (300, 200))
        assert even[~np.isnan(even)] == pytest.approx(1 / cells, rel=1e-5)
        weights = np.random.default_rng(cells).dirichlet(np.full(cells, 0.3)).reshape(1, *grid)
        spread = attention_map(caption_of(weights, geometry), 0, (300, 200))
        assert np.nanmin(spread) >= 0
        assert np.nanmax(spread) <= weights.max() + 1e-6
        assert np.nanmean(spread) == pytest.approx(1 / cells, rel=0.02)


def test_map_is_smooth_and_the_same_at_any_resolution() -> None:
    caption = caption_of(one_cell(3, 4), Preprocessing(SIDE).geometry(360, 280))
    fine, coarse = attention_map(caption, 0, (360, 280)), attention_map(caption, 0, (36, 28))
    assert np.abs(fine.reshape(28, 10, 36, 10).mean(axis=(1, 3)) - coarse).max() < 0.02 * coarse.max()
    steps = np.abs(np.diff(fine, axis=1)).max()
    assert steps < 0.03 * fine.max()  # no edges of cells, which are 40 pixels wide


def test_words_are_counted_from_the_first() -> None:
    caption = caption_of(np.concatenate([one_cell(0, 0), one_cell(6, 8)]), Preprocessing(SIDE).geometry(90, 70))
    assert attention_map(caption, 0, (90, 70)).argmax() < 90 * 35 < attention_map(caption, 1, (90, 70)).argmax()
    with pytest.raises(ValueError, match=r"size is \(90, 0\); it must be at least 1 x 1 pixels"):
        attention_map(caption, 0, (90, 0))


def test_peaked_attention_takes_the_whole_range_and_nearly_uniform_attention_little_of_it() -> None:
    cells = 4
    peaked = np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)  # differ by more than 1/4
    assert visible_mask(peaked, cells).ravel().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1], abs=1e-6)
    missing = np.array([[np.nan, 0.2], [0.3, 0.6]], dtype=np.float32)
    assert visible_mask(missing, cells).ravel().tolist() == pytest.approx([np.nan, 0, 0.25, 1], abs=1e-6, nan_ok=True)
    slight = np.array([[0.24, 0.25], [0.25, 0.26]], dtype=np.float32)  # by 8 % of it
    assert visible_mask(slight, cells).ravel().tolist() == pytest.approx([0.46, 0.5, 0.5, 0.54], abs=1e-6)
    assert (visible_mask(np.full((2, 2), 0.25, dtype=np.float32), cells) == 0.5).all()
    # The two rules meet where the weights differ by 1/4 exactly.
    either = [visible_mask(np.array([[0.2, 0.2 + by]], dtype=np.float32), cells) for by in (0.2499, 0.2501)]
    assert either[0] == pytest.approx(either[1], abs=1e-3)
    nothing = np.full((2, 2), np.nan, dtype=np.float32)
    assert np.isnan(visible_mask(nothing, cells)).all()
