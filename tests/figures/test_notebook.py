"""A caption as a notebook shows it: whole, small, inert, and with attention where it belongs."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.browser import browser, watched_page  # noqa: F401
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, caption_of, one_cell, seen_box
from helpers.toy_gallery import HOSTILE, picture
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.notebook import SHOWN
from captioner.images.preprocessing import Preprocessing

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Parts(HTMLParser):
    """The tags of a piece of HTML with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def images(self) -> list[Image.Image]:
        sources = [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]
        assert all(source.startswith("data:image/") for source in sources)
        return [Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources]


def make(shape: str = "landscape", fitting: str = "squash", row: int = 5, column: int = 2) -> Caption:
    attention = np.concatenate([one_cell(row, column), np.full((1, *GRID), 1 / (GRID[0] * GRID[1]))])
    geometry = Preprocessing(SIDE, **FITTINGS[fitting]).geometry(*SIZES[shape])
    return replace(caption_of(attention, geometry, ("a", "dog")), source=picture(SIZES[shape]))


def test_one_small_piece_that_asks_for_nothing() -> None:
    html = make()._repr_html_()
    parts = Parts(html)
    assert [tag for tag, _ in parts.tags] == ["div", "style", "img", "p", "span", "img", "span", "img"]
    image, *masks = parts.images()
    assert (image.format, [mask.mode for mask in masks]) == ("JPEG", ["LA", "LA"])
    assert len(html) < 60_000
    assert not any(part in html for part in ("<script", "http:", "https:", "url(", "@import", "onclick"))
    titles = [attributes["title"] for tag, attributes in parts.tags if tag == "span"]
    assert all((title or "").startswith("probability 0.") for title in titles)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_stay_texts(text: str) -> None:
    caption = replace(make(), text=text, words=(text, "dog"))
    parts = Parts(caption._repr_html_())
    assert [tag for tag, _ in parts.tags] == ["div", "style", "img", "p", "span", "img", "span", "img"]
    assert f"{text} dog" in parts.text
    assert parts.tags[2][1]["alt"] == text


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("fitting", FITTINGS)
def test_masks_are_clear_where_the_word_looked(shape: str, fitting: str) -> None:
    row, column = 5, 2
    _, mask, flat = Parts(make(shape, fitting, row, column)._repr_html_()).images()
    opacity = np.asarray(mask)[..., 1].astype(int)  # (height, width)
    white = np.asarray(mask)[..., 0] == 255  # what the network did not see
    y, x = (np.argwhere(opacity == np.where(white, 255, opacity).min()).mean(axis=0) + 0.5) / opacity.shape
    left, top, width, height = seen_box(SIZES[shape], FITTINGS[fitting])
    expected = (left + (column + 0.5) / GRID[1] * width) / SIZES[shape][0]
    assert x == pytest.approx(expected, abs=0.5 / GRID[1])
    assert y == pytest.approx((top + (row + 0.5) / GRID[0] * height) / SIZES[shape][1], abs=0.5 / GRID[0])
    assert np.ptp(np.asarray(flat)[..., 1][~white]) <= 1  # uniform attention is flat
    assert white.any() == (width < SIZES[shape][0] or height < SIZES[shape][1])


def test_an_image_that_is_gone_is_grey_and_says_so(tmp_path: Path) -> None:
    for source, reason in ((None, "does not know its image"), (tmp_path / "gone.jpg", "no such file")):
        parts = Parts(replace(make(), source=source)._repr_html_())
        assert reason in parts.text
        assert parts.images()[0].getpixel((5, 5)) == pytest.approx((128, 128, 128), abs=2)
    assert "has changed" in Parts(replace(make(), source=picture((20, 30)))._repr_html_()).text
    empty = replace(make(), text="", words=(), **{
        name: getattr(make(), name)[:0] for name in ("probabilities", "attention", "beta")
    })  # fmt: skip
    assert "(no words)" in Parts(empty._repr_html_()).text


def test_the_mouse_and_the_keyboard_show_a_word(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{make()._repr_html_()}{make()._repr_html_()}")
    with watched_page(browser, path.as_uri()) as watched:
        words, masks = watched.page.locator(".captioner-word"), watched.page.locator(".captioner-word img")
        image = watched.page.locator(".captioner-caption > img").nth(1)

        def opacities() -> list[str]:
            return [masks.nth(index).evaluate("each => getComputedStyle(each).opacity") for index in range(4)]

        assert opacities() == ["0", "0", "0", "0"]
        words.nth(2).hover()
        assert opacities() == ["0", "0", "1", "0"]
        assert masks.nth(2).bounding_box() == image.bounding_box()
        assert max((image.bounding_box() or {"width": 0})["width"], 0) == SHOWN
        words.nth(1).focus()
        assert opacities()[:2] == ["0", "1"]
