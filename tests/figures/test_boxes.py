"""Regions that are boxes: filled where they are, the one that a word looked at most outlined, in every figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_captions import attention_map, caption_of
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.alignment import alignment_matrix
from captioner.figures.animation import animation_frames
from captioner.figures.attention_samples import samples_figure
from captioner.figures.boxes import attended_boxes
from captioner.figures.drawing import Outline, figure_bytes
from captioner.figures.masks import STYLES
from captioner.figures.overlay_files import KINDS, OverlayOptions, write_overlays
from captioner.figures.word_grid import comparison, word_grid
from captioner.figures.word_images import word_image
from captioner.images.geometry import Geometry

SIZE = (120, 80)
BOXES = ((0.0, 0.0, 60.0, 80.0), (40.0, 20.0, 100.0, 60.0), (90.0, 50.0, 120.0, 80.0))
WEIGHTS = np.array([[[0.2, 0.7, 0.1]], [[0.1, 0.2, 0.7]], [[0.3, 0.3, 0.4]]])  # (T, 1, boxes)


@pytest.fixture
def caption() -> Caption:
    return caption_of(WEIGHTS, Geometry(*SIZE, (0.0, 0.0, 120.0, 80.0), boxes=BOXES), ("a", "dog", "runs"))


@pytest.fixture
def image() -> Image.Image:
    return Image.new("RGB", SIZE, (90, 120, 150))


def test_a_pixel_has_the_highest_weight_of_its_boxes(caption: Caption) -> None:
    weights = attention_map(caption, 0, SIZE)
    assert weights.shape == (80, 120)
    xs, ys = np.arange(120) + 0.5, np.arange(80) + 0.5
    expected = np.zeros((80, 120))
    for (left, top, right, bottom), weight in zip(BOXES, WEIGHTS[0, 0], strict=True):
        inside = ((ys > top) & (ys < bottom))[:, None] & ((xs > left) & (xs < right))
        expected = np.maximum(expected, weight * inside)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    half = attention_map(caption, 0, (60, 40))
    np.testing.assert_allclose(half, expected[1::2, 1::2], atol=1e-6)


def test_the_box_of_a_word_is_outlined(caption: Caption, image: Image.Image) -> None:
    (outline,) = attended_boxes(caption, 1, (10, 20), (240, 160))
    assert outline == Outline(190, 120, 250, 180, outline.points)
    outlines = [mark for mark in word_grid(image, caption).marks if isinstance(mark, Outline)]
    assert len(outlines) == 3
    drawn = word_image(image, caption, 1)
    assert drawn.size == SIZE
    pixels = np.asarray(drawn).astype(int)
    yellow = (pixels[..., 0] > 220) & (pixels[..., 1] > 200) & (pixels[..., 2] < 120)
    rows, columns = np.nonzero(yellow)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == (90, 120, 50, 80)


def test_cells_of_a_grid_are_not_outlined(image: Image.Image) -> None:
    plain = caption_of(np.full((1, 2, 3), 1 / 6), Geometry(*SIZE, (0.0, 0.0, 120.0, 80.0)))
    assert attended_boxes(plain, 0, (0, 0), SIZE) == []
    assert not any(isinstance(mark, Outline) for mark in word_grid(image, plain).marks)


@pytest.mark.parametrize("style", STYLES)
def test_every_figure_draws_boxes(style: str, caption: Caption, image: Image.Image, tmp_path: Path) -> None:
    kinds = tuple(kind for kind in KINDS if kind != "compare")
    caption = replace(caption, heads=np.repeat(caption.attention[:, None, None], 2, axis=2))  # of two heads
    written = write_overlays(tmp_path, "a.jpg", image, [caption], OverlayOptions(kinds, style))
    assert len(written) == len(kinds) + 2  # a picture for each of three words
    frames = animation_frames(image, caption, style=style, width=240)
    assert len(frames) == 5
    outlines = [mark for mark in samples_figure(image, caption, samples=2).marks if isinstance(mark, Outline)]
    assert len(outlines) == 9
    both = comparison(image, (caption, caption), ("one", "other"), style=style)
    assert sum(isinstance(mark, Outline) for mark in both.marks) == 6
    for suffix in (".png", ".pdf", ".svg"):
        assert figure_bytes(word_grid(image, caption, style=style), suffix)


def test_the_matrix_has_one_table(caption: Caption) -> None:
    texts = [mark.text for mark in alignment_matrix(caption).marks if hasattr(mark, "text")]
    assert "box" in texts
    assert "column" not in texts
    assert "0.70" in texts


def test_a_notebook_shows_boxes(caption: Caption) -> None:
    assert caption._repr_html_().count("data:image/png") == 3


def test_records_give_boxes_back(caption: Caption) -> None:
    assert Caption.from_dict(caption.to_dict()).geometry == caption.geometry
    with pytest.raises(ValueError, match=r"3 boxes need \(2, 1, 3\)"):
        caption_of(WEIGHTS[:2, :, :2] / WEIGHTS[:2, :, :2].sum(axis=2, keepdims=True), caption.geometry)
