"""Captions as moving pictures: word after word, the image under its attention and the caption growing below."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.figures.boxes import attended_boxes
from captioner.figures.drawing import BRIGHT, Bar, Label, Mark, Outline, Picture, Sheet
from captioner.figures.lettering import is_right_to_left, text_width
from captioner.figures.masks import Blender, CaptionLike, Raster, draw_contours, to_levels, visible_mask
from captioner.figures.panels import check_size, check_style
from captioner.files import write_whole
from captioner.images.formats import to_rgb

SUFFIXES = (".gif", ".webp")
WIDTH = 400  # pixels; a GIF of a photograph takes about 80 kB a word at this width
_FIRST, _WORD, _LAST = 900, 700, 2600  # milliseconds
_INCHES = 4.0  # of the width, for text and lines
_POINTS, _LINE = 13.0, 1.5
_MARGIN = 0.10  # inches


@dataclass(frozen=True)
class _Word:
    """Where a word of the caption stands."""

    text: str
    x: float
    baseline: float
    width: float


def animation_frames(
    image: Image.Image, caption: CaptionLike, *, style: str = "mask", width: int = WIDTH
) -> list[tuple[Image.Image, int]]:
    """Return frames of an animation, `width` pixels wide, and for how many milliseconds each is shown.

    First the upright image as it is, then a frame for each word, which is marked in the caption so far, and at the end
    the image with the whole caption, held longer. An image that is higher than twice its width is set smaller.
    `style` is as for `captioner.figures.word_grid.word_grid`.
    """
    check_style(style)
    check_size(image, caption)
    if not 64 <= width <= 4096:
        raise ValueError(f"width is {width}; an animation is from 64 to 4096 pixels wide")
    dpi = max(round(width / _INCHES), 16)
    page = _Page(caption, width, dpi)
    plain = np.asarray(to_rgb(image).resize(page.panel, Image.Resampling.LANCZOS, reducing_gap=3.0))
    frames = [(page.draw(plain, 0, current=False), _FIRST)]
    blend = Blender(plain.astype(np.float32) / np.float32(255), style, dpi)  # of (height, width, 3)
    raster = Raster(caption.geometry, caption.attention.shape[1:], page.panel)
    for word in range(len(caption.words)):
        weights = caption.attention[word]  # (rows, columns)
        mask = visible_mask(raster.spread(weights), weights.size)  # (height, width)
        blended = blend(mask)
        if style == "contour":
            blended = draw_contours(blended, mask, dpi)
        boxes = attended_boxes(caption, word, page.corner, page.panel)
        frames.append((page.draw(to_levels(blended), word + 1, current=True, boxes=boxes), _WORD))
    frames.append((page.draw(plain, len(caption.words), current=False), _LAST))
    return frames


class _Page:
    """What all frames share: the place of the image, and of the words below it."""

    def __init__(self, caption: CaptionLike, width: int, dpi: int) -> None:
        self.width, self.dpi = width, dpi
        geometry = caption.geometry
        shrink = min(1.0, 2 * geometry.width / geometry.height)
        across = max(round(width * shrink), 1)
        self.panel = across, max(round(across * geometry.height / geometry.width), 1)
        self.words = _set_words(caption.words, width, self.panel[1], dpi)
        lines = round((self.words[-1].baseline - self.words[0].baseline) / self._line) + 1 if self.words else 0
        self.height = self.panel[1] + (round(lines * self._line + 2 * _MARGIN * dpi) if lines else 0)

    @property
    def _line(self) -> float:
        return _LINE * _POINTS / 72 * self.dpi

    @property
    def corner(self) -> tuple[int, int]:
        """The left and top of the image."""
        return (self.width - self.panel[0]) // 2, 0

    def draw(
        self, pixels: NDArray[np.uint8], said: int, *, current: bool, boxes: Sequence[Outline] = ()
    ) -> Image.Image:
        """Return a frame with the first words, the last of them marked where it is the current one."""
        marks: list[Mark] = [Picture(*self.corner, pixels), *boxes]
        size = _POINTS / 72 * self.dpi
        for number, word in enumerate(self.words[:said], start=1):
            if current and number == said:
                padding = 0.18 * size
                top, height = word.baseline - 1.0 * size, 1.36 * size
                marks.append(Bar(word.x - padding, top, word.width + 2 * padding, height, BRIGHT))
            marks.append(Label(word.x, word.baseline, word.text, _POINTS))
        return Sheet(self.width, self.height, self.dpi, tuple(marks)).image()


def _set_words(words: tuple[str, ...], width: int, top: int, dpi: int) -> list[_Word]:
    """Return the words in lines below `top`; those of a right-to-left caption run from the right."""
    size = _POINTS / 72 * dpi
    margin, space = _MARGIN * dpi, 0.42 * size
    backward = is_right_to_left(" ".join(words))
    placed: list[_Word] = []
    used, baseline = 0.0, top + margin + 0.78 * _LINE * size
    for word in words:
        across = text_width(word, size)
        if used and used + across > width - 2 * margin:
            used, baseline = 0.0, baseline + _LINE * size
        x = width - margin - used - across if backward else margin + used
        placed.append(_Word(word, x, baseline, across))
        used += across + space
    return placed


def animation_bytes(frames: list[tuple[Image.Image, int]], suffix: str) -> bytes:
    """Return frames as the contents of a ".gif" or ".webp" file that begins anew after its end."""
    if suffix not in SUFFIXES:
        raise ValueError(f"suffix is {suffix!r}; choose from {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    images, milliseconds = [image for image, _ in frames], [shown for _, shown in frames]
    if suffix == ".gif":
        # Each frame has its own colours, which a photograph needs.
        images = [image.quantize(256, Image.Quantize.MEDIANCUT) for image in images]
        first, *others = images
        first.save(buffer, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=False)
    else:
        first, *others = images
        first.save(
            buffer, "WEBP", save_all=True, append_images=others, duration=milliseconds, loop=0, quality=82, method=4
        )
    return buffer.getvalue()


def save_animation(
    image: Image.Image,
    caption: CaptionLike,
    path: str | os.PathLike[str],
    *,
    style: str = "mask",
    width: int = WIDTH,
) -> None:
    """Write an animation as the GIF or WebP that the suffix asks for, whole or not at all; see `animation_frames`."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path.name!r} has the suffix {path.suffix!r}; choose from {', '.join(SUFFIXES)}")
    frames = animation_frames(image, caption, style=style, width=width)
    write_whole(path, animation_bytes(frames, path.suffix.lower()))
