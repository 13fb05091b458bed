"""Text in figures: its fonts, its width, and drawing it on an image, whatever script it is in.

Text is DejaVu Sans, which comes with matplotlib and has Latin, Greek, Cyrillic, Hebrew, Arabic and some emoji. What it
lacks is taken from a font of this machine that has it, and is an empty box where none has.
"""

from __future__ import annotations

import importlib.util
import math
import unicodedata
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont, features

FAMILY = "DejaVu Sans"
_PLAIN = (range(0x2EA), range(0x380, 0x526))  # all of DejaVu Sans: Latin, Greek and Cyrillic, which most words are
_RIGHT_TO_LEFT = ("R", "AL")


def is_right_to_left(text: str) -> bool:
    """Tell whether the first letter of a text that has a direction runs from right to left."""
    directions = (unicodedata.bidirectional(character) for character in text)
    return next((each in _RIGHT_TO_LEFT for each in directions if each in ("L", *_RIGHT_TO_LEFT)), False)


def visual_order(text: str) -> str:
    """Return a text in the order of its glyphs from left to right, for what draws without a thought of direction.

    Runs of right-to-left letters are reversed, and so is the order of the runs in a text that begins with them. Arabic
    letters are not joined.
    """
    runs: list[list[str]] = []  # of characters, marks with the letters that they belong to
    last = None
    for character in text:
        kind = unicodedata.bidirectional(character)
        if runs and kind in ("NSM", "BN"):
            runs[-1][-1] += character
            continue
        backward = kind in _RIGHT_TO_LEFT or (last is True and kind not in ("L", "EN", "AN"))
        if backward is not last:
            runs.append([])
        runs[-1].append(character)
        last = backward
    ordered = [run[::-1] if is_right_to_left("".join(run)) else run for run in runs]
    return "".join("".join(run) for run in (ordered[::-1] if is_right_to_left(text) else ordered))


def text_width(text: str, pixels: float) -> float:
    """Return how many pixels a text of a font size, in pixels too, takes across."""
    return sum(_length(path, pixels, piece) for path, piece in _pieces(text))


def draw_text(
    canvas: NDArray[np.uint8], x: float, baseline: float, text: str, pixels: float, colour: str, side: str
) -> None:
    """Draw a text of a font size in pixels on pixels (height, width, 3); `x` is its "left", "middle" or "right"."""
    shift = {"left": 0.0, "middle": 0.5, "right": 1.0}[side]
    x -= shift * text_width(text, pixels) if shift else 0
    ink = np.array(ImageColor.getrgb(colour)[:3], dtype=np.uint32)
    for path, piece in _pieces(text):
        left, top = math.floor(x), math.floor(baseline)
        cover, (across, down) = _cover(path, pixels, piece, x - left, baseline - top)
        _spread_ink(canvas, left + across, top + down, cover, ink)
        x += _length(path, pixels, piece)


def _spread_ink(
    canvas: NDArray[np.uint8], left: int, top: int, cover: NDArray[np.uint8], ink: NDArray[np.uint32]
) -> None:
    """Colour what lies under a cover (height, width), 0..255, whose corner is there; it may reach over the edges."""
    cover = cover[max(-top, 0) :, max(-left, 0) :]
    below = canvas[max(top, 0) :, max(left, 0) :][: len(cover), : cover.shape[1]]  # (height, width, 3)
    share = cover[: len(below), : below.shape[1], None].astype(np.uint32)  # (height, width, 1)
    below[:] = (below * (255 - share) + ink * share + 127) // 255


@lru_cache(maxsize=2048)
def _cover(path: str, pixels: float, text: str, right: float, down: float) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return how much of each pixel a text covers (height, width), 0..255, and its corner from where the text starts.

    The text starts a fraction of a pixel further right and down. Captions share most of their words, and all digits.
    """
    font = _font(path, pixels)
    left, top, far, bottom = font.getbbox(text, anchor="ls")
    corner = math.floor(left) - 1, math.floor(top) - 1
    size = math.ceil(far) + 2 - corner[0], math.ceil(bottom) + 2 - corner[1]
    image = Image.new("L", size)
    ImageDraw.Draw(image).text((right - corner[0], down - corner[1]), text, fill=255, font=font, anchor="ls")
    return np.asarray(image), corner


@lru_cache(maxsize=2048)
def _length(path: str, pixels: float, text: str) -> float:
    return _font(path, pixels).getlength(text)


def font_families(text: str) -> list[str]:
    """Return the names of the fonts that a text is drawn with, DejaVu Sans first, as matplotlib knows them."""
    others = {_fallbacks().names[path] for path, _ in _pieces(text) if path != font_file()}
    return [FAMILY, *sorted(others)]


@cache
def font_file() -> str:
    """Return the path of DejaVu Sans."""
    package = importlib.util.find_spec("matplotlib")  # which is not imported: that takes longer than to draw
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf")


@lru_cache(maxsize=256)
def _font(path: str, pixels: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, pixels)


@lru_cache(maxsize=4096)
def _pieces(text: str) -> tuple[tuple[str, str], ...]:
    """Return a text in pieces of one font each, from left to right: paths of fonts, and what is drawn with them."""
    usual = font_file()
    pieces: list[tuple[str, str]] = []
    for character in text:
        if any(ord(character) in each for each in _PLAIN):
            path = usual
        elif pieces and (unicodedata.category(character) in ("Mn", "Me", "Cf") or 0x1F3FB <= ord(character) <= 0x1F3FF):
            path = pieces[-1][0]  # what changes the character before must stay with it
        else:
            path = _fallbacks().find(character)
        if pieces and pieces[-1][0] == path:
            pieces[-1] = path, pieces[-1][1] + character
        else:
            pieces.append((path, character))
    if is_right_to_left(text):
        pieces.reverse()
    if not features.check_feature("raqm"):  # Pillow's own layout knows no directions
        pieces = [(path, visual_order(piece)) for path, piece in pieces]
    return tuple(pieces)


class _Fallbacks:
    """Fonts of this machine for characters that DejaVu Sans lacks."""

    def __init__(self) -> None:
        from matplotlib import rcParams
        from matplotlib.font_manager import fontManager

        preferred = list(rcParams["font.sans-serif"])

        def rank(entry: Any) -> tuple[Any, ...]:
            place = preferred.index(entry.name) if entry.name in preferred else len(preferred)
            return place, "Sans" not in entry.name, entry.style != "normal", str(entry.weight), entry.name, entry.fname

        entries = sorted(fontManager.ttflist, key=rank)
        # matplotlib's font of last resort has a glyph for everything, but says nothing with it.
        self.names = {entry.fname: entry.name for entry in entries if not entry.name.startswith("Last Resort")}
        self.used = [font_file()]
        self.found: dict[str, str] = {}

    def find(self, character: str) -> str:
        """Return the path of a font that has a character, that of DejaVu Sans where none has."""
        if character not in self.found:
            known = next((path for path in self.used if _has(path, character)), None)
            path = known or next((path for path in self.names if _has(path, character)), font_file())
            if path not in self.used:
                self.used.append(path)
            self.found[character] = path
        return self.found[character]


@cache
def _fallbacks() -> _Fallbacks:
    return _Fallbacks()


def _has(path: str, character: str) -> bool:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):  # gone since matplotlib has listed it, or of bitmaps alone
        return False
    return font.get_char_index(ord(character)) != 0
