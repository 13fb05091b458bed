"""Two captions of one image: which words stand above each other, and where."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.toy_captions import SIDE, caption_of, flat
from PIL import Image

from captioner.figures.drawing import Label, Picture, Sheet, figure_bytes
from captioner.figures.word_grid import align_words, comparison
from captioner.images.preprocessing import Preprocessing


def words_of(sheet: Sheet, words: set[str]) -> list[Label]:
    return [mark for mark in sheet.marks if isinstance(mark, Label) and mark.text in words]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("a dog runs", "a dog runs", [(0, 0), (1, 1), (2, 2)]),
        ("a dog runs", "a brown dog runs", [(0, 0), (None, 1), (1, 2), (2, 3)]),
        ("a cat", "a dog", [(0, 0), (1, 1)]),
        ("two cats sleep", "a dog", [(0, 0), (1, 1), (2, None)]),
        ("", "a dog", [(None, 0), (None, 1)]),
        ("", "", []),
    ],
)
def test_words_that_go_together(first: str, second: str, pairs: list[tuple[int | None, int | None]]) -> None:
    assert list(align_words(first.split(), second.split())) == pairs


def test_every_word_comes_once_and_in_order() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        first, second = (list(chance.choice(["a", "b", "c", "d"], chance.integers(0, 12))) for _ in range(2))
        pairs = list(align_words(first, second))
        assert [one for one, _ in pairs if one is not None] == list(range(len(first)))
        assert [other for _, other in pairs if other is not None] == list(range(len(second)))
        assert (None, None) not in pairs


def test_rows_are_aligned_whatever_the_grids() -> None:
    size = (330, 220)
    soft = caption_of(np.full((3, 9, 9), 1 / 81), Preprocessing(SIDE).geometry(*size), ("one", "two", "four"))
    hard = caption_of(
        np.full((4, 14, 14), 1 / 196), Preprocessing(SIDE, "crop").geometry(*size), ("one", "two", "three", "four")
    )
    sheet = comparison(Image.new("RGB", size, "teal"), (soft, hard), ("soft", "hard"))
    found = words_of(sheet, {"one", "two", "three", "four"})
    upper, lower = min(label.baseline for label in found), max(label.baseline for label in found)
    above = {label.text: label.x for label in found if label.baseline == upper}
    below = {label.text: label.x for label in found if label.baseline == lower}
    assert set(above) == {"one", "two", "four"}
    assert set(below) == {"one", "two", "three", "four"}
    assert {word: below[word] for word in above} == above
    assert above["two"] < below["three"] < above["four"]
    names = words_of(sheet, {"soft", "hard"})
    assert [(name.text, name.baseline) for name in names] == [("soft", upper), ("hard", lower)]
    panels = [mark for mark in sheet.marks if isinstance(mark, Picture)]
    assert len(panels) == 2 + 3 + 4
    assert len({each.pixels.shape for each in panels}) == 1
    for suffix in (".png", ".pdf", ".svg"):
        assert figure_bytes(sheet, suffix)


@pytest.mark.parametrize("size", [(330, 220), (60, 600), (600, 60), (200, 200)])
def test_long_captions_go_on_below(size: tuple[int, int]) -> None:
    sheet = comparison(
        Image.new("RGB", size), (flat(20, size), flat(17, size, "crop")), ("soft", "hard"), width=5, dpi=80
    )
    boxes = [
        (each.left, each.top, each.left + each.pixels.shape[1], each.top + each.pixels.shape[0])
        for each in sheet.marks
        if isinstance(each, Picture)
    ]
    assert sheet.width <= 5 * 80
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= sheet.width
        assert 0 <= top < bottom <= sheet.height
        for other in boxes[number + 1 :]:
            assert other[0] >= right or other[1] >= bottom or other[2] <= left or other[3] <= top
    names = [label.text for label in words_of(sheet, {"soft", "hard"})]
    assert names == ["soft", "hard"] * (len(names) // 2)
    assert len(boxes) == 37 + len(names)


def test_captions_without_words_and_of_other_images() -> None:
    image = Image.new("RGB", (30, 20))
    assert comparison(image, (flat(0, (30, 20)), flat(0, (30, 20))), ("a", "b")).image().size
    with pytest.raises(ValueError, match="the image is 30 x 20 pixels; the caption is of one of 20 x 30"):
        comparison(image, (flat(1, (30, 20)), flat(1, (20, 30))), ("a", "b"))
