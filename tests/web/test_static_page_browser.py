"""The static page in a real browser, without a network: it says what the package says of the same photographs."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.browser import PHONE, browser, watched_page  # noqa: F401
from helpers.large_photographs import COUNT_TURNS, SHOWN, write_large
from helpers.photo_folders import EXAMPLES
from helpers.toy_captioner import make_toy, write_images
from helpers.web_runtime import runtime  # noqa: F401
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner, load
from captioner.images.preprocessing import Preprocessing
from captioner.model.bundled import find_model
from captioner.model.checkpoint import Checkpoint, load_checkpoint
from captioner.model.config import AttentionConfig
from captioner.model.encoders.encoder import Encoder
from captioner.model.onnx.export import OnnxModel, to_onnx
from captioner.web.assets import read_asset
from captioner.web.static_page import PAGE, write_page
from captioner.web.static_page_runtime import Runtime

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY = "body[data-model=ready]"
CAT = EXAMPLES / "cat.jpg"
BUNDLED = "coco-fast"
ALLOWED = ("data:", "blob:", "file:")
CUT_OFF: dict[str, Any] = {"offline": True}  # no network at all
TOYS: dict[str, dict[str, Any]] = {
    "soft": {},
    "hard": {"mode": "hard", "inference": "argmax"},
    "none": {"mode": "none", "feed": "first-step"},
}
SETTINGS = {"beam": 3, "no_repeat": 2, "minimum_length": 4, "maximum_length": 6}


def answer_of(page: Page, path: Path) -> dict[str, Any]:
    """Give the page an image, and return what it would save."""
    page.set_input_files("#file", path)
    page.wait_for_selector("body[data-state=answered]")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == f"{path.stem}-caption.json"
    found: dict[str, Any] = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    return found


def check(answer: dict[str, Any], expected: list[Caption], tolerance: float) -> None:
    found = [answer, *answer["alternatives"]]
    assert [each["text"] for each in found] == [each.text for each in expected]
    for each, wanted in zip(found, expected, strict=True):
        assert tuple(each["words"]) == wanted.words
        assert each["log_prob"] == pytest.approx(wanted.log_prob, abs=10 * tolerance)
        for name in ("probabilities", "attention", "beta"):
            np.testing.assert_allclose(each[name], getattr(wanted, name), atol=tolerance, err_msg=name)
    geometry = expected[0].geometry
    assert answer["geometry"] == {
        "width": geometry.width,
        "height": geometry.height,
        "box": list(geometry.box),
        "flipped": geometry.flipped,
    }


@pytest.fixture(scope="module")
def toy(lite0: Encoder) -> Checkpoint:
    return make_toy(lite0, 1)


@pytest.fixture(scope="module")
def page_folder(toy: Checkpoint, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The page of a toy."""
    folder = tmp_path_factory.mktemp("page")
    write_page(to_onnx(toy, "toy", half=False), runtime, folder)
    return folder


@pytest.fixture(scope="module")
def site(page_folder: Path) -> Iterator[str]:
    """The address of a plain static host, below a path of its own."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=page_folder.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{page_folder.name}/"
        server.shutdown()
        thread.join()


def with_settings(model: OnnxModel, **settings: float) -> OnnxModel:
    return replace(model, about={**model.about, "search": {**model.about["search"], **settings}})


@pytest.mark.parametrize(("name", "settings"), [("soft", {}), ("hard", SETTINGS), ("none", {})])
def test_toys_say_the_same_from_a_file(
    name: str,
    settings: dict[str, Any],
    lite0: Encoder,
    runtime: Runtime,  # noqa: F811
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    checkpoint = make_toy(lite0, 1, attention=AttentionConfig(width=5, **TOYS[name]))
    model = with_settings(to_onnx(checkpoint, "toy", half=False), **settings)
    write_page(model, runtime, tmp_path / "page")
    captioner = Captioner(checkpoint, device="cpu")
    best = settings.get("beam", 5)
    with watched_page(browser, (tmp_path / "page" / PAGE).as_uri(), allowed=ALLOWED, **CUT_OFF) as watched:
        watched.page.wait_for_selector(READY)
        for path in write_images(tmp_path / "images", 4):
            found = answer_of(watched.page, path)
            # The page always asks for five captions, and a beam of three gives three.
            check(found, captioner.caption(path, n_best=best, **settings), 0.01)


def test_a_bundled_model_says_the_same_of_the_examples(
    runtime: Runtime,  # noqa: F811
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    names = write_page(to_onnx(load_checkpoint(find_model(BUNDLED)), BUNDLED), runtime, tmp_path)
    assert sum((tmp_path / name).stat().st_size for name in names) < 80e6
    captioner = load(BUNDLED, device="cpu", engine="onnx")
    with watched_page(browser, (tmp_path / PAGE).as_uri(), allowed=ALLOWED, **CUT_OFF) as watched:
        watched.page.wait_for_selector(READY)
        for path in sorted(EXAMPLES.glob("*.jpg")):
            check(answer_of(watched.page, path), captioner.caption(path, n_best=5), 0.05)


def test_an_image_given_before_the_model_is_there_is_captioned_when_it_is(
    site: str,
    toy: Checkpoint,
    browser: Browser,  # noqa: F811
) -> None:
    expected = Captioner(toy, device="cpu").caption(CAT)
    context = browser.new_context()
    held: list[Any] = []
    try:
        page = context.new_page()
        page.route("**/step-onnx-*.js", lambda route: held.append(route))
        with page.expect_request(re.compile("step-onnx-")):
            page.goto(site, wait_until="commit")
        page.set_input_files("#file", CAT)
        page.wait_for_selector("body[data-state=asking]")
        page.wait_for_selector("#preview-image:not([hidden])")
        assert re.fullmatch(r"Loading the model: \d+ of \d+ MB", page.text_content("#loading-text") or "")
        held[0].continue_()
        page.wait_for_selector("body[data-state=answered]")
        assert page.locator(".viewer-text").all_text_contents() == list(expected.words)
        assert page.locator("#loading").is_hidden()
    finally:
        context.close()


def test_a_loaded_page_needs_no_network(site: str, toy: Checkpoint, browser: Browser) -> None:  # noqa: F811
    expected = Captioner(toy, device="cpu").caption(CAT)
    with watched_page(browser, site, allowed=("data:", "blob:", site)) as watched:
        page = watched.page
        page.wait_for_selector(READY)
        page.context.set_offline(True)
        asked = len(watched.requests)
        assert answer_of(page, CAT)["text"] == expected.text
        assert [url for url in watched.requests[asked:] if not url.startswith(("blob:", "data:"))] == []
        # The policy forbids to send anything, whatever a script would like.
        refused = page.evaluate("fetch('/').then(() => 'sent', () => 'refused')")
        assert refused == "refused"
        watched.problems.clear()


def test_words_alternatives_and_keys(page_folder: Path, toy: Checkpoint, browser: Browser) -> None:  # noqa: F811
    expected = Captioner(toy, device="cpu").caption(CAT, n_best=5)
    with watched_page(browser, (page_folder / PAGE).as_uri(), allowed=ALLOWED, **CUT_OFF) as watched:
        page = watched.page
        page.wait_for_selector(READY)
        page.set_input_files("#file", CAT)
        page.wait_for_selector("body[data-state=answered]")
        frame = page.locator(".viewer-frame")
        plain = frame.screenshot()
        page.hover(".viewer-word >> nth=0")
        page.wait_for_selector(".viewer-canvas:not([hidden])")
        assert frame.screenshot() != plain
        page.mouse.move(1, 1)
        page.wait_for_selector(".viewer-canvas", state="hidden")
        page.locator("#choose").focus()
        page.keyboard.press("ArrowRight")
        assert f"Word 1 of {len(expected[0].words)}" in (page.text_content(".viewer-status") or "")
        page.locator("input[name=caption]").nth(2).check()
        page.locator("#live", has_text=f"Caption: {expected[2].text}").wait_for(state="attached")
        assert page.locator(".viewer-text").all_text_contents() == list(expected[2].words)
        assert "s in this browser" in (page.text_content("#note") or "")


def test_what_is_no_image_is_refused_and_the_next_is_not(
    page_folder: Path,
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.jpg").write_text("these are notes")
    (tmp_path / "empty.jpg").write_bytes(b"")
    with watched_page(browser, (page_folder / PAGE).as_uri(), allowed=ALLOWED, **CUT_OFF, **PHONE) as watched:
        page = watched.page
        page.wait_for_selector(READY)
        for name, reason in (("notes.jpg", "cannot open the file as an image"), ("empty.jpg", "This file is empty")):
            page.set_input_files("#file", tmp_path / name)
            page.locator("#error", has_text=reason).wait_for()
        page.set_input_files("#file", CAT)
        page.wait_for_selector("body[data-state=answered]")
        assert page.locator("#error").is_hidden()


def test_a_missing_part_is_named(page_folder: Path, browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / PAGE).write_bytes((page_folder / PAGE).read_bytes())
    with watched_page(
        browser, (tmp_path / PAGE).as_uri(), allowed=ALLOWED, expected=("ERR_FILE_NOT_FOUND",), **CUT_OFF
    ) as watched:
        watched.page.wait_for_selector("body[data-model=failed]")
        reason = watched.page.text_content("#error") or ""
        assert "model/runtime-mjs-" in reason
        assert "The page needs its whole folder." in reason


FIT = """([settings, width, height, text, jpeg]) => {
  const data = Uint8ClampedArray.from(atob(text), (character) => character.charCodeAt(0));
  const read = (left, top, columns, rows) => {
    const part = new Uint8ClampedArray(4 * columns * rows);
    for (let row = 0; row < rows; row++) {
      const start = 4 * ((top + row) * width + left);
      part.set(data.subarray(start, start + 4 * columns), 4 * row * columns);
    }
    return part;
  };
  const image = { width, height, jpeg, read };
  return [[...Fitting.fit(image, settings)], Fitting.geometry(settings, width, height)];
}"""
WIDE = [(40, 30), (301, 203), (640, 64), (501, 499), (32, 32), (3000, 33)]
TALL = [(30, 60), (64, 700), (33, 3000)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("fit", [{"fit": "squash"}, {"fit": "crop"}, {"fit": "crop", "resize": 40, "flip": True}])
def test_images_are_fitted_to_the_same_pixels(browser: Browser, fit: dict[str, Any], interpolation: str) -> None:  # noqa: F811
    preprocessing = Preprocessing(size=32, interpolation=interpolation, **fit)
    noise = np.random.default_rng(0)
    page = browser.new_page()
    try:
        # Its names are the script's own; a function makes them the page's.
        page.evaluate(f"() => {{ {read_asset('static_page_resize.js')}; window.Fitting = Fitting; }}")
        for width, height in (*WIDE, *TALL):
            # Which pass comes first shows in tall images, little in smooth ones, where nothing is clipped between.
            tall = (width, height) in TALL
            rows, columns, least = (7, 3, 60) if tall else (height, width, 0)
            pixels = noise.integers(least, 256 - least, (rows, columns, 3), dtype=np.uint8)
            image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
            expected = preprocessing.apply(image)
            text = base64.b64encode(image.convert("RGBA").tobytes()).decode()
            found, geometry = page.evaluate(FIT, [preprocessing.to_dict(), width, height, text, False])
            levels = np.abs(np.reshape(found, (32, 32, 3)) - expected.pixels.astype(int))
            assert levels.max() <= (2 if tall else 0), (width, height)
            assert geometry["box"] == pytest.approx(expected.geometry.box)
            assert geometry["flipped"] == expected.geometry.flipped
    finally:
        page.close()


def test_a_large_jpeg_comes_near_to_how_pillow_decodes_it(browser: Browser, tmp_path: Path) -> None:  # noqa: F811
    preprocessing = Preprocessing(size=32)
    photograph = Image.open(CAT).convert("RGB")
    photograph.save(tmp_path / "large.jpg", quality=90)
    page = browser.new_page()
    try:
        page.evaluate(f"() => {{ {read_asset('static_page_resize.js')}; window.Fitting = Fitting; }}")
        decoded = Image.open(tmp_path / "large.jpg").convert("RGBA")
        arguments = [preprocessing.to_dict(), *decoded.size, base64.b64encode(decoded.tobytes()).decode()]
        found, _ = page.evaluate(FIT, [*arguments, True])
        expected = preprocessing.read(tmp_path / "large.jpg").pixels.astype(int)
        assert np.abs(np.reshape(found, (32, 32, 3)) - expected).mean() < 1
    finally:
        page.close()


def test_a_large_photograph_does_not_stop_the_page(
    page_folder: Path,
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    with watched_page(browser, (page_folder / PAGE).as_uri(), allowed=ALLOWED, **CUT_OFF) as watched:
        page = watched.page
        page.wait_for_selector(READY)
        page.evaluate(COUNT_TURNS)
        found = answer_of(page, write_large(tmp_path / "large.jpg"))
        assert (found["geometry"]["width"], found["geometry"]["height"]) == (4000, 6000)
        (turns,) = page.evaluate("turnsWhileReading")
        assert turns == 1
        assert max(page.locator("img").evaluate_all(SHOWN)) <= 2048
