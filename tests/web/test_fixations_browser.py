"""Points of glimpses over images in a real browser: where the figures draw them, and of no other models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.browser import browser, watched_page  # noqa: F401
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES
from helpers.toy_gallery import picture, random_caption

from captioner.captioning.caption import Caption
from captioner.figures.drawing import Trace
from captioner.figures.fixations import eye_path, fixation_outlines
from captioner.images.preprocessing import Preprocessing
from captioner.web.gallery import GalleryEntry, write_gallery

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

EXTENTS = (1.0, 2.5)
# Where shapes lie on the image, 0..1 across and down, whatever clips them.
CIRCLES = """layer => [...layer.querySelectorAll("circle.fixation-now")].map(({cx, cy}) =>
    [cx.baseVal.value / layer.viewBox.baseVal.width, cy.baseVal.value / layer.viewBox.baseVal.height])"""
BOXES = """layer => [...layer.querySelectorAll("rect.fixation-patch")].map(({x, y, width, height}) => {
    const {width: across, height: down} = layer.viewBox.baseVal;
    const [left, top] = [x.baseVal.value, y.baseVal.value];
    return [left / across, top / down, (left + width.baseVal.value) / across, (top + height.baseVal.value) / down];
})"""
PATH = """layer => [...layer.querySelector("polyline.fixation-path").points].map(({x, y}) =>
    [x / layer.viewBox.baseVal.width, y / layer.viewBox.baseVal.height])"""


def looking_at_points(size: tuple[int, int], fitting: dict[str, Any], flip: bool) -> Caption:
    """Return a caption of three words, two glimpses each."""
    cells = np.random.default_rng(0).random((3, 2, 2)) * (np.array(GRID) - 1)
    geometry = Preprocessing(SIDE, flip=flip, **fitting).geometry(*size)
    return replace(random_caption(size), geometry=geometry, points=cells.round(3).astype(np.float32), extents=EXTENTS)


def check(layer: Locator, caption: Caption, word: int) -> None:
    """Check what is drawn over an image against the figures, which draw on a picture of 1 x 1, and clip."""
    (path, *_) = eye_path(caption, (0, 0), (1, 1))
    assert isinstance(path, Trace)
    np.testing.assert_allclose(layer.evaluate(PATH), path.places, atol=1e-4)
    np.testing.assert_allclose(layer.evaluate(CIRCLES), path.places[2 * word : 2 * word + 2], atol=1e-4)
    outlines = fixation_outlines(caption, word, (0, 0), (1, 1))
    expected = [[each.left, each.top, each.right, each.bottom] for each in outlines]
    del expected[2::3]  # the points themselves
    np.testing.assert_allclose(np.clip(layer.evaluate(BOXES), 0, 1), expected, atol=1e-4)


@pytest.mark.parametrize("shape", ["landscape", "portrait"])
def test_points_lie_where_the_figures_draw_them(shape: str, browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    size = SIZES[shape]
    captions = [
        looking_at_points(size, fitting, flip) for fitting, flip in zip(FITTINGS.values(), (0, 1, 1), strict=True)
    ]
    entries = [GalleryEntry(f"{number}.png", [each], picture(size)) for number, each in enumerate(captions)]
    write_gallery(entries, tmp_path / "page.html")
    with watched_page(browser, (tmp_path / "page.html").as_uri()) as watched:
        page = watched.page
        for number, caption in enumerate(captions):
            card = page.locator(".card").nth(number)
            card.locator(".caption span").nth(1).hover()
            card.locator("canvas").wait_for()
            check(card.locator(".fixations"), caption, 1)
        page.mouse.move(1, 1)
        page.evaluate("location.hash = '#image-2'")
        page.locator(".viewer-ready").wait_for()
        layer = page.locator(".viewer .fixations")
        assert layer.evaluate("layer => layer.childElementCount") == 0
        page.hover(".viewer-word >> nth=2")
        check(layer, captions[1], 2)
        frame, drawn = page.locator(".viewer-frame").bounding_box(), layer.bounding_box()
        assert frame is not None
        assert drawn == pytest.approx(frame, abs=0.5)


def test_other_models_have_no_points(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    write_gallery([GalleryEntry("a.png", [random_caption((80, 60))], picture((80, 60)))], tmp_path / "page.html")
    with watched_page(browser, (tmp_path / "page.html").as_uri() + "#image-1-word-1") as watched:
        watched.page.locator(".viewer-ready").wait_for()
        assert watched.page.locator(".fixations *").count() == 0
