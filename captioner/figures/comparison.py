"""Two captions of one image, by two models or two searches, word by word, one above the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from PIL import Image

from captioner.figures.masks import CaptionLike
from captioner.figures.panels import Layout, Panels, check_figure
from captioner.figures.sheets import Mark, Sheet
from captioner.figures.word_grid import BAR_KEY


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
    their grids and the parts of the image that were seen in size. Panels are those of `captioner.figures.word_grid.word_grid`.
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
