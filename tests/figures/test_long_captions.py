"""Captions that are too long to draw, as a record from a stranger may have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toy_captions import flat
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.alignment import alignment_matrix
from captioner.figures.animation import save_animation
from captioner.figures.word_grid import word_grid
from captioner.figures.word_images import save_word_images

IMAGE = Image.new("RGB", (20, 10))
DRAWINGS: dict[str, Callable[[Caption, Path], object]] = {
    "grid": lambda caption, path: word_grid(IMAGE, caption),
    "matrix": lambda caption, path: alignment_matrix(caption),
    "animation": lambda caption, path: save_animation(IMAGE, caption, path / "x.gif"),
    "words": lambda caption, path: save_word_images(IMAGE, caption, path / "x.words"),
}


@pytest.mark.parametrize("kind", DRAWINGS)
def test_a_caption_of_thousands_of_words_or_letters_is_refused(kind: str, tmp_path: Path) -> None:
    long = flat(3_000, (20, 10))
    wide = replace(flat(1, (20, 10)), words=("a" * 5_000,))
    for caption in (long, wide):
        with pytest.raises(ValueError, match="at most 100 words of 100 letters are drawn"):
            DRAWINGS[kind](caption, tmp_path)
    assert list(tmp_path.iterdir()) == []
