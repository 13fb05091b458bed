"""The report in a real browser: it asks for nothing, fits a telephone, follows dark screens and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.browser import PHONE, browser, watched_page  # noqa: F401
from helpers.toy_report import BAD, GOOD, HOSTILE, REFERENCES, compare

from captioner.evaluation.analysis.analysis import analyse
from captioner.evaluation.report.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
# The contrast of the text of all elements with text of their own to what is behind them, by WCAG's formula.
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let own = element; own; own = own.parentElement) {
      const colour = numbers(getComputedStyle(own).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return [255, 255, 255];
  };
  let least = 99;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const colour = numbers(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [low, high] = [light(colour), light(behind(element))].sort((a, b) => a - b);
    least = Math.min(least, (high + 0.05) / (low + 0.05));
  }
  return least;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    long_name = "a-model-with-a-name-that-is-much-too-long-for-a-narrow-screen-" + "x" * 60
    comparison = compare(
        folder / "images",
        {"good": GOOD, long_name: BAD, HOSTILE[1]: HOSTILE},
        references=[(text, *REFERENCES[number]) for number, text in enumerate(HOSTILE)],
        names=[f"{number}-{'long' * 30}{text}" for number, text in enumerate(HOSTILE * 3)],
    )
    return write_report(folder, comparison, analyse(comparison), title=HOSTILE[3]).as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_asked_for_and_all_text_can_be_read(browser: Browser, report: str, theme: str) -> None:  # noqa: F811
    with watched_page(browser, report, color_scheme=theme) as watched:
        page = watched.page
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 100)")
        width, room = page.evaluate(WIDTHS)
        assert width <= room
        assert page.evaluate(CONTRAST) >= 4.5
        paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is (theme == "light")
        assert page.locator(".wide").first.is_visible()
        assert not page.locator(".narrow").first.is_visible()


def test_a_telephone_scrolls_one_way_only(browser: Browser, report: str) -> None:  # noqa: F811
    with watched_page(browser, report, **PHONE) as watched:
        page = watched.page
        width, room = page.evaluate(WIDTHS)
        assert width <= room == 375
        assert page.locator(".narrow").first.is_visible()
        assert not page.locator(".wide").first.is_visible()
        # What is wider scrolls within its own frame, and what it is about stays within the screen.
        assert page.evaluate(
            "[...document.querySelectorAll('caption')].every((own) => own.getBoundingClientRect().width <= 375)"
        )


def test_it_prints_in_black_on_white(browser: Browser, report: str, tmp_path: Path) -> None:  # noqa: F811
    with watched_page(browser, report, color_scheme="dark") as watched:
        page = watched.page
        contents = page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
        assert contents.startswith(b"%PDF")
        assert contents.count(b"/Type /Page\n") > 2
        page.set_viewport_size({"width": 680, "height": 960})  # what A4 has room for
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate(CONTRAST) >= 4.5
        assert not page.locator("nav").is_visible()
        assert page.locator(".wide").first.is_visible()
