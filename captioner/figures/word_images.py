"""One picture per word: the whole original under the attention of that word, at its full resolution."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from captioner.figures.boxes import attended_boxes
from captioner.figures.drawing import Picture, Sheet
from captioner.figures.masks import CaptionLike, Raster, blend, draw_contours, to_levels, visible_mask
from captioner.figures.panels import check_size, check_style
from captioner.figures.png import png_bytes
from captioner.files import write_whole
from captioner.images.formats import to_rgb

_LONGEST_INCHES = 4.0  # stripes and lines are as wide as if an image's longer side were printed at this length
_STRIP = 1 << 20  # pixels blended at a time, so that a large image takes little more memory than itself
_WORD_BYTES = 100  # of a file's name


def word_image(image: Image.Image, caption: CaptionLike, word_index: int, *, style: str = "mask") -> Image.Image:
    """Return an upright image under the attention of one word, RGB and of the image's own size.

    `style` is as for `captioner.figures.word_grid.word_grid`.
    """
    check_style(style)
    check_size(image, caption)
    if not 0 <= word_index < len(caption.words):
        raise ValueError(f"word_index is {word_index}; the caption has words 0 to {len(caption.words) - 1}")
    weights = caption.attention[word_index]  # (rows, columns)
    mask = visible_mask(Raster(caption.geometry, weights.shape, image.size).spread(weights), weights.size)
    dpi = max(image.size) / _LONGEST_INCHES
    levels = np.array(to_rgb(image))  # (height, width, 3)
    height, width = mask.shape
    rows = max(_STRIP // width, 1)
    for top in range(0, height, rows):
        # A row more at either side, of which slopes are taken; stripes must go on from strip to strip.
        start, stop = max(top - 1, 0), min(top + rows + 1, height)
        pixels = levels[start:stop].astype(np.float32) / np.float32(255)  # (rows, width, 3)
        blended = blend(pixels, mask[start:stop], style, dpi, top=start)
        if style == "contour":
            blended = draw_contours(blended, mask[start:stop], dpi)
        levels[top : top + rows] = to_levels(blended[top - start : top - start + rows])
    if boxes := attended_boxes(caption, word_index, (0, 0), image.size):
        return Sheet(width, height, round(dpi), (Picture(0, 0, levels), *boxes)).image()
    return Image.fromarray(levels)


def save_word_images(
    image: Image.Image, caption: CaptionLike, folder: str | os.PathLike[str], *, style: str = "mask"
) -> list[Path]:
    """Write a PNG for each word into a folder, `000-a.png`, `001-dog.png` and so on, and return their paths.

    Pictures of an earlier caption there are removed.
    """
    check_size(image, caption)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(word_file_names(caption.words))
    for old in folder.glob("[0-9][0-9][0-9]*-*.png"):
        if old.name not in names:
            old.unlink()
    for index, name in enumerate(names):
        write_whole(folder / name, png_bytes(np.asarray(word_image(image, caption, index, style=style))))
    return [folder / name for name in names]


def word_file_names(words: tuple[str, ...]) -> Iterator[str]:
    """Yield a file name for each word: its place, and its letters and digits; what is neither becomes an underscore."""
    for index, word in enumerate(words):
        kept = "".join(
            character if unicodedata.category(character)[0] in "LNM" or character == "-" else "_"
            for character in unicodedata.normalize("NFC", word)
        ).strip("_")
        yield f"{index:03d}-{kept.encode()[:_WORD_BYTES].decode('utf-8', 'ignore') or 'word'}.png"
