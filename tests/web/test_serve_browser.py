"""The page of `captioner serve` in a real browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.awkward_images import png_of
from helpers.browser import PHONE, browser, watched_page  # noqa: F401
from helpers.large_photographs import COUNT_TURNS, SHOWN, write_large
from helpers.photo_folders import EXAMPLES, ROOT
from helpers.toy_captioner import make_toy
from PIL import Image

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from helpers.patient_limits import PATIENT

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.corrections import read_corrections
from captioner.model.encoders.encoder import Encoder
from captioner.web.app import make_app
from captioner.web.guard import Access, Guard
from captioner.web.served_models import Served, find_examples
from captioner.web.server import address, listen, make_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ANSWERED = "body[data-state=answered]"
CAT = EXAMPLES / "cat.jpg"


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> list[Served]:
    return [
        Served(name, Captioner(make_toy(lite0, seed), device="cpu"), name.removeprefix("toy-"))
        for seed, name in enumerate(("toy-soft", "toy-hard"))
    ]


@contextmanager
def serving(app: Guard) -> Iterator[str]:
    """Serve an application from a thread, and yield its address."""
    with listen("127.0.0.1", 0) as listener:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address(listener) + "/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def url(models: list[Served]) -> Iterator[str]:
    with serving(make_app(models, examples=find_examples(EXAMPLES), limits=PATIENT)) as url:
        yield url


@pytest.fixture
def said(models: list[Served]) -> list[Caption]:
    """What the page should say of the cat."""
    return models[0].captioner.caption(CAT, n_best=5)


def words(page: Page) -> list[str]:
    return page.locator(".viewer-text").all_text_contents()


def upload(page: Page, path: Path = CAT) -> None:
    page.set_input_files("#file", path)
    page.wait_for_selector(ANSWERED)


def wait_for_text(page: Page, selector: str, text: str) -> None:
    script = "([selector, text]) => document.querySelector(selector).textContent.includes(text)"
    page.wait_for_function(script, arg=[selector, text])


def test_upload_hover_and_keyboard(browser: Browser, url: str, said: list[Caption]) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        upload(page)
        assert words(page) == list(said[0].words)
        numbers = [float(text.strip("<")) for text in page.locator(".viewer-number").all_text_contents()]
        assert numbers == pytest.approx(said[0].probabilities.tolist(), abs=0.0101)
        assert page.locator("#live").text_content() == f"Caption: {said[0].text}"
        assert page.locator("#preview").is_hidden()
        frame = page.locator(".viewer-frame")
        plain = frame.screenshot()
        page.hover(".viewer-word >> nth=0")
        page.wait_for_selector(".viewer-canvas:not([hidden])")
        assert frame.screenshot() != plain
        page.mouse.move(1, 1)
        page.wait_for_selector(".viewer-canvas", state="hidden")
        # The arrows work wherever the keyboard is.
        page.locator("#choose").focus()
        page.keyboard.press("ArrowRight")
        assert f"Word 1 of {len(said[0].words)}: {said[0].words[0]}" in (page.text_content(".viewer-status") or "")
        page.keyboard.press("Escape")
        page.wait_for_selector(".viewer-canvas", state="hidden")
        assert not [address for address in watched.requests if "example.com" in address]


def test_alternatives_each_with_its_own_attention(
    browser: Browser,  # noqa: F811
    url: str,
    said: list[Caption],
) -> None:
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        upload(page)
        assert page.locator(".caption-text").all_text_contents() == [caption.text for caption in said]
        page.locator("input[name=caption]").nth(0).focus()
        for place in (1, 2):
            page.keyboard.press("ArrowDown")
            wait_for_text(page, "#live", f"Caption: {said[place].text}")
            assert words(page) == list(said[place].words)


def test_surprises_and_the_other_model(browser: Browser, url: str, models: list[Served]) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        assert page.locator("#heat").is_hidden()
        page.get_by_label("toy-hard").check()
        upload(page)
        assert words(page) == list(models[1].captioner.caption(CAT, n_best=5)[0].words)
        with page.expect_response(re.compile("/caption.*sample=true&temperature=0.5&seed=0")):
            page.get_by_label("Surprise me").check()
        drawn = models[1].captioner.caption(CAT, n_best=5, sample=True, temperature=0.5, seed=0)
        wait_for_text(page, "#live", f"Caption: {drawn[0].text}")
        assert page.locator(".caption-text").all_text_contents() == [caption.text for caption in drawn]
        with page.expect_response(re.compile("/caption.*temperature=0.9")):
            page.locator("#temperature").fill("0.9")
        assert page.text_content("#temperature-value") == "0.90"
        with page.expect_response(re.compile("/caption.*seed=[1-9]")):
            page.get_by_role("button", name="Draw again").click()
        page.wait_for_selector(ANSWERED)


def test_downloads(browser: Browser, url: str, said: list[Caption], tmp_path: Path) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url), accept_downloads=True) as watched:
        page = watched.page
        upload(page)
        page.locator("input[name=caption]").nth(1).check()
        page.get_by_role("button", name="Heat").click()
        found: dict[str, Path] = {}
        for format in ("PNG", "JSON"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"as {format}").click()
            found[format] = tmp_path / download.value.suggested_filename
            download.value.save_as(found[format])
        assert [path.name for path in found.values()] == ["cat-caption.png", "cat-caption.json"]
        asked = next(request for request in watched.requests if "/figure?" in request)
        assert "style=heat" in asked
        assert "alternative=1" in asked
        with Image.open(found["PNG"]) as figure:
            assert figure.format == "PNG"
        assert json.loads(found["JSON"].read_text())["text"] == said[0].text


def test_examples(browser: Browser, url: str, models: list[Served]) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        page.get_by_role("button", name="coffee").click()
        page.wait_for_selector(ANSWERED)
        assert words(page) == list(models[0].captioner.caption(EXAMPLES / "coffee.jpg", n_best=5)[0].words)


PUT = """([kind, type, ...files]) => {
  const data = new DataTransfer();
  files.forEach((bytes, place) => {
    const name = place ? `given-${place}.jpg` : "given.jpg";
    data.items.add(new File([new Uint8Array(bytes)], name, {type}));
  });
  const event = kind === "paste"
    ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true})
    : new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true});
  document.querySelector("main").dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_paste_and_drop(browser: Browser, url: str, said: list[Caption], kind: str) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        if kind == "drop":
            page.evaluate(PUT, ["dragenter", "image/jpeg", []])
            assert "dragging" in (page.get_attribute("body", "class") or "")
        page.evaluate(PUT, [kind, "image/jpeg", list(CAT.read_bytes())])
        page.wait_for_selector(ANSWERED)
        assert words(page) == list(said[0].words)
        assert "dragging" not in (page.get_attribute("body", "class") or "")


def test_an_image_that_the_browser_cannot_show(browser: Browser, url: str, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "photo.tif"
    with Image.open(CAT) as image:
        image.save(path)
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        upload(watched.page, path)
        assert watched.page.locator(".viewer-image").evaluate("image => image.naturalWidth") == 451


def test_errors_are_told_and_overcome(browser: Browser, url: str, said: list[Caption]) -> None:  # noqa: F811
    expected = ("Failed to load resource", "net::ERR_FAILED")
    with watched_page(browser, url, allowed=("blob:", "data:", url), expected=expected) as watched:
        page = watched.page
        error = page.locator("#error")
        assert error.is_hidden()
        reasons: dict[str, bytes | int] = {
            "refused: not one of JPEG, PNG": b"hello",
            "refused: truncated": CAT.read_bytes()[:9000],
            "81.0 megapixels; at most 50": png_of(9000, 9000),
            "This image has 10.1 MB; at most 10 MB can be sent": 10_100_000,
            "This file is empty": b"",
        }
        for reason, contents in reasons.items():
            page.evaluate(PUT, ["drop", "image/jpeg", list(contents) if isinstance(contents, bytes) else contents])
            wait_for_text(page, "#error", reason)
            assert error.is_visible()
            assert page.get_attribute("#error", "role") == "alert"
        page.route("**/caption?*", lambda route: route.abort())
        page.set_input_files("#file", CAT)
        page.get_by_text("The server does not answer. Is `captioner serve` still running?").wait_for()
        page.unroute("**/caption?*")
        upload(page)
        assert error.is_hidden()
        assert words(page) == list(said[0].words)


def test_a_refused_upload_leaves_the_last_result(browser: Browser, url: str, said: list[Caption]) -> None:  # noqa: F811
    expected = ("Failed to load resource",)
    with watched_page(browser, url, allowed=("blob:", "data:", url), expected=expected) as watched:
        page = watched.page
        upload(page)
        for contents in ([0] * 100, []):
            page.evaluate(PUT, ["drop", "image/jpeg", contents])
            page.locator("#error").wait_for()
            page.wait_for_selector(ANSWERED)
            assert words(page) == list(said[0].words)
            assert page.text_content("#image-name") == "cat.jpg"
            assert page.locator("#strip").is_hidden()
        assert page.locator(".caption-text").count() == 5
        with page.expect_response(re.compile("/caption.*sample=true")) as asked:
            page.get_by_label("Surprise me").check()
        assert asked.value.ok  # of the cat
        page.locator("#error").wait_for(state="hidden")


def test_several_images_at_once(browser: Browser, url: str, models: list[Served], tmp_path: Path) -> None:  # noqa: F811
    expected = ("Failed to load resource",)
    paths = sorted(EXAMPLES.glob("*.jpg"))[:3]
    said = [models[0].captioner.caption(path).text for path in paths]
    with watched_page(
        browser, url, allowed=("blob:", "data:", url), expected=expected, accept_downloads=True
    ) as watched:
        page = watched.page
        page.set_input_files("#file", [*paths, ROOT / "README.md"])
        wait_for_text(page, "#error", "README.md: The image is refused: not one of")
        page.wait_for_function("() => document.querySelectorAll('#strip button:not(.waiting)').length === 3")
        for place in (2, 1, 0):
            page.locator("#strip button").nth(place).click()
            wait_for_text(page, "#live", said[place])
            assert page.locator("#strip [aria-pressed=true]").get_attribute("title") == paths[place].name
            assert page.text_content("#image-name") == paths[place].name
        # Another choice, another text, and the captions of all.
        page.locator("input[name=caption]").nth(2).check()
        chosen = page.locator(".caption-text").nth(2).text_content()
        page.locator("#strip button").nth(1).click()
        page.get_by_role("button", name="Edit").click()
        page.locator(".editor-area").fill("Our\n cat ")
        page.keyboard.press("Enter")
        page.locator(".editor-text", has_text="Our cat").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="all images").click()
        download.value.save_as(tmp_path / "captions.jsonl")
        expected_captions = dict(zip((path.name for path in paths), [chosen, "Our cat", said[2]], strict=True))
        assert read_corrections(tmp_path / "captions.jsonl") == expected_captions
        page.get_by_role("button", name="Undo").click()
        page.locator(".editor-text").wait_for(state="hidden")


def test_copy(browser: Browser, url: str, said: list[Caption]) -> None:  # noqa: F811
    permissions = ["clipboard-read", "clipboard-write"]
    with watched_page(browser, url, allowed=("blob:", "data:", url), permissions=permissions) as watched:
        page = watched.page
        upload(page)
        page.get_by_role("button", name="Copy").click()
        page.wait_for_function("async text => (await navigator.clipboard.readText()) === text", arg=said[0].text)


def test_numbers_are_explained(browser: Browser, url: str) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        upload(page)
        page.keyboard.press("ArrowRight")
        terms = page.locator(".viewer-status abbr")
        assert terms.all_text_contents() == ["probability", "gate"]
        assert all(term.get_attribute("title") for term in terms.all())
        assert "how much of the image" in (page.locator(".viewer-status abbr").nth(1).get_attribute("title") or "")
        assert page.locator(".sure").first.get_attribute("title")
        page.get_by_text("What do the numbers mean?").click()
        assert page.get_by_text("how much of the image went into the word").is_visible()


def test_a_token_is_asked_for_and_kept(browser: Browser, models: list[Served], said: list[Caption]) -> None:  # noqa: F811
    token = "a-token-of-some-length"
    app = make_app(models, examples=find_examples(EXAMPLES), access=Access(token=token), limits=PATIENT)
    with serving(app) as url:
        expected = ("Failed to load resource",)
        with watched_page(browser, url, allowed=("blob:", "data:", url), expected=expected) as watched:
            page = watched.page
            page.locator("#token-form").wait_for()
            for given in ("wrong", token):
                page.fill("#token", given)
                page.get_by_role("button", name="Continue").click()
                if given == "wrong":
                    page.wait_for_function("() => !document.getElementById('token-form').hidden")
            page.locator("#token-form").wait_for(state="hidden")
            page.wait_for_selector("#examples-list img[src^='blob:']")
            upload(page)
            assert words(page) == list(said[0].words)
            page.reload()
            page.wait_for_selector("#examples-list img[src^='blob:']")
            assert page.locator("#token-form").is_hidden()


def test_a_phone(browser: Browser, url: str, said: list[Caption], tmp_path: Path) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url), **PHONE) as watched:
        page = watched.page
        page.wait_for_selector("#examples-list img")
        for state in ("empty", "answered"):
            if state == "answered":
                upload(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 375
            for button in page.locator("button:visible").all():
                box = button.bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 375
                assert min(box["width"], box["height"]) >= 34, button.inner_text()
        page.locator(".viewer-word").nth(0).tap()
        page.wait_for_selector(".viewer-canvas:not([hidden])")
        page.screenshot(path=tmp_path / "phone.png")
        with Image.open(tmp_path / "phone.png") as shot:
            assert shot.size == (750, 1480)
            assert len(shot.getcolors(1 << 24) or ()) > 1000  # a photograph is on it


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(browser: Browser, url: str, scheme: Any) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url), color_scheme=scheme) as watched:
        page = watched.page

        def brightness() -> float:
            colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

        assert (brightness() > 128) == (scheme == "light")
        page.click("#theme")
        assert (brightness() > 128) == (scheme == "dark")


def test_nothing_to_edit_before_there_is_a_caption(browser: Browser, url: str) -> None:  # noqa: F811
    held: list[Any] = []
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        page.route("**/caption?*", lambda route: held.append(route))
        with page.expect_request(re.compile("/caption")):
            page.set_input_files("#file", CAT)
        page.wait_for_selector("body[data-state=asking]")
        assert page.locator("#editor").is_hidden()
        held[0].continue_()
        page.wait_for_selector(ANSWERED)
        assert page.locator(".editor-button", has_text="Edit").is_visible()
        assert page.locator(".editor-button", has_text="Undo").is_hidden()


def test_the_api_is_read_on_a_phone_without_scrolling_sideways(browser: Browser, url: str) -> None:  # noqa: F811
    with watched_page(browser, f"{url}docs", allowed=("data:", url), **PHONE) as watched:
        tables = watched.page.locator(".scroll")
        assert tables.count() > 1
        assert tables.evaluate_all("all => all.every(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)")


def test_a_large_photograph_does_not_stop_the_page(browser: Browser, url: str, tmp_path: Path) -> None:  # noqa: F811
    with watched_page(browser, url, allowed=("blob:", "data:", url)) as watched:
        page = watched.page
        page.evaluate(COUNT_TURNS)
        upload(page, write_large(tmp_path / "large.jpg"))
        page.locator(".viewer-ready").wait_for()
        (turns,) = page.evaluate("turnsWhileReading")
        assert turns == 1
        # Nothing else on the page decodes the whole photograph, and what is shown is upright.
        assert max(page.locator("img").evaluate_all(SHOWN)) <= 2048
        box = page.locator(".viewer-frame").bounding_box()
        assert box is not None
        assert box["height"] > box["width"]
