"""Animations: what each frame shows, for how long, and the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.toy_captions import GRID, SIDE, SIZES, caption_of, flat, one_cell
from PIL import Image, ImageColor

from captioner.figures.animation import animation_bytes, animation_frames, save_animation
from captioner.figures.drawing import BRIGHT
from captioner.figures.masks import STYLES
from captioner.images.preprocessing import Preprocessing


def marked(frame: Image.Image) -> list[int]:
    """Return the left and right of the marked word, nothing where there is none."""
    columns = np.flatnonzero((np.asarray(frame) == ImageColor.getrgb(BRIGHT)).all(axis=2).any(axis=0))
    return [int(columns[0]), int(columns[-1])] if columns.size else []


def test_a_frame_for_the_image_each_word_and_the_end() -> None:
    image = Image.new("RGB", (330, 220), (60, 90, 120))
    caption = caption_of(np.concatenate([one_cell(1, 1), one_cell(5, 7)]), Preprocessing(SIDE).geometry(330, 220))
    frames = animation_frames(image, caption, width=330)
    pictures, milliseconds = [frame for frame, _ in frames], [shown for _, shown in frames]
    assert len(frames) == 4
    assert len({picture.size for picture in pictures}) == 1
    assert milliseconds[-1] > 2 * milliseconds[1] == 2 * milliseconds[2]
    for first_or_last in (pictures[0], pictures[-1]):
        assert (np.asarray(first_or_last)[:220] == (60, 90, 120)).all()
        assert marked(first_or_last) == []
    assert marked(pictures[1])[1] < marked(pictures[2])[0]
    for picture, (row, column) in zip(pictures[1:3], ((1, 1), (5, 7)), strict=True):
        grey = np.asarray(picture)[:220].astype(int).sum(axis=2)
        bright = np.argwhere(grey >= grey.max() - 3).mean(axis=0)
        assert abs(bright[0] / 220 * GRID[0] - (row + 0.5)) < 0.5
        assert abs(bright[1] / 330 * GRID[1] - (column + 0.5)) < 0.5
    below = [np.asarray(picture)[220:].max(axis=2) < 100 for picture in pictures]
    assert [bool(dark.any()) for dark in below] == [False, True, True, True]
    assert below[1].sum() < below[2].sum()  # the caption grows
    assert np.array_equal(below[2], below[3])


def test_a_caption_from_the_right_begins_there() -> None:
    caption = caption_of(np.full((2, *GRID), 1 / 63), Preprocessing(SIDE).geometry(330, 220), ("איש", "כלב"))
    frames = animation_frames(Image.new("RGB", (330, 220)), caption)
    assert marked(frames[1][0])[0] > marked(frames[2][0])[1]
    assert marked(frames[1][0])[1] > 300


@pytest.mark.parametrize("shape", [*SIZES, "tower"])
@pytest.mark.parametrize("words", [0, 1, 30])
def test_words_stay_on_the_frame(words: int, shape: str) -> None:
    size = {**SIZES, "tower": (40, 400)}[shape]
    frames = animation_frames(Image.new("RGB", size, "navy"), flat(words, size), width=200)
    assert len(frames) == words + 2
    assert {frame.width for frame, _ in frames} == {200}
    assert max(frame.height for frame, _ in frames) < 1000
    for frame, _ in frames[1:-1]:
        left, right = marked(frame)
        assert 0 < left < right < 199
        assert (np.asarray(frame)[-2:] == 255).all()  # no text is cut off


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
@pytest.mark.parametrize("style", STYLES)
def test_files_begin_anew_and_hold_the_last_frame(style: str, suffix: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (330, 220), (60, 90, 120))
    caption = caption_of(
        np.concatenate([one_cell(1, 1), one_cell(5, 7)]), Preprocessing(SIDE, "crop").geometry(330, 220)
    )
    path = tmp_path / f"words{suffix.upper()}"
    save_animation(image, caption, path, style=style, width=160)
    expected = animation_frames(image, caption, style=style, width=160)
    with Image.open(path) as file:
        assert file.format == suffix[1:].upper()
        assert file.n_frames == 4
        assert file.info["loop"] == 0
        for number, (frame, milliseconds) in enumerate(expected):
            file.seek(number)
            found = np.asarray(file.convert("RGB")).astype(int)
            assert file.info["duration"] == milliseconds
            assert np.abs(found - np.asarray(frame)).mean() < 4
    assert path.stat().st_size < 60_000
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    image, caption = Image.new("RGB", (30, 20)), flat(1, (30, 20))
    with pytest.raises(ValueError, match=r"'words.mp4' has the suffix '.mp4'; choose from .gif, .webp"):
        save_animation(image, caption, tmp_path / "words.mp4")
    with pytest.raises(ValueError, match=r"suffix is '.png'; choose from .gif, .webp"):
        animation_bytes([], ".png")
    with pytest.raises(ValueError, match="width is 10; an animation is from 64 to 4096 pixels wide"):
        animation_frames(image, caption, width=10)
    with pytest.raises(ValueError, match="style is 'blur'"):
        animation_frames(image, caption, style="blur")
