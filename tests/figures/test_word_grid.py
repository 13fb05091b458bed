"""Figures of captions: what they show, where, and how they are written."""

from __future__ import annotations

import gc
import io
import re
import subprocess
import sys
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, caption_of, flat, one_cell, seen_box
from matplotlib.colors import to_rgb as colour_of
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from captioner.figures.drawing import Bar, Label, Picture, Sheet, figure_bytes, save_figure
from captioner.figures.lettering import text_width
from captioner.figures.masks import STYLES
from captioner.figures.vector_files import make_figure
from captioner.figures.word_grid import word_grid
from captioner.images.preprocessing import Preprocessing

STRANGE = ("$x_1^2$", "cost", "$5", "a_b", "^", "{", "\\alpha", "😀", "שלום", "مرحبا", "<b>&amp;")


def render(sheet: Sheet) -> NDArray[np.uint8]:
    """Return the pixels of a figure (height, width, 3)."""
    return np.asarray(sheet.image())


def pictures(sheet: Sheet) -> list[Picture]:
    return [mark for mark in sheet.marks if isinstance(mark, Picture)]


def extents(sheet: Sheet) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom of each panel, the plain image's first."""
    return [
        (each.left, each.top, each.left + each.pixels.shape[1], each.top + each.pixels.shape[0])
        for each in pictures(sheet)
    ]


def panel_of(sheet: Sheet, drawn: NDArray[np.uint8], index: int) -> NDArray[np.uint8]:
    """Return the pixels of one panel, the plain image being the first."""
    left, top, right, bottom = extents(sheet)[index]
    return drawn[top:bottom, left:right]


def labels(sheet: Sheet) -> list[Label]:
    return [mark for mark in sheet.marks if isinstance(mark, Label)]


def agg(sheet: Sheet) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 3) that matplotlib makes of a figure."""
    figure = make_figure(sheet, reorder=False)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3]


# Panels


@pytest.mark.parametrize("style", ["mask", "heat"])
@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("shape", SIZES)
def test_figure_is_brightest_where_the_word_looked(shape: str, fitting: str, style: str) -> None:
    size = SIZES[shape]
    left, top, width, height = seen_box(size, FITTINGS[fitting])
    geometry = Preprocessing(SIDE, **FITTINGS[fitting], flip=True).geometry(*size)
    attention = np.concatenate([one_cell(2, 6), one_cell(4, 3)])
    figure = word_grid(
        Image.new("RGB", size, (90, 90, 90)), caption_of(attention, geometry), style=style, width=5, dpi=120
    )
    drawn = render(figure)
    for index, (row, column) in enumerate([(2, 6), (4, 3)], start=1):
        panel = panel_of(figure, drawn, index).mean(axis=2)
        scale = panel.shape[1] / size[0], panel.shape[0] / size[1]
        edges = [round(edge) for edge in (left * scale[0], (left + width) * scale[0])]
        edges += [round(edge) for edge in (top * scale[1], (top + height) * scale[1])]
        seen = panel[edges[2] + 1 : edges[3] - 1, edges[0] + 1 : edges[1] - 1]  # the hatched margins may be brighter
        bright = np.argwhere(seen >= seen.max() - 2).mean(axis=0)
        assert abs((bright[0] + 1) / seen.shape[0] * GRID[0] - (row + 0.5)) < 0.5
        assert abs((bright[1] + 1) / seen.shape[1] * GRID[1] - (GRID[1] - 1 - column + 0.5)) < 0.5


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("words", [0, 1, 3, 18])
def test_grid_has_a_panel_for_the_image_and_each_word(words: int, shape: str, style: str) -> None:
    size = SIZES[shape]
    figure = word_grid(Image.new("RGB", size, "teal"), flat(words, size), style=style, dpi=100)
    boxes = extents(figure)
    assert len(boxes) == words + 1
    assert figure.width <= 7 * figure.dpi
    assert [(top, left) for left, top, _, _ in boxes] == sorted((top, left) for left, top, _, _ in boxes)
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= figure.width
        assert 0 <= top < bottom <= figure.height
        aspect = size[0] / size[1]
        assert right - left == pytest.approx((bottom - top) * aspect, abs=0.5 * aspect + 1)  # to the nearest pixel
        for other in boxes[number + 1 :]:
            assert other[0] >= right or other[1] >= bottom
    rows = [sum(top == row for _, top, _, _ in boxes) for row in sorted({box[1] for box in boxes})]
    assert set(rows[:-1]) <= {rows[0]}  # all but the last are full
    assert len(rows) > 1 if words == 18 else len(rows) <= 2
    assert figure.height / figure.dpi < 9  # of a page


def test_panels_are_drawn_pixel_for_pixel() -> None:
    chance = np.random.default_rng(0)
    image = Image.fromarray(chance.integers(0, 256, (200, 300, 3), dtype=np.uint8))
    for width, dpi in ((7.0, 200), (3.3, 123), (5.01, 99)):
        figure = word_grid(image, flat(9, image.size, "crop"), width=width, dpi=dpi)
        drawn = render(figure)
        vector = agg(figure)
        for index, picture in enumerate(pictures(figure)):
            assert np.array_equal(panel_of(figure, drawn, index), picture.pixels)
            assert np.array_equal(panel_of(figure, vector, index), picture.pixels)
        plain = panel_of(figure, drawn, 0)
        expected = image.resize(plain.shape[1::-1], Image.Resampling.LANCZOS, reducing_gap=3.0)
        assert np.array_equal(plain, np.asarray(expected))


def test_words_stand_as_they_are_with_their_probabilities() -> None:
    attention = np.full((len(STRANGE), *GRID), 1 / 63)
    caption = caption_of(attention, Preprocessing(SIDE).geometry(300, 200), STRANGE)
    figure = word_grid(Image.new("RGB", (300, 200)), caption)
    shown = [label.text for label in labels(figure)]
    assert [text for text in shown if text in STRANGE] == list(STRANGE)
    numbers = [f"{probability:.2f}" for probability in caption.probabilities]
    assert [text for text in shown if text in numbers] == numbers
    with matplotlib.rc_context({"text.usetex": True, "text.parse_math": True}), warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = make_figure(figure, reorder=False)
        drawn.canvas.draw()
        assert [text.get_text() for text in drawn.axes[0].texts] == shown
        assert not any(text.get_usetex() or text.get_parse_math() for text in drawn.axes[0].texts)


def test_long_words_stay_above_their_own_panel() -> None:
    words = ("a", "incomprehensibilities", "W" * 12)
    for size in ((300, 200), (40, 400)):
        caption = caption_of(np.full((3, *GRID), 1 / 63), Preprocessing(SIDE).geometry(*size), words)
        figure = word_grid(Image.new("RGB", size), caption, width=3.0)
        boxes = []
        for label in labels(figure):
            across = text_width(label.text, label.points / 72 * figure.dpi)
            left = label.x - across if label.side == "right" else label.x
            boxes.append((left, label.baseline, left + across))
            assert left >= -1
            assert left + across <= figure.width + 1
        for number, (left, baseline, right) in enumerate(boxes):
            for other in boxes[number + 1 :]:
                assert other[1] != baseline or other[0] >= right or other[2] <= left


def test_both_ways_to_draw_look_alike() -> None:
    chance = np.random.default_rng(0)
    attention = chance.dirichlet(np.full(63, 0.2), 5).reshape(5, *GRID)
    image = Image.fromarray(chance.integers(0, 256, (20, 30, 3), dtype=np.uint8)).resize((300, 200))
    for style in STYLES:
        caption = caption_of(attention, Preprocessing(SIDE, "crop").geometry(300, 200))
        figure = word_grid(image, caption, style=style, width=5, dpi=150)
        own, other = render(figure).astype(int), agg(figure).astype(int)
        # Letters and lines are smoothed in other ways; seen from afar, where it does not matter, all is the same.
        blurred = [np.asarray(Image.fromarray(each.astype(np.uint8)).reduce(6)).astype(int) for each in (own, other)]
        assert np.abs(blurred[0] - blurred[1]).max() < 80
        assert np.abs(own - other).mean() < 2.5


@pytest.mark.parametrize("size", [(300, 200), (50, 500)])
def test_bars_are_as_long_as_beta(size: tuple[int, int]) -> None:
    caption = flat(6, size)
    figure = word_grid(Image.new("RGB", size), caption)
    bars = [mark for mark in figure.marks if isinstance(mark, Bar)]
    whole, filled = bars[::2], bars[1::2]
    for track, (left, _, right, _) in zip(whole, extents(figure)[1:], strict=True):
        assert track.left + track.width / 2 == pytest.approx((left + right) / 2, abs=0.5)  # under the middle
    shares = [bar.width / track.width for bar, track in zip(filled, whole, strict=True)]
    assert shares == pytest.approx(caption.beta.tolist(), rel=1e-6)
    bar, track = filled[0], whole[0]
    for drawn in (render(figure), agg(figure)):
        row = drawn[int(bar.top + bar.height / 2), int(track.left) : int(track.left + track.width)]
        dark = np.abs(row / 255 - colour_of(bar.colour)).max(axis=1) < 0.02
        assert dark.sum() == pytest.approx(bar.width, abs=1)


def test_uniform_attention_is_flat_in_every_style() -> None:
    image = Image.new("RGB", (300, 200), (120, 90, 60))
    for style in STYLES:
        figure = word_grid(image, flat(1, image.size), style=style)
        panel = panel_of(figure, render(figure), 1)
        assert np.ptp(panel, axis=(0, 1)).max() <= 1  # rounding


def test_contours_run_around_the_peak_alone() -> None:
    caption = caption_of(one_cell(3, 4), Preprocessing(SIDE).geometry(300, 200))
    image = Image.new("RGB", (300, 200), (90, 90, 90))
    figure = word_grid(image, caption, style="contour")
    for drawn in (render(figure), agg(figure)):
        panel = panel_of(figure, drawn, 1).astype(int)
        changed = np.argwhere(np.abs(panel - panel[0, 0]).max(axis=2) > 30)
        middle = changed.mean(axis=0) / panel.shape[:2] * GRID
        assert middle == pytest.approx([3.5, 4.5], abs=0.2)
        assert np.abs(changed / panel.shape[:2] * GRID - [3.5, 4.5]).max() < 1.5


def test_what_was_not_seen_is_hatched_except_in_the_plain_image() -> None:
    image = Image.new("RGB", (300, 100), (60, 60, 60))
    figure = word_grid(image, flat(2, image.size, "crop"))
    drawn = render(figure)
    assert (panel_of(figure, drawn, 0) == 60).all()
    panel = panel_of(figure, drawn, 1)
    third = panel.shape[1] // 3
    for margin in (panel[:, : third - 2], panel[:, -third + 2 :]):
        assert margin.min() > 150  # pale
        assert len(np.unique(margin)) == 2  # stripes
    middle = panel[:, third + 2 : -third - 2]
    assert np.ptp(middle) <= 1
    assert middle.max() < 150


def test_a_smaller_copy_of_the_image_will_do_but_not_one_on_its_side() -> None:
    caption = flat(1, (1200, 803))
    word_grid(Image.new("RGB", (300, 201)), caption)
    with pytest.raises(ValueError, match="the image is 803 x 1200 pixels; the caption is of one of 1200 x 803"):
        word_grid(Image.new("RGB", (803, 1200)), caption)


@pytest.mark.parametrize("size", [(1, 1), (4000, 1), (1, 4000), (3, 2)])
def test_images_of_any_shape_are_drawn(size: tuple[int, int]) -> None:
    for fit in ("crop", "squash"):
        for style in STYLES:
            figure = word_grid(Image.new("RGB", size), flat(2, size, fit), style=style, dpi=60)
            render(figure)
            agg(figure)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"style": "blur"}, "style is 'blur'; choose from mask, heat, contour"),
        ({"width": 0.2}, "width is 0.2; it must be from 1 to 20 inches"),
        ({"width": float("nan")}, "width is nan; it must be from 1 to 20 inches"),
        ({"dpi": 5}, "dpi is 5; it must be from 30 to 1200"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        word_grid(Image.new("RGB", (30, 20)), flat(1, (30, 20)), **settings)


# Files


@pytest.fixture
def strange_figure() -> Sheet:
    caption = caption_of(np.full((len(STRANGE), 2, 2), 0.25), Preprocessing(SIDE).geometry(60, 40), STRANGE)
    return word_grid(Image.new("RGB", (60, 40), "olive"), caption, style="contour", width=4, dpi=80)


def test_png_has_the_size_of_the_figure(strange_figure: Sheet, tmp_path: Path) -> None:
    save_figure(strange_figure, tmp_path / "grid.PNG")
    with Image.open(tmp_path / "grid.PNG") as drawn:
        assert drawn.mode == "RGB"
        assert drawn.info["dpi"] == pytest.approx((80, 80), abs=0.1)
        assert np.array_equal(np.asarray(drawn), render(strange_figure))


def test_vector_files_hold_text(strange_figure: Sheet, tmp_path: Path) -> None:
    for name in ("grid.svg", "grid.pdf"):
        save_figure(strange_figure, str(tmp_path / name))
    svg = (tmp_path / "grid.svg").read_text(encoding="utf-8")
    for word in ("$x_1^2$", "a_b", "😀", "שלום", "&lt;b&gt;&amp;amp;"):
        assert f">{word}</text>" in svg
    assert svg.count("<image") == len(STRANGE) + 1
    pdf = (tmp_path / "grid.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # TrueType, which type 42 is
    assert b"/Type3" not in pdf


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_same_figure_same_bytes(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for number, path in enumerate(paths):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(number * 86400))
        caption = caption_of(one_cell(3, 4), Preprocessing(SIDE).geometry(60, 40))
        save_figure(word_grid(Image.new("RGB", (60, 40)), caption, style="contour", width=3, dpi=60), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert re.search(rb"CreationDate|<dc:date>|tIME", first) is None


def test_bytes_are_those_of_the_file(strange_figure: Sheet, tmp_path: Path) -> None:
    for suffix in (".png", ".pdf", ".svg"):
        save_figure(strange_figure, tmp_path / f"grid{suffix}")
        assert (tmp_path / f"grid{suffix}").read_bytes() == figure_bytes(strange_figure, suffix)
    with pytest.raises(ValueError, match=r"suffix is 'png'; choose from .png, .pdf, .svg"):
        figure_bytes(strange_figure, "png")


def test_a_notebook_shows_the_pixels(strange_figure: Sheet) -> None:
    with Image.open(io.BytesIO(strange_figure._repr_png_())) as shown:
        assert np.array_equal(np.asarray(shown), render(strange_figure))


def test_unknown_suffixes_are_named(strange_figure: Sheet, tmp_path: Path) -> None:
    for name in ("grid.jpg", "grid"):
        with pytest.raises(ValueError, match=r"'grid.*' has the suffix '.*'; choose from .png, .pdf, .svg"):
            save_figure(strange_figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_cannot_be_drawn_or_written_leaves_the_old_file(
    strange_figure: Sheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no ink")

    for place, name in ((Sheet, "pixels"), (Figure, "savefig"), (Path, "replace")):
        monkeypatch.setattr(place, name, fail)
        for suffix in (".png", ".pdf", ".svg"):
            path = tmp_path / f"grid{suffix}"
            path.write_bytes(b"old")
            if place is Path or (suffix == ".png") == (place is Sheet):
                with pytest.raises(RuntimeError, match="no ink"):
                    save_figure(strange_figure, path)
                assert path.read_bytes() == b"old"
        monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 3


# Manners


def test_settings_of_matplotlib_are_left_alone_by_many_threads(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)

    def draw(number: int) -> None:
        caption = flat(1, (30, 20))
        figure = word_grid(Image.new("RGB", (30, 20)), caption, width=1, dpi=40)
        save_figure(figure, tmp_path / f"{number}{('.svg', '.pdf', '.png')[number % 3]}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(draw, range(12)))
    assert dict(matplotlib.rcParams) == before
    assert len(list(tmp_path.iterdir())) == 12


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures_leave_nothing_behind(suffix: str) -> None:
    image, caption = Image.new("RGB", (30, 20)), flat(3, (30, 20))

    def draw(count: int) -> None:
        for _ in range(count):
            figure_bytes(word_grid(image, caption, style="contour", width=2, dpi=40), suffix)
        gc.collect()

    draw(3)  # fonts and other caches
    before = len(gc.get_objects())
    draw(12)
    assert len(gc.get_objects()) - before < 12  # one a figure would show


def test_png_needs_no_more_memory_after_many_figures() -> None:
    image, caption = Image.new("RGB", (300, 200)), flat(8, (300, 200))
    for _ in range(3):
        figure_bytes(word_grid(image, caption, dpi=100), ".png")
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            figure_bytes(word_grid(image, caption, dpi=100), ".png")
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000  # a panel alone has as much


def test_neither_torch_nor_pyplot_is_imported(tmp_path: Path) -> None:
    script = f"""
import sys
import numpy as np
from PIL import Image
from captioner.captioning.caption import Caption
from captioner.images.geometry import Geometry
ones, image = np.ones(1, dtype=np.float32), Image.new("RGB", (9, 6))
caption = Caption("a", ("a",), ones, 0.0, ones[:, None, None], ones, Geometry(9, 6, (0, 0, 9, 6)), image)
caption.save_overlay({str(tmp_path / "grid.png")!r}, width=1, dpi=40)
if "matplotlib" in sys.modules:
    sys.exit("matplotlib for a PNG, which does without")
for suffix in ("svg", "pdf"):
    caption.save_overlay({str(tmp_path / "grid.")!r} + suffix, width=1, dpi=40)
sys.exit(", ".join({{"torch", "matplotlib.pyplot"}} & set(sys.modules)) or 0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
