"""Photographs in their own shape: the longest side fits, and padding fills the rest of the grid."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.awkward_images import ORIENTATIONS, encode, exif, jpeg, stored
from PIL import Image

from captioner.images.geometry import Geometry
from captioner.images.preprocessing import Preprocessing

CELLS, SIZE = 7, 56
PAD = Preprocessing(SIZE, "pad", mean=(0.2, 0.4, 0.6), cells=CELLS)
SHAPES = {  # width, height: rows, columns
    (900, 600): (5, 7),
    (600, 900): (7, 5),
    (500, 500): (7, 7),
    (1000, 90): (1, 7),
    (1000, 20): (1, 7),  # never less than a row
    (430, 610): (7, 5),
}


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_each_cell_shows_its_part_of_the_photograph(size: tuple[int, int], orientation: int, flip: bool) -> None:
    """A picture of as many flat tiles as cells comes out tile by tile, wherever the camera's top was."""
    rows, columns = SHAPES[size]
    chance = np.random.default_rng(orientation)
    tiles = chance.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(tiles).resize(size, Image.Resampling.NEAREST))
    preprocessing = Preprocessing(SIZE, "pad", mean=PAD.mean, flip=flip, cells=CELLS)
    held = stored(picture, orientation)
    for data in (jpeg(held, exif=exif(orientation)), encode(held, "TIFF", tiffinfo={274: orientation})):
        prepared = preprocessing.read(data)
        geometry = prepared.geometry
        assert (geometry.width, geometry.height, geometry.box) == (*size, (0, 0, *size))
        assert preprocessing.filled(geometry) == (rows, columns)
        step = SIZE // CELLS
        for row in range(rows):
            for column in range(columns):
                left, top, right, bottom = geometry.cell_box(row, column, (rows, columns))
                middle = picture[int((top + bottom) / 2), int((left + right) / 2)]
                shown = prepared.pixels[row * step + step // 2, column * step + step // 2]
                assert np.abs(shown.astype(int) - middle).max() <= 12, (row, column)
        padding = np.ones((SIZE, SIZE), bool)
        padding[: rows * step, : columns * step] = False
        assert (prepared.pixels[padding] == (51, 102, 153)).all()


def test_opened_images_are_fitted_as_files_are() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for flip in (False, True):
        preprocessing = Preprocessing(SIZE, "pad", flip=flip, cells=CELLS)
        opened, read = preprocessing.apply(Image.fromarray(picture)), preprocessing.read(encode(picture, "PNG"))
        assert opened.geometry == read.geometry
        np.testing.assert_array_equal(opened.pixels, read.pixels)


def test_other_fits_fill_every_cell_and_keep_their_identity() -> None:
    for fit in ("crop", "squash"):
        preprocessing = Preprocessing(SIZE, fit)
        assert preprocessing.filled(preprocessing.geometry(90, 60)) is None
        assert "cells" not in preprocessing.to_dict()  # as it was before there was padding
    assert PAD.to_dict()["cells"] == CELLS
    assert Preprocessing.from_dict(PAD.to_dict()) == PAD


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"cells is 7; it goes with fit 'pad'"):
        Preprocessing(SIZE, cells=7)
    with pytest.raises(ValueError, match=r"cells is 60; .* from 1 to size 56"):
        Preprocessing(SIZE, "pad", cells=60)
    with pytest.raises(ValueError, match="cells is None"):
        Preprocessing(SIZE, "pad").filled(Geometry(3, 2, (0, 0, 3, 2)))
    with pytest.raises(ValueError, match="fit is 'stretch'; choose from crop, squash, pad"):
        Preprocessing(SIZE, "stretch")


def test_boxes_are_regions_of_their_own() -> None:
    boxes = ((0.0, 0.0, 10.0, 5.0), (3.0, 2.0, 30.0, 20.0))
    geometry = Geometry(30, 20, (0, 0, 30, 20), boxes=boxes)
    assert [geometry.cell_box(0, place, (1, 2)) for place in range(2)] == list(boxes)
    assert Geometry.from_dict(geometry.to_dict()) == geometry
    assert "boxes" not in Geometry(30, 20, (0, 0, 30, 20)).to_dict()
    assert PAD.filled(geometry) == (1, 2)
    with pytest.raises(ValueError, match="box"):
        Geometry.from_dict({**geometry.to_dict(), "boxes": [[5, 0, 4, 1]]})
