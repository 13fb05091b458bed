"""A headless Chromium for tests of pages: the system's own, driven by playwright; without either such tests skip.

    from helpers.browser import browser, watched_page  # noqa: F401

    def test_page(browser):
        with watched_page(browser, path.as_uri()) as watched:
            watched.page.click("button")

A watched page fails its test where a script failed, something was written to the console as an error, or the page
asked for anything that the test does not allow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE: dict[str, Any] = {
    "viewport": {"width": 375, "height": 740},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
TIMEOUT = 600_000  # milliseconds: as other tests, for a machine that is very busy or short of memory


def find_chromium() -> str | None:
    """Return the path of a Chromium on this machine, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    # Chromium's own sandbox does not start for root; the pages here are the project's.
    arguments = ["--disable-gpu", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, headless=True, args=arguments)
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """A page, what went wrong in it, and the addresses it asked for."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def watched_page(
    browser: Browser,
    url: str,
    *,
    allowed: tuple[str, ...] = ("data:", "blob:"),
    expected: tuple[str, ...] = (),
    **context: Any,
) -> Iterator[Watched]:
    """Open a page in a context of its own, by default without motion, and check at the end that all went well.

    `allowed` are beginnings of addresses that it may ask for beside its own; `expected` are parts of console errors
    that the test provokes. `context` is given to `Browser.new_context`.
    """
    opened = browser.new_context(**{"reduced_motion": "reduce", **context})
    try:
        page = opened.new_page()
        page.set_default_timeout(TIMEOUT)
        watched = Watched(page)
        page.on("pageerror", lambda error: watched.problems.append(f"script: {error}"))
        page.on(
            "console",
            lambda message: (
                watched.problems.append(f"console: {message.text}") if message.type in ("error", "warning") else None
            ),
        )
        page.on("request", lambda request: watched.requests.append(request.url))
        page.goto(url)
        yield watched
        problems = [problem for problem in watched.problems if not any(part in problem for part in expected)]
        assert not problems
        own = url.partition("#")[0]
        assert not [
            address
            for address in watched.requests
            if address.partition("#")[0] != own and not address.startswith(allowed)
        ]
    finally:
        opened.close()
