"""One picture a word: full size, and under a safe name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, caption_of, flat, one_cell, seen_box
from PIL import Image

from captioner.figures import word_images
from captioner.figures.masks import STYLES
from captioner.figures.word_images import save_word_images, word_file_names, word_image
from captioner.images.preprocessing import Preprocessing


@pytest.mark.parametrize("style", ["mask", "heat"])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_picture_is_brightest_on_the_pixels_of_the_cell(shape: str, fitting: str, style: str) -> None:
    size = SIZES[shape]
    left, top, width, height = seen_box(size, FITTINGS[fitting])
    geometry = Preprocessing(SIDE, **FITTINGS[fitting]).geometry(*size)
    drawn = word_image(Image.new("RGB", size, (90, 90, 90)), caption_of(one_cell(2, 6), geometry), 0, style=style)
    assert drawn.size == size
    grey = np.asarray(drawn).astype(int).sum(axis=2)
    inner = grey[round(top) + 1 : round(top + height) - 1, round(left) + 1 : round(left + width) - 1]  # not hatched
    bright = np.argwhere(inner >= inner.max() - 4).mean(axis=0) + 1.5 + [round(top), round(left)]
    assert abs(bright[0] - (top + 2.5 * height / GRID[0])) <= 0.5 * height / GRID[0]
    assert abs(bright[1] - (left + 6.5 * width / GRID[1])) <= 0.5 * width / GRID[1]


@pytest.mark.parametrize("style", STYLES)
def test_strips_do_not_show(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    image = Image.fromarray(chance.integers(0, 256, (50, 130, 3), dtype=np.uint8))
    caption = caption_of(
        chance.dirichlet(np.full(63, 0.2), 1).reshape(1, *GRID), Preprocessing(SIDE, "crop").geometry(130, 50)
    )
    whole = np.asarray(word_image(image, caption, 0, style=style))
    monkeypatch.setattr(word_images, "_STRIP", 130 * 7)
    assert np.array_equal(np.asarray(word_image(image, caption, 0, style=style)), whole)


def test_a_file_a_word(tmp_path: Path) -> None:
    caption = flat(3, (40, 30))
    image = Image.new("RGB", (40, 30), "teal")
    (tmp_path / "words").mkdir()
    for old in ("007-old.png", "photo.png", "notes.txt"):
        (tmp_path / "words" / old).write_bytes(b"old")
    paths = save_word_images(image, caption, tmp_path / "words", style="heat")
    assert [path.name for path in paths] == ["000-word0.png", "001-word1.png", "002-word2.png"]
    assert sorted(path.name for path in (tmp_path / "words").iterdir()) == sorted(
        ["000-word0.png", "001-word1.png", "002-word2.png", "notes.txt", "photo.png"]
    )
    with Image.open(paths[1]) as drawn:
        assert drawn.size == (40, 30)
        assert np.array_equal(np.asarray(drawn), np.asarray(word_image(image, caption, 1, style="heat")))


def test_names_are_safe() -> None:
    words = ("a", "dog", "'s", "../../etc/passwd", "a/b\\c", '"quoted"', "😀", "naïve", "שלום", "x" * 500, "犬" * 200,
             "", "con", "a:b*c?", "\n", "x-ray", "\udcff", "e\u0301")  # fmt: skip
    names = list(word_file_names(words))
    assert len({name.lower() for name in names}) == len(words)
    assert names[:3] == ["000-a.png", "001-dog.png", "002-s.png"]
    assert names[6] == "006-word.png"
    assert names[7] == "007-naïve.png"
    assert names[15] == "015-x-ray.png"
    assert names[17] == "017-é.png"
    for name in names:
        assert len(name.encode()) <= 110
        assert Path(name).name == name
        assert not set(name) & set('/\\:*?"<>|\n\0')


def test_wrong_arguments_are_named() -> None:
    caption, image = flat(2, (40, 30)), Image.new("RGB", (40, 30))
    with pytest.raises(ValueError, match="word_index is 2; the caption has words 0 to 1"):
        word_image(image, caption, 2)
    with pytest.raises(ValueError, match="style is 'blur'; choose from mask, heat, contour"):
        word_image(image, caption, 0, style="blur")
    with pytest.raises(ValueError, match="the image is 30 x 40 pixels; the caption is of one of 40 x 30"):
        word_image(Image.new("RGB", (30, 40)), caption, 0)
