"""Where the eye rested, over a picture of the image: points, how far was seen around them, and the way between them."""

from __future__ import annotations

from captioner.figures.drawing import Mark, Outline, Trace
from captioner.figures.masks import CaptionLike

DOT = 0.012  # half the side of a point, as a share of the picture's longer side
POINTS = (0.8, 0.5, 0.3)  # of the outlines of patches, the smallest first; of larger ones as of the last
PATH_POINTS = 0.8


def fixation_outlines(
    caption: CaptionLike, word: int, corner: tuple[float, float], size: tuple[int, int]
) -> list[Outline]:
    """Return the points of a word, and what is read around them at each scale, on a picture at a `corner`.

    The picture is of the whole image, `size` pixels; what would lie outside of it is cut off. Captions of models that
    do not choose points have none.
    """
    if caption.points is None:
        return []
    rows, columns = caption.attention.shape[1:]
    left, top, right, bottom = caption.geometry.box
    across, down = (right - left) / columns * size[0] / caption.geometry.width, (bottom - top) / rows
    down = down * size[1] / caption.geometry.height  # pixels of a cell
    marks = []
    for x, y in _places(caption, word, corner, size):
        for scale, extent in enumerate(caption.extents):
            edges = x - extent * across, y - extent * down, x + extent * across, y + extent * down
            marks.append(_inside(edges, corner, size, POINTS[min(scale, len(POINTS) - 1)]))
        marks.append(_dot(x, y, corner, size))
    return marks


def eye_path(caption: CaptionLike, corner: tuple[float, float], size: tuple[int, int]) -> list[Mark]:
    """Return the way of the eye over all words on a picture of the whole image; none where no points were chosen."""
    if caption.points is None or not caption.words:
        return []
    places = [place for word in range(len(caption.words)) for place in _places(caption, word, corner, size)]
    return [Trace(tuple(places), PATH_POINTS), *(_dot(x, y, corner, size) for x, y in places)]


def _places(
    caption: CaptionLike, word: int, corner: tuple[float, float], size: tuple[int, int]
) -> list[tuple[float, float]]:
    """Return the points of a word in pixels, x and y."""
    assert caption.points is not None
    geometry = caption.geometry
    rows, columns = caption.attention.shape[1:]
    left, top, right, bottom = geometry.box
    places = []
    for row, column in caption.points[word].tolist():
        share = (column + 0.5) / columns  # of the width that the network saw
        x = left + (1 - share if geometry.flipped else share) * (right - left)
        y = top + (row + 0.5) / rows * (bottom - top)
        places.append((corner[0] + x * size[0] / geometry.width, corner[1] + y * size[1] / geometry.height))
    return places


def _dot(x: float, y: float, corner: tuple[float, float], size: tuple[int, int]) -> Outline:
    half = max(DOT * max(size), 1.5)
    return _inside((x - half, y - half, x + half, y + half), corner, size, POINTS[0])


def _inside(
    edges: tuple[float, float, float, float], corner: tuple[float, float], size: tuple[int, int], points: float
) -> Outline:
    """Return an outline, cut off at the edges of the picture."""
    left, top, right, bottom = edges
    return Outline(
        max(left, corner[0]),
        max(top, corner[1]),
        min(right, corner[0] + size[0]),
        min(bottom, corner[1] + size[1]),
        points,
    )
