"""The gallery in a real browser: attention in the right place, keys, touch, search, and texts that stay texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.browser import PHONE, browser, watched_page  # noqa: F401
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, attention_map, caption_of, one_cell
from helpers.toy_gallery import HOSTILE, picture, random_caption
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.captioning.corrections import read_corrections
from captioner.figures.masks import blend, visible_mask
from captioner.images.geometry import Geometry
from captioner.images.preprocessing import Preprocessing
from captioner.web.assets import VIEWER, read_asset
from captioner.web.gallery import GalleryEntry, write_gallery

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The centre of what is most red on a canvas, 0..1 across and down: what was not looked at is grey.
REDDEST = """canvas => {
    const {width, height} = canvas;
    const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
    let high = -1, count = 0, x = 0, y = 0;
    for (let index = 0; index < width * height; index++) {
        const value = data[4 * index] - data[4 * index + 2];
        if (value > high) { high = value; count = x = y = 0; }
        if (value === high) { count++; x += index % width + 0.5; y += Math.floor(index / width) + 0.5; }
    }
    return [x / count / width, y / count / height];
}"""
DRAWN = "canvas => canvas.toDataURL()"
PAINT = """([pixels, width, height, grid, geometry, style]) => {
    const image = new ImageData(Uint8ClampedArray.from(pixels), width, height);
    const {rows, columns, words} = Attention.unpack([grid]);
    return Array.from(Attention.paint(image, words[0], rows, columns, geometry, style, 1).data);
}"""


def named(text: str, name: str, log_prob: float = -3.0) -> GalleryEntry:
    """A picture whose caption has these words."""
    words = tuple(text.split(" "))
    caption = replace(random_caption((80, 60), len(words)), words=words, text=text, log_prob=log_prob)
    return GalleryEntry(name, [caption], picture((80, 60)))


ANIMALS = [
    named("a dog runs", "photos/z10.jpg", -1.0),
    named("a cat sleeps on a bed", "photos/z9.jpg", -14.0),
    named("a brown dog sleeps", "photos/café.jpg", -5.0),
]


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page of three."""
    path = tmp_path_factory.mktemp("gallery") / "gallery.html"
    write_gallery(ANIMALS, path, title="Animals", model="soft", search={"method": "beam", "beam": 5, "n_best": 1})
    return path.as_uri()


def names(page: Page) -> list[str]:
    return page.locator(".card .card-foot bdi").all_text_contents()


def word(page: Page, number: int) -> Any:
    return page.locator(".viewer-word").nth(number)


def address(page: Page) -> str:
    part: str = page.evaluate("location.hash")
    return part


def wait_for_word(page: Page, text: str) -> None:
    page.locator(".viewer-ready").wait_for()
    page.wait_for_function("text => document.querySelector('.viewer-status').textContent.startsWith(text)", arg=text)


def test_opens_from_a_file(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, animals) as watched:
        page = watched.page
        assert page.title() == "Animals"
        assert page.locator(".card").count() == 3
        assert names(page) == ["z10.jpg", "z9.jpg", "café.jpg"]
        assert page.locator(".caption").first.inner_text() == "a dog runs"
        head = page.locator("#about").inner_text()
        assert "3 images of photos/ · model soft · beam of 5" in head
        page.wait_for_function("() => [...document.images].filter(image => image.naturalWidth > 0).length >= 3")
        assert not [address for address in watched.requests if address.startswith("http")]


def test_worded_captions_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    wordings = ("A cat sits on a mat.", "a photo, a cat sits on a mat in style", "İ: a cat sits on a mat", "A dog?")
    entries = [named("a cat sits on a mat", f"{number}.jpg") for number in range(len(wordings))]
    for entry, text in zip(entries, wordings, strict=True):
        entry.captions[0] = replace(entry.captions[0], text=text)
    write_gallery(entries, tmp_path / "gallery.html")
    with watched_page(browser, (tmp_path / "gallery.html").as_uri()) as watched:
        captions = watched.page.locator(".caption")
        shown = captions.all_inner_texts()
        assert shown == [*wordings[:3], "a cat sits on a mat"]  # what has other words cannot be lit
        words = [captions.nth(number).locator("[data-word]").all_inner_texts() for number in range(3)]
        assert words[0] == ["A", "cat", "sits", "on", "a", "mat"]
        assert words[1] == words[2] == ["a", "cat", "sits", "on", "a", "mat"]
        marked = captions.nth(1).locator("[data-word]").first.evaluate("word => word.previousSibling.textContent")
        assert marked == "a photo, "


@pytest.mark.parametrize("shape", ["landscape", "portrait", "square"])
def test_attention_lies_on_the_right_pixels(shape: str, browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    size = SIZES[shape]
    red = Image.new("RGB", size, (200, 40, 40))
    cells = [(0, 0), (6, 2), (3, 8)]
    attention = np.concatenate([one_cell(*cell) for cell in cells])
    geometries = [
        Preprocessing(SIDE, flip=flip, **fitting).geometry(*size)
        for fitting, flip in zip([*FITTINGS.values()] * 2, [False, True, False, True, False, True], strict=True)
    ]
    entries = [GalleryEntry("red.png", [caption_of(attention, geometry)], red) for geometry in geometries]
    write_gallery(entries, tmp_path / "page.html")
    scale = {"landscape": 1, "portrait": 1.5, "square": 2}[shape]
    with watched_page(browser, (tmp_path / "page.html").as_uri(), device_scale_factor=scale) as watched:
        page = watched.page
        for number, geometry in enumerate(geometries):
            page.evaluate("number => { location.hash = `#image-${number}`; }", number + 1)
            page.locator(".viewer-ready").wait_for()
            canvas = page.locator(".viewer-canvas")
            for index, cell in enumerate(cells):
                word(page, index).hover()
                wait_for_word(page, f"Word {index + 1} of 3")
                assert canvas.bounding_box() == page.locator(".viewer-image").bounding_box()
                assert_in_cell(canvas.evaluate(REDDEST), geometry, cell)
            page.click("#close")
            light_in_grid(page, number, 1)
            assert_in_cell(page.locator(".card canvas").evaluate(REDDEST), geometry, cells[1])


def light_in_grid(page: Page, card: int, index: int) -> None:
    page.locator(".card").nth(card).locator(f"[data-word='{index}']").hover()
    page.locator(".card").nth(card).locator("canvas").wait_for()


def assert_in_cell(place: list[float], geometry: Any, cell: tuple[int, int]) -> None:
    """Check that a place, 0..1 across and down, lies in a cell."""
    left, top, right, bottom = geometry.cell_box(*cell, GRID)
    x, y = place[0] * geometry.width, place[1] * geometry.height
    assert left <= x <= right
    assert top <= y <= bottom


@pytest.mark.parametrize("style", ["mask", "heat"])
def test_paints_as_the_figures_do(style: str, browser: Browser) -> None:  # noqa: F811
    chance = np.random.default_rng(3)
    with watched_page(browser, "about:blank") as watched:
        watched.page.add_script_tag(content=read_asset(VIEWER[0]))
        for fitting in FITTINGS.values():
            caption = caption_of(
                chance.dirichlet(np.full(GRID[0] * GRID[1], 0.2), 1).reshape(1, *GRID),
                Preprocessing(SIDE, flip=True, **fitting).geometry(172, 244),
            )
            pixels = chance.integers(0, 256, (61, 43, 3), dtype=np.uint8)
            mask = visible_mask(attention_map(caption, 0, (43, 61)), GRID[0] * GRID[1])
            expected = blend(pixels.astype(np.float32) / 255, mask, style, 96)
            opaque = np.concatenate([pixels, np.full((61, 43, 1), 255, dtype=np.uint8)], axis=2)
            given = caption.geometry.to_dict()
            arguments = [opaque.ravel().tolist(), 43, 61, caption.attention[0].tolist(), given, style]
            painted = np.array(watched.page.evaluate(PAINT, arguments)).reshape(61, 43, 4)
            np.testing.assert_allclose(painted[..., :3], expected * 255, atol=1 if style == "mask" else 5)


def test_boxes_are_filled_as_in_figures_and_outlined(browser: Browser) -> None:  # noqa: F811
    boxes = ((0.0, 0.0, 86.0, 244.0), (40.0, 60.0, 172.0, 200.0), (120.0, 180.0, 172.0, 244.0))
    caption = caption_of(
        np.array([[[0.2, 0.7, 0.1]]]), Geometry(172, 244, (0.0, 0.0, 172.0, 244.0), boxes=boxes), ("dog",)
    )
    pixels = np.random.default_rng(3).integers(0, 256, (122, 86, 3), dtype=np.uint8)
    mask = visible_mask(attention_map(caption, 0, (86, 122)), 3)
    expected = blend(pixels.astype(np.float32) / 255, mask, "mask", 96) * 255
    opaque = np.concatenate([pixels, np.full((122, 86, 1), 255, dtype=np.uint8)], axis=2)
    arguments = [opaque.ravel().tolist(), 86, 122, caption.attention[0].tolist(), caption.geometry.to_dict(), "mask"]
    with watched_page(browser, "about:blank") as watched:
        watched.page.add_script_tag(content=read_asset(VIEWER[0]))
        painted = np.array(watched.page.evaluate(PAINT, arguments)).reshape(122, 86, 4)[..., :3]
        place = watched.page.evaluate(
            "geometry => Attention.place(Float32Array.from([0.1, 0.1, 0.8]), 1, 3, geometry)",
            caption.geometry.to_dict(),
        )
    assert place == "the bottom right"
    left, top, right, bottom = 20, 30, 86, 100  # the box of 0.7 on the raster
    assert (painted[top : top + 2, left:right] == (255, 225, 77)).all()
    assert (painted[top:bottom, left : left + 2] == (255, 225, 77)).all()
    untouched = np.ones((122, 86), bool)
    untouched[top - 1 : bottom + 1, left - 1 :] = False
    untouched[top + 3 : bottom - 3, left + 3 : right - 3] = True
    np.testing.assert_allclose(painted[untouched], expected[untouched], atol=1)


def test_keys_move_through_words_and_images(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, animals) as watched:
        page, press = watched.page, watched.page.keyboard.press
        page.locator(".card-link").first.focus()
        press("ArrowRight")
        page.locator(".card canvas").wait_for()
        assert page.locator("#announcer").inner_text().startswith("Word 1 of 3: a, probability 0.")
        press("Enter")
        page.locator(".viewer-ready").wait_for()
        assert page.locator(".viewer-canvas").is_hidden()
        seen = []
        for key, expected in (
            ("ArrowRight", "Word 1 of 3: a,"),
            ("ArrowRight", "Word 2 of 3: dog,"),
            ("End", "Word 3 of 3: runs,"),
            ("ArrowRight", "Word 3 of 3"),
            ("ArrowLeft", "Word 2 of 3"),
            ("Home", "Word 1 of 3"),
        ):
            press(key)
            wait_for_word(page, expected)
            seen.append(page.locator(".viewer-canvas").evaluate(DRAWN))
            assert page.locator(".viewer-word[tabindex='0']").count() == 1
            assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
        assert len(set(seen)) == 3
        assert seen[0] == seen[5]
        press("Escape")  # the plain image first
        assert page.locator(".viewer-canvas").is_hidden()
        assert page.locator("#dialog").is_visible()
        press("PageDown")
        assert page.locator("#dialog-count").inner_text() == "2 of 3"
        assert address(page) == "#image-2"
        press("PageUp")
        press("PageUp")  # there is none before the first
        assert page.locator("#dialog-count").inner_text() == "1 of 3"
        press("Escape")
        page.locator("#dialog").wait_for(state="hidden")
        page.wait_for_function("() => location.hash === ''")
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#image-1"


def test_focus_stays_in_the_dialog(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, f"{animals}#image-2") as watched:
        for _ in range(12):
            watched.page.keyboard.press("Tab")
            # The browser's own controls come between the last and the first of a page.
            assert watched.page.evaluate(
                "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
            )


def test_address_opens_a_word(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, f"{animals}#image-3-word-2") as watched:
        page = watched.page
        wait_for_word(page, "Word 2 of 4: brown, probability 0.")
        page.locator(".viewer-canvas").wait_for()
        page.keyboard.press("ArrowRight")
        assert address(page) == "#image-3-word-3"
        page.evaluate("location.hash = '#image-999'")
        page.locator("#dialog").wait_for(state="hidden")


def test_plays_through_the_words(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, animals) as watched:
        page = watched.page
        page.clock.install(time=0)
        page.evaluate("location.hash = '#image-1'")
        page.locator(".viewer-ready").wait_for()
        page.clock.pause_at(3600)  # seconds: from here on the page's time passes only as the test says
        page.click(".viewer-play")
        for number in (1, 2, 3):
            wait_for_word(page, f"Word {number} of 3")
            assert "viewer-playing" in (page.locator(".viewer-play").get_attribute("class") or "")
            page.clock.run_for(900)
        assert page.locator(".viewer-play").get_attribute("aria-label") == "Play through the words"
        page.click(".viewer-play")
        page.keyboard.press("End")  # a key takes over
        assert page.locator(".viewer-play").get_attribute("aria-label") == "Play through the words"


def test_motion_ends_at_the_same_picture(browser: Browser, animals: str) -> None:  # noqa: F811
    drawn = []
    for motion in ("reduce", "no-preference"):
        with watched_page(browser, f"{animals}#image-1", reduced_motion=motion) as watched:
            page = watched.page
            page.locator(".viewer-ready").wait_for()
            page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowRight")
            wait_for_word(page, "Word 2")
            if not drawn:
                drawn.append(page.locator(".viewer-canvas").evaluate(DRAWN))
            else:
                page.wait_for_function(
                    "drawn => document.querySelector('.viewer-canvas').toDataURL() === drawn", arg=drawn[0]
                )


def test_styles_and_colours_change(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, f"{animals}#image-1-word-1", color_scheme="light") as watched:
        page = watched.page
        page.locator(".viewer-canvas").wait_for()
        before = page.locator(".viewer-canvas").evaluate(DRAWN)
        page.click("[data-style=heat]")
        assert page.locator(".viewer-canvas").evaluate(DRAWN) != before
        assert page.locator("[data-style=heat]").get_attribute("aria-pressed") == "true"
        page.click("#close")
        paper: Callable[[], str] = lambda: page.evaluate("getComputedStyle(document.documentElement).backgroundColor")  # noqa: E731
        light = paper()
        page.click("#theme")
        dark = paper()
        assert dark != light
        page.click("#theme")
        assert paper() == light
    with watched_page(browser, animals, color_scheme="dark") as watched:
        assert watched.page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == dark


def test_search_and_sort(browser: Browser, animals: str) -> None:  # noqa: F811
    with watched_page(browser, animals) as watched:
        page = watched.page

        def find(text: str, count: str) -> list[str]:
            page.fill("#search", text)
            page.wait_for_function("count => document.getElementById('count').textContent === count", arg=count)
            return names(page)

        assert find("DOG", "2 of 3 images") == ["z10.jpg", "café.jpg"]
        assert find("sleeps dog", "1 of 3 images") == ["café.jpg"]
        assert len(find("a", "3 of 3 images")) == 3
        assert find("cafe", "1 of 3 images") == ["café.jpg"]
        assert find("<b>", "0 of 3 images") == []
        assert page.locator("#empty").is_visible()
        assert find("", "3 images") == ["z10.jpg", "z9.jpg", "café.jpg"]
        for order, expected in (
            ("name", ["café.jpg", "z9.jpg", "z10.jpg"]),
            ("likely", ["z10.jpg", "café.jpg", "z9.jpg"]),
            ("unlikely", ["z9.jpg", "café.jpg", "z10.jpg"]),
            ("short", ["z10.jpg", "café.jpg", "z9.jpg"]),
            ("long", ["z9.jpg", "café.jpg", "z10.jpg"]),
            ("record", ["z10.jpg", "z9.jpg", "café.jpg"]),
        ):
            page.select_option("#order", order)
            assert names(page) == expected
        page.select_option("#order", "name")
        page.locator(".card-link").nth(1).click(position={"x": 20, "y": 20})
        page.locator(".viewer-ready").wait_for()
        page.keyboard.press("PageDown")  # in the order that is seen
        assert page.locator("#dialog-name").inner_text() == "z10.jpg"


def test_alternatives_have_their_own_attention(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    size = SIZES["landscape"]
    cropped = Preprocessing(SIDE, "crop").geometry(*size)
    captions = [random_caption(size), caption_of(np.concatenate([one_cell(3, 0), one_cell(3, 8)]), cropped)]
    red = Image.new("RGB", size, (200, 40, 40))
    write_gallery([GalleryEntry("a.jpg", captions, red, ["soft", "hard"])], tmp_path / "page.html")
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1-word-1") as watched:
        page = watched.page
        assert page.locator("#alternatives .label").all_text_contents() == ["soft", "hard"]
        page.locator("#alternatives .look").nth(1).click()
        assert page.locator("#alternatives .look[aria-pressed=true] .label").inner_text() == "hard"
        assert page.locator(".viewer-word").count() == 2
        for key, number, cell in (("ArrowRight", 1, (3, 0)), ("End", 2, (3, 8))):
            page.keyboard.press(key)
            wait_for_word(page, f"Word {number} of 2")
            assert_in_cell(page.locator(".viewer-canvas").evaluate(REDDEST), cropped, cell)


def overflow(page: Page) -> int:
    width: int = page.evaluate(
        "Math.max(document.documentElement.scrollWidth, document.getElementById('dialog').scrollWidth) - innerWidth"
    )
    return width


def test_fits_a_phone_and_answers_a_finger(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    words = ("a", "w" * 60, *("dog",) * 20)
    long = replace(random_caption((500, 60), len(words)), words=words, text=" ".join(words))
    entries = [
        GalleryEntry(f"{'folder/' * 20}{'n' * 200}.jpg", [long, long], picture((500, 60))),
        GalleryEntry("tall.jpg", [random_caption((60, 500))], picture((60, 500))),
    ]
    write_gallery(entries, tmp_path / "page.html", title="T" * 100, model="m" * 100)
    with watched_page(browser, (tmp_path / "page.html").as_uri(), **PHONE) as watched:
        page = watched.page
        assert overflow(page) <= 0
        page.locator(".card [data-word='0']").first.tap()
        page.locator(".card canvas").wait_for()
        assert page.locator("#dialog").is_hidden()
        page.locator(".thumb").first.tap()
        page.locator("#dialog").wait_for()
        assert overflow(page) <= 0
        word(page, 3).tap()
        wait_for_word(page, "Word 4 of 22: dog")
        page.locator(".viewer-canvas").wait_for()
        word(page, 3).tap()  # again: the plain image
        page.locator(".viewer-canvas").wait_for(state="hidden")
        page.tap("#next")
        assert page.locator("#dialog-name").inner_text() == "tall.jpg"
        assert overflow(page) <= 0


def test_hostile_texts_are_shown_as_texts(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    caption = replace(random_caption((80, 60), len(HOSTILE)), words=HOSTILE, text=" ".join(HOSTILE))
    entries = [GalleryEntry(text, [caption, caption], picture((80, 60))) for text in HOSTILE]
    write_gallery(entries, tmp_path / "page.html", title=HOSTILE[0], model=HOSTILE[2], search={"method": HOSTILE[0]})
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1-word-1") as watched:
        page = watched.page
        page.locator(".viewer-canvas").wait_for()
        assert page.evaluate("window.hacked") is None
        assert page.title() == HOSTILE[0]
        assert page.locator(".viewer-text").all_text_contents() == list(HOSTILE)
        assert page.locator(".card-foot bdi").all_text_contents() == list(HOSTILE)
        assert page.locator(".caption").first.text_content() == caption.text
        assert page.locator("#dialog-name").text_content() == HOSTILE[0]
        assert page.locator("#viewer :is(script, [onerror])").count() == 0


def test_right_to_left_words_follow_the_arrows(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    caption = replace(random_caption((80, 60), 3), words=("כלב", "רץ", "מהר"), text="כלב רץ מהר")
    write_gallery([GalleryEntry("a.jpg", [caption], picture((80, 60)))], tmp_path / "page.html")
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1-word-1") as watched:
        first, second = word(watched.page, 0).bounding_box(), word(watched.page, 1).bounding_box()
        assert second["x"] < first["x"]
        watched.page.keyboard.press("ArrowLeft")
        wait_for_word(watched.page, "Word 2 of 3")


def test_nothing_to_show(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    empty = np.zeros(0, dtype=np.float32)
    grids = np.zeros((0, *GRID), dtype=np.float32)
    silent = Caption("", (), empty, -1.0, grids, empty, Preprocessing(SIDE).geometry(80, 60))
    write_gallery([], tmp_path / "none.html")
    write_gallery([GalleryEntry("a.jpg", [silent], tmp_path / "gone.jpg")], tmp_path / "page.html")
    with watched_page(browser, (tmp_path / "none.html").as_uri()) as watched:
        assert watched.page.locator("#count").inner_text() == "0 images"
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1") as watched:
        assert "cannot be opened" in watched.page.locator("#problem").inner_text()
        assert watched.page.locator(".viewer-status").inner_text() == "The caption is empty."
        for key in ("ArrowRight", "End", "Escape"):
            watched.page.keyboard.press(key)
        watched.page.locator("#dialog").wait_for(state="hidden")
        watched.page.keyboard.press("ArrowRight")


def test_a_thousand_images(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    shared = picture((80, 60))
    entries = (replace(named(f"a dog number {number}", f"{number:04d}.jpg"), image=shared) for number in range(1000))
    write_gallery(entries, tmp_path / "page.html")
    with watched_page(browser, (tmp_path / "page.html").as_uri()) as watched:
        page = watched.page
        assert page.locator("#count").inner_text() == "1,000 images"
        pictures: Callable[[], int] = lambda: page.locator(".card img[src]").count()  # noqa: E731
        page.wait_for_function("() => document.querySelectorAll('.card img[src]').length > 0")
        assert pictures() < 100
        page.locator(".card").last.scroll_into_view_if_needed()
        page.locator(".card:last-child img[src]").wait_for()
        page.wait_for_function("() => document.querySelectorAll('.card img[src]').length < 100")
        light_in_grid(page, 999, 3)
        page.fill("#search", "number 77")
        page.wait_for_function("() => document.getElementById('count').textContent === '19 of 1,000 images'")
        page.locator(".card img[src]").first.wait_for()
        page.fill("#search", "")
        page.wait_for_function("() => document.getElementById('count').textContent === '1,000 images'")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert pictures() == 1000


def test_names_are_cut_at_the_front(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    names_given = [f"photos/{'long ' * 20}{end}.jpg" for end in ("first", "second")]
    write_gallery([named("a dog", name) for name in names_given], tmp_path / "page.html")
    inside = """element => {
        const range = document.createRange();
        const text = element.querySelector("bdi").firstChild;
        range.setStart(text, text.length - 5);
        range.setEnd(text, text.length);
        const end = range.getBoundingClientRect(), box = element.getBoundingClientRect();
        return end.width > 0 && end.left >= box.left && end.right <= box.right + 1
            && element.scrollWidth > element.clientWidth;
    }"""
    with watched_page(browser, (tmp_path / "page.html").as_uri(), **PHONE) as watched:
        page = watched.page
        for name in page.locator(".card-foot .name").all():
            assert name.evaluate(inside)
        page.locator(".thumb").first.tap()
        assert page.locator("#dialog-name").evaluate(inside)
        assert page.locator("#dialog-name").get_attribute("title") == names_given[0]


def test_captions_are_chosen_written_and_saved(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    second = replace(random_caption((80, 60), 2, seed=5), words=("two", "dogs"), text="two dogs")
    entries = [replace(ANIMALS[0], captions=[*ANIMALS[0].captions, second]), *ANIMALS[1:]]
    write_gallery(entries, tmp_path / "page.html")
    url = (tmp_path / "page.html").as_uri()
    with watched_page(browser, url, accept_downloads=True) as watched:
        page = watched.page
        assert page.locator("#save").is_hidden()
        page.locator(".thumb").first.click()
        page.get_by_role("button", name="Take", exact=True).click()
        assert page.locator(".editor-text").inner_text() == "two dogs"
        assert page.locator(".viewer-text").all_text_contents() == ["two", "dogs"]
        page.keyboard.press("PageDown")
        page.get_by_role("button", name="Edit").click()
        page.locator(".editor-area").fill("Minka asleep")
        page.keyboard.press("ArrowLeft")  # in the text, not through the words
        assert page.locator(".viewer-canvas").is_hidden()
        page.get_by_role("button", name="Keep").click()
        assert page.locator(".editor-text").inner_text() == "Minka asleep"
        page.get_by_role("button", name="Edit").click()
        page.locator(".editor-area").fill("never mind")
        page.keyboard.press("Escape")  # leaves the text, not the dialog
        assert page.locator("#dialog").is_visible()
        page.click("#close")
        assert page.locator(".caption").all_inner_texts() == ["two dogs", "Minka asleep", "a brown dog sleeps"]
        assert page.locator(".card.changed").count() == 2
        light_in_grid(page, 0, 1)
        page.select_option("#show", "changed")
        assert page.locator("#count").inner_text() == "2 of 3 images"
        page.fill("#search", "minka")
        page.wait_for_function("() => document.getElementById('count').textContent === '1 of 3 images'")
        assert page.locator("#save").inner_text() == "Save 2 changes"
        with page.expect_download() as download:
            page.click("#save")
        assert download.value.suggested_filename == "corrections.jsonl"
        download.value.save_as(tmp_path / "corrections.jsonl")
        assert read_corrections(tmp_path / "corrections.jsonl") == {
            "photos/z10.jpg": "two dogs",
            "photos/z9.jpg": "Minka asleep",
        }
        page.locator(".thumb").first.click()
        page.get_by_role("button", name="Undo").click()
        assert page.locator(".editor-text").is_hidden()
        assert page.locator("#save").inner_text() == "Save 1 change"


def test_what_was_corrected_before_is_shown(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    write_gallery([replace(ANIMALS[0], correction="Rex runs")], tmp_path / "page.html")
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1") as watched:
        page = watched.page
        assert page.locator(".caption").inner_text() == "Rex runs"
        assert page.locator(".editor-text").inner_text() == "Rex runs"
        assert page.locator(".viewer-text").all_text_contents() == ["a", "dog", "runs"]
        assert page.locator("#save").is_hidden()


def test_captions_that_are_not_sure(browser: Browser, animals: str, tmp_path: Path) -> None:  # noqa: F811
    entries = [replace(entry, confidence=sure) for entry, sure in zip(ANIMALS, (0.9, 0.2, None), strict=True)]
    write_gallery(entries, tmp_path / "page.html")
    with watched_page(browser, (tmp_path / "page.html").as_uri()) as watched:
        page = watched.page
        assert page.locator("#show option").all_text_contents() == ["all captions", "low confidence"]
        assert [mark.is_visible() for mark in page.locator(".low-mark").all()] == [False, True, False]
        assert page.locator(".card-foot > :last-child").all_inner_texts()[:2] == ["confidence 90 %", "confidence 20 %"]
        page.select_option("#show", "low")
        assert names(page) == ["z9.jpg"]
        page.select_option("#show", "all")
        page.select_option("#order", "doubtful")
        assert names(page) == ["z9.jpg", "z10.jpg", "café.jpg"]
    with watched_page(browser, animals) as watched:
        assert watched.page.locator("#show").is_hidden()  # a page that does not know
        assert watched.page.locator(".low-mark").first.is_hidden()


def test_confidence_in_words_until_somebody_has_chosen(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    write_gallery([replace(ANIMALS[0], confidence=0.2)], tmp_path / "page.html")
    with watched_page(browser, f"{(tmp_path / 'page.html').as_uri()}#image-1") as watched:
        page = watched.page
        told = "Low confidence: About 20 in 100 captions like this describe their image as well as most people do."
        assert page.locator("#confidence").inner_text() == told
        page.get_by_role("button", name="Edit").click()
        page.locator(".editor-area").fill("Rex runs")
        page.get_by_role("button", name="Keep").click()
        assert page.locator("#confidence").is_hidden()
        page.click("#close")
        assert page.locator(".low-mark").is_hidden()
        page.select_option("#show", "low")
        assert names(page) == []


def test_copy_from_a_file(browser: Browser, animals: str) -> None:  # noqa: F811
    permissions = ["clipboard-read", "clipboard-write"]
    with watched_page(browser, f"{animals}#image-1", permissions=permissions) as watched:
        page = watched.page
        page.get_by_role("button", name="Copy").click()
        page.wait_for_function("async text => (await navigator.clipboard.readText()) === text", arg="a dog runs")
