"""The files of the pages: scripts and styles, read from `browser/`.

`VIEWER` and `VIEWER_STYLE` are the caption viewer that every page shares; viewer.js tells how it is used. `PAGE_FILES`
are what `captioner serve` sends, with their content types.
"""

from __future__ import annotations

from importlib import resources

BROWSER = resources.files(__package__) / "browser"
VIEWER = ("attention.js", "fixations.js", "viewer.js")  # in the order in which a page needs them
VIEWER_STYLE = "viewer.css"
PAGE_FILES = {
    "serve.html": "text/html",
    "serve.css": "text/css",
    "docs.css": "text/css",
    VIEWER_STYLE: "text/css",
    **dict.fromkeys(
        (
            *VIEWER,
            *("theme.js", "corrections.js", "shrinking.js", "incoming.js", "client.js", "offers.js", "serve.js"),
        ),
        "text/javascript",
    ),
}


def read_asset(name: str) -> str:
    """Return the text of one of the package's web files."""
    file = BROWSER / name
    if not name or "/" in name or "\\" in name or not file.is_file():
        raise ValueError(f"{name!r} is not a web file; there are {', '.join(_names())}")
    return file.read_text(encoding="utf-8")


def _names() -> list[str]:
    return sorted(file.name for file in BROWSER.iterdir())
