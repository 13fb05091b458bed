"""Figures of captions: the image once plain, then once for each word under the attention it was chosen with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from PIL import Image

from captioner.figures.drawing import Mark, Sheet
from captioner.figures.fixations import eye_path
from captioner.figures.masks import CaptionLike
from captioner.figures.panels import Layout, Panels, check_figure

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
    see is pale and hatched. Where points to look at were chosen, the plain image has the way of the eye, and each word
    its points, with an outline of what was read around them at each scale.
    """
    check_figure(image, caption, style, width, dpi)
    geometry = caption.geometry
    layout = Layout.fit(len(caption.words) + 1, geometry.width / geometry.height, width, dpi)
    panels = Panels(image, layout, style)
    marks = [*panels.draw_plain(0, 0), *eye_path(caption, layout.panel_corner(0, 0), layout.panel)]
    if caption.words:
        marks += panels.draw_key(0, 0, "probability", BAR_KEY)
    for index in range(len(caption.words)):
        marks += panels.draw_word(*divmod(index + 1, layout.columns), caption, index)
    return Sheet(*layout.size, dpi, tuple(marks))


def comparison(
    image: Image.Image,
    captions: tuple[CaptionLike, CaptionLike],
    names: tuple[str, str],
    *,
    style: str = "mask",
    width: float = 7.0,
    dpi: int = 200,
) -> Sheet:
    """Return a figure of two captions of an upright image, with a row for each, as wide as `width` inches.

    Words that both have stand above each other, and so do those that stand in for each other; where one caption has
    words more, the other leaves a gap. Long captions go on in two further rows. The captions may differ in length, and
    their grids and the parts of the image that were seen in size. Panels are those of `word_grid`.
    """
    for caption in captions:
        check_figure(image, caption, style, width, dpi)
    pairs = list(align_words(captions[0].words, captions[1].words))
    geometry = captions[0].geometry
    layout = Layout.fit(len(pairs), geometry.width / geometry.height, width, dpi, heads=1, tracks=2)
    panels = Panels(image, layout, style)
    marks: list[Mark] = []
    across = layout.columns - 1
    for row in range(layout.rows):
        marks += panels.draw_plain(row, 0, names[row % 2])
    if pairs:
        marks += panels.draw_key(0, 0, None, BAR_KEY) + panels.draw_key(1, 0, None, "number: probability")
    for place, pair in enumerate(pairs):
        band, column = divmod(place, across)
        for track, (caption, word) in enumerate(zip(captions, pair, strict=True)):
            if word is not None:
                marks += panels.draw_word(2 * band + track, column + 1, caption, word)
    return Sheet(*layout.size, dpi, tuple(marks))


def align_words(first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the places of words that go together in two captions, None where one has none to go with the other's."""
    for _, start, stop, other_start, other_stop in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        yield from zip_longest(range(start, stop), range(other_start, other_stop))
