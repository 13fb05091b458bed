"""Figures of captions: the image once plain, then once for each word under the attention it was chosen with."""

from __future__ import annotations

from PIL import Image

from captioner.figures.figure_files import figure_bytes as figure_bytes
from captioner.figures.figure_files import save_figure as save_figure
from captioner.figures.masks import CaptionLike
from captioner.figures.masks import attention_map as attention_map
from captioner.figures.panels import Layout, Panels, check_figure
from captioner.figures.sheets import Sheet

BAR_KEY = "bar: gate β, 0 to 1"


def word_grid(
    image: Image.Image, caption: CaptionLike, *, style: str = "mask", width: float = 7.0, dpi: int = 200
) -> Sheet:
    """Return a figure of an upright image: first plain, then under the attention of each word, in reading order.

    At most `width` inches wide. Above each panel stand the word and its probability, below it a bar for its gate beta,
    0..1 from left to right. `style` is "mask" (bright and coloured where the word looked, the rest dim and grey),
    "heat" (a colour scale over the grey image) or "contour" (lines around the highest weights). Each word's attention
    is shown from its own lowest to its own highest weight, but if these differ by less than uniform attention weighs,
    with as much less contrast (see `figures.masks.visible_mask`): uniform attention is flat. What the network did not
    see is pale and hatched.
    """
    check_figure(image, caption, style, width, dpi)
    geometry = caption.geometry
    layout = Layout.fit(len(caption.words) + 1, geometry.width / geometry.height, width, dpi)
    panels = Panels(image, layout, style)
    marks = panels.draw_plain(0, 0)
    if caption.words:
        marks += panels.draw_key(0, 0, "probability", BAR_KEY)
    for index in range(len(caption.words)):
        marks += panels.draw_word(*divmod(index + 1, layout.columns), caption, index)
    return Sheet(*layout.size, dpi, tuple(marks))
