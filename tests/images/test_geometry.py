"""The way back from the cells of the network's grid to the pixels of the original."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.awkward_images import ORIENTATIONS, encode, exif, jpeg, record_reductions, stored
from PIL import Image

from captioner.images.geometry import Geometry
from captioner.images.preprocessing import Prepared, Preprocessing

SIZES = {"landscape": (900, 600), "portrait": (430, 610), "square": (500, 500), "panorama": (1000, 90)}
FITTINGS = {
    "squash": Preprocessing(56),
    "crop": Preprocessing(56, "crop"),
    "crop of a larger one": Preprocessing(56, "crop", resize=64),
}


def assert_on_mark(prepared: Prepared, mark: tuple[float, float], grid: tuple[int, int] = (7, 7)) -> None:
    """Check that the brightest cell of the network's input lies on a mark, given by its centre in the original."""
    rows, columns = grid
    size = prepared.pixels.shape[0]
    cells = prepared.pixels.mean(axis=2).reshape(rows, size // rows, columns, size // columns).mean(axis=(1, 3))
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    left, top, right, bottom = prepared.geometry.cell_box(int(row), int(column), grid)
    assert abs((left + right) / 2 - mark[0]) <= 0.52 * (right - left)
    assert abs((top + bottom) / 2 - mark[1]) <= 0.52 * (bottom - top)


def marked(size: tuple[int, int], preprocessing: Preprocessing, seed: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Return a dark picture with a bright mark, about as large as a cell, where the network sees it; and its centre."""
    width, height = size
    seen_width, seen_height = size
    if preprocessing.fit == "crop":
        seen_width = seen_height = min(size) * preprocessing.size / (preprocessing.resize or preprocessing.size)
    chance = np.random.default_rng(seed)
    mark_width, mark_height = max(round(seen_width / 7), 1), max(round(seen_height / 7), 1)
    left = round((width - seen_width) / 2 + chance.uniform(0, seen_width - mark_width))
    top = round((height - seen_height) / 2 + chance.uniform(0, seen_height - mark_height))
    picture = np.full((height, width, 3), 20, dtype=np.uint8)
    picture[top : top + mark_height, left : left + mark_width] = 240
    return picture, (left + mark_width / 2, top + mark_height / 2)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_cells_lie_on_the_mark(shape: str, fitting: str, flip: bool) -> None:
    base = FITTINGS[fitting]
    preprocessing = Preprocessing(base.size, base.fit, base.resize, flip=flip)
    for seed in range(9):
        picture, mark = marked(SIZES[shape], preprocessing, seed)
        assert_on_mark(preprocessing.apply(Image.fromarray(picture)), mark)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_cells_lie_on_the_mark_however_the_camera_was_held(
    orientation: int, fitting: str, flip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reductions = record_reductions(monkeypatch)
    base = FITTINGS[fitting]
    preprocessing = Preprocessing(base.size, base.fit, base.resize, flip=flip)
    for seed, size in enumerate(SIZES.values()):
        picture, mark = marked(size, preprocessing, seed)
        held = stored(picture, orientation)
        for data in (jpeg(held, exif=exif(orientation)), encode(held, "TIFF", tiffinfo={274: orientation})):
            prepared = preprocessing.read(data)
            assert (prepared.geometry.width, prepared.geometry.height) == size
            assert_on_mark(prepared, mark)
    assert set(reductions) >= {1, 2, 4}


def test_cells_tile_the_part_that_is_seen() -> None:
    chance = np.random.default_rng(0)
    for _ in range(300):
        width, height, size, extra, rows, columns = (int(number) for number in chance.integers(1, 400, 6))
        fit = ("crop", "squash")[size % 2]
        preprocessing = Preprocessing(size, fit, size + extra if fit == "crop" else None, flip=bool(extra % 2))
        geometry = preprocessing.geometry(width, height)
        left, top, right, bottom = geometry.box
        assert (left, top) == pytest.approx((width - right, height - bottom))  # in the middle
        assert min(left, top) >= 0
        grid = (rows, columns)
        row, column = int(chance.integers(rows)), int(chance.integers(columns))
        box = geometry.cell_box(row, column, grid)
        assert box[2] - box[0] == pytest.approx((right - left) / columns)
        assert box[3] - box[1] == pytest.approx((bottom - top) / rows)


def test_cells_at_the_edges() -> None:
    geometry = Geometry(30, 10, (10.0, 0.0, 20.0, 10.0))
    assert geometry.cell_box(0, 0, (2, 5)) == (10, 0, 12, 5)
    for row, column in ((-1, 0), (0, -1), (2, 0), (0, 5)):
        with pytest.raises(ValueError, match="is outside a grid of 2 x 5"):
            geometry.cell_box(row, column, (2, 5))
