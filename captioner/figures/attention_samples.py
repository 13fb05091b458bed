"""Hard attention made visible: for each word the one region that was looked at, in several draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.figures.boxes import region_outline
from captioner.figures.drawing import Mark, Sheet
from captioner.figures.masks import CaptionLike
from captioner.figures.panels import Layout, Panels, check_figure

_SCALE = 0.72  # there are many panels


def likeliest_regions(caption: CaptionLike) -> NDArray[np.int64]:
    """Return the row and column of the region of the highest weight for each of T words, (T, 2)."""
    words, rows, columns = caption.attention.shape
    best = caption.attention.reshape(words, rows * columns).argmax(axis=1)  # (T,)
    return np.stack(np.divmod(best, columns), axis=1)


def sample_regions(caption: CaptionLike, samples: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the rows and columns of regions drawn for each of T words by their weights, (samples, T, 2).

    These are samples of s_t ~ Multinoulli(alpha_t), section 4.1, with the weights that the caption records. The same
    seed gives the same samples, and of more samples the first are the same.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1")
    words, rows, columns = caption.attention.shape
    weights = caption.attention.reshape(words, rows * columns).astype(np.float64)  # (T, L)
    shares = (weights / weights.sum(axis=1, keepdims=True)).cumsum(axis=1)  # (T, L)
    uniform = np.random.default_rng(seed).random((samples, words, 1))  # (samples, T, 1)
    drawn = (shares <= uniform).sum(axis=2).clip(max=rows * columns - 1)  # (samples, T)
    return np.stack(np.divmod(drawn, columns), axis=2)


def samples_figure(
    image: Image.Image,
    caption: CaptionLike,
    *,
    samples: int = 3,
    seed: int = 0,
    style: str = "mask",
    width: float = 7.0,
    dpi: int = 200,
) -> Sheet:
    """Return a figure of an upright image with a row of outlined regions, the likeliest ones and those of each sample.

    Above each panel stand the word and the weight of its region. The rest is as for `word_grid`.
    """
    check_figure(image, caption, style, width, dpi)
    words = len(caption.words)
    tracks = {"likeliest": likeliest_regions(caption)}
    for number, drawn in enumerate(sample_regions(caption, samples, seed), start=1):
        tracks[f"sample {number}"] = drawn
    geometry = caption.geometry
    layout = Layout.fit(words, geometry.width / geometry.height, width, dpi, heads=1, tracks=len(tracks), scale=_SCALE)
    panels = Panels(image, layout, style)
    marks: list[Mark] = []
    across = layout.columns - 1
    for row in range(layout.rows):
        marks += panels.draw_plain(row, 0, list(tracks)[row % len(tracks)])
    if words:
        marks += panels.draw_key(0, 0, None, "number: weight of the region")
    for word in range(words):
        band, column = divmod(word, across)
        attended = panels.draw_attention(0, 0, caption, word)  # the same in every row
        for track, regions in enumerate(tracks.values()):
            place = band * len(tracks) + track, column + 1
            cell = int(regions[word, 0]), int(regions[word, 1])
            marks += panels.move(attended, *place)
            marks += panels.draw_label(*place, caption.words[word], float(caption.attention[word][cell]))
            marks.append(region_outline(caption, cell, layout.panel_corner(*place), layout.panel))
    return Sheet(*layout.size, dpi, tuple(marks))
