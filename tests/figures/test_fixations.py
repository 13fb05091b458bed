"""Points that a policy chose to look at: where they lie on a picture, what was read around them, and the path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.toy_captions import caption_of
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.animation import animation_frames
from captioner.figures.drawing import Outline, Sheet, Trace, figure_bytes
from captioner.figures.fixations import eye_path, fixation_outlines
from captioner.figures.word_grid import word_grid
from captioner.figures.word_images import word_image
from captioner.images.geometry import Geometry

SIZE = (120, 80)
POINTS = np.array([[[0.0, 0.0]], [[1.0, 2.5]], [[3.0, 5.0]]], dtype=np.float32)  # (T, 1, 2)


@pytest.fixture
def caption() -> Caption:
    plain = caption_of(np.full((3, 4, 6), 1 / 24), Geometry(*SIZE, (0.0, 0.0, 120.0, 80.0)), ("a", "dog", "runs"))
    return replace(plain, points=POINTS, extents=(0.5, 1.0))


def middle(mark: Outline) -> tuple[float, float]:
    return (mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2


def test_a_point_lies_in_the_middle_of_what_is_read_around_it(caption: Caption) -> None:
    near, far, dot = fixation_outlines(caption, 1, (10, 20), (240, 160))
    # Cells have 40 pixels on a side; column 2.5 is the edge between the third and the fourth.
    for mark in (near, far, dot):
        assert middle(mark) == pytest.approx((10 + 120, 20 + 60))
    assert (near.right - near.left, near.bottom - near.top) == pytest.approx((40, 40))
    assert (far.right - far.left, far.bottom - far.top) == pytest.approx((80, 80))
    assert near.points > far.points


def test_what_lies_outside_of_the_picture_is_cut_off(caption: Caption) -> None:
    for word in range(3):
        for mark in fixation_outlines(replace(caption, extents=(0.5, 8.0)), word, (10, 20), (240, 160)):
            assert 10 <= mark.left <= mark.right <= 250
            assert 20 <= mark.top <= mark.bottom <= 180


def test_a_mirrored_picture_has_its_points_mirrored(caption: Caption) -> None:
    mirrored = replace(caption, geometry=replace(caption.geometry, flipped=True))
    for word in range(3):
        x, y = middle(fixation_outlines(caption, word, (0, 0), SIZE)[0])
        other = middle(fixation_outlines(mirrored, word, (0, 0), SIZE)[0])
        assert other == pytest.approx((120 - x, y))


def test_the_path_goes_from_word_to_word(caption: Caption) -> None:
    trace, *dots = eye_path(caption, (0, 0), SIZE)
    assert isinstance(trace, Trace)
    np.testing.assert_allclose(trace.places, ((10, 10), (60, 30), (110, 70)))
    assert len(dots) == 3
    assert eye_path(replace(caption, points=None, extents=()), (0, 0), SIZE) == []


def test_every_figure_shows_them(caption: Caption) -> None:
    image = Image.new("RGB", SIZE, (90, 120, 150))
    plain = replace(caption, points=None, extents=())
    sheet = word_grid(image, caption, dpi=100)
    assert sum(isinstance(mark, Outline) for mark in sheet.marks) == 3 * 3 + 3
    assert (np.asarray(sheet.image()) != np.asarray(word_grid(image, plain, dpi=100).image())).any()
    for suffix in (".pdf", ".svg"):
        assert len(figure_bytes(sheet, suffix)) > len(figure_bytes(word_grid(image, plain, dpi=100), suffix))
    assert (np.asarray(word_image(image, caption, 1)) != np.asarray(word_image(image, plain, 1))).any()
    frames, others = animation_frames(image, caption), animation_frames(image, plain)
    assert [
        (np.asarray(one) != np.asarray(other)).any() for (one, _), (other, _) in zip(frames, others, strict=True)
    ] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_a_trace_is_drawn_along_its_places() -> None:
    pixels = np.asarray(Sheet(40, 20, 72, (Trace(((5, 10), (35, 10)), 2.0),)).image()).astype(int)
    yellow = (pixels[..., 0] > 220) & (pixels[..., 2] < 120)
    rows, columns = np.nonzero(yellow)
    assert columns.min() <= 6
    assert columns.max() >= 34
    assert set(rows.tolist()) <= {8, 9, 10, 11}
