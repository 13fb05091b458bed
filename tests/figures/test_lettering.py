"""Text in figures: which way it runs, how wide it is, and what is drawn of characters that no font has."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import features

from captioner.figures import lettering
from captioner.figures.drawing import Label, Sheet, figure_bytes
from captioner.figures.lettering import draw_text, font_families, font_file, is_right_to_left, text_width, visual_order

SIZE = 40


def drawn(text: str, side: str = "left") -> NDArray[np.bool_]:
    """Return where there is ink (80, 400) of a text at the middle of the image."""
    canvas = np.full((80, 400, 3), 255, dtype=np.uint8)
    draw_text(canvas, 200, 50, text, SIZE, "#000000", side)
    return canvas[..., 0] < 128


def ink(text: str) -> NDArray[np.bool_]:
    """Return the ink of a text alone, cut out."""
    dark = drawn(text)
    return dark[:, dark.any(axis=0).argmax() : 400 - dark.any(axis=0)[::-1].argmax()]


def test_directions() -> None:
    assert is_right_to_left("שלום")
    assert is_right_to_left("5 مرحبا abc")
    assert not is_right_to_left("abc שלום")
    assert not is_right_to_left("$5 😀")
    assert not is_right_to_left("")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("abc", "abc"),
        ("", ""),
        ("אבג", "גבא"),
        ("אבג 12", "12 גבא"),
        ("x אבג", "x גבא"),
        ("שָׁב", "בשָׁ"),  # points stay with their letter
    ],
)
def test_visual_order(text: str, shown: str) -> None:
    assert visual_order(text) == shown


def test_hebrew_is_drawn_from_the_right() -> None:
    word = ink("אב")
    first, last = ink("א"), ink("ב")
    assert (word[:, : last.shape[1]] == last).mean() > 0.98
    assert (word[:, -first.shape[1] :] == first).mean() > 0.98


@pytest.mark.skipif(not features.check_feature("raqm"), reason="Pillow joins no Arabic letters without raqm")
def test_arabic_letters_are_joined() -> None:
    apart = ink("ب ب ب")
    joined = ink("ببب")
    assert (~apart.any(axis=0)).any()
    assert joined.any(axis=0).all()  # one stroke without a gap


def test_without_a_layout_engine_letters_still_stand_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ink("אבג")
    lettering._pieces.cache_clear()
    lettering._font.cache_clear()
    monkeypatch.setattr(features, "check_feature", lambda name: False)
    monkeypatch.setattr("PIL.ImageFont.core.HAVE_RAQM", False)
    try:
        found = ink("אבג")
    finally:
        lettering._pieces.cache_clear()
        lettering._font.cache_clear()
    assert found.shape[1] == pytest.approx(expected.shape[1], abs=2)
    both = min(found.shape[1], expected.shape[1])
    assert (found[:, :both] == expected[:, :both]).mean() > 0.9


def test_sides_and_widths() -> None:
    width = text_width("word", SIZE)
    for side, start in (("left", 200), ("middle", 200 - width / 2), ("right", 200 - width)):
        columns = np.flatnonzero(drawn("word", side).any(axis=0))
        assert columns[0] == pytest.approx(start, abs=6)
        assert columns[-1] == pytest.approx(start + width, abs=6)
    assert text_width("wordword", SIZE) == pytest.approx(2 * width, rel=0.02)
    assert text_width("word", 2 * SIZE) == pytest.approx(2 * width, rel=0.02)


@pytest.mark.parametrize("text", ["😀", "🐶", "👩‍🚀", "日本語", "\U0010fffd", "a\u0301", "\u200f", "\ufe0f"])
def test_anything_is_drawn_without_a_warning(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text_width(text, SIZE) >= 0
        drawn(text)
        sheet = Sheet(100, 30, 72, (Label(10, 20, text, 12),))
        for suffix in (".png", ".pdf", ".svg"):
            figure_bytes(sheet, suffix)
    assert text in figure_bytes(sheet, ".svg").decode()
    assert font_families(text)[0] == "DejaVu Sans"


def test_a_missing_character_is_looked_for_among_all_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def has(path: str, character: str) -> bool:
        asked.append(path)
        return path.endswith("DejaVuSerif.ttf")

    monkeypatch.setattr(lettering, "_has", has)
    fallbacks = lettering._Fallbacks()
    found = fallbacks.find("犬")
    assert found.endswith("DejaVuSerif.ttf")
    assert asked[0] == font_file()
    assert fallbacks.names[found] == "DejaVu Serif"
    count = len(asked)
    assert fallbacks.find("犬") == found
    assert len(asked) == count  # remembered
    assert fallbacks.find("猫") == found
    assert len(asked) == count + 2  # fonts that had something come first
    assert not any("LastResort" in path for path in asked)


def test_text_is_dejavu_sans() -> None:
    assert font_file().endswith("DejaVuSans.ttf")
    assert font_families("plain") == ["DejaVu Sans"]
