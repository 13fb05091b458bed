from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_captions import GRID, SIDE, caption_of, one_cell
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.datasets.annotations import Problems
from captioner.datasets.instances import AnnotatedImage, Instance, Instances
from captioner.datasets.object_names import CATEGORIES
from captioner.evaluation.analysis.diagnostics import Diagnostics, diagnose
from captioner.evaluation.analysis.grounding import METHODS, Grounding, measure_grounding
from captioner.evaluation.analysis.length_curves import LengthCurves, length_curves
from captioner.evaluation.report.charts import class_figure, grounding_figure, length_figure, position_figure
from captioner.figures.drawing import figure_bytes, save_figure
from captioner.images.preprocessing import Preprocessing

GEOMETRY = Preprocessing(SIDE).geometry(90, 70)
REFERENCES = [
    ["a dog runs"],
    ["a dog runs over the grass"],
    ["two dogs run"],
    ["two dogs run over the green grass"],
] * 3


def captions() -> list[Caption]:
    """Return a dozen captions that look at one cell, and one longer one."""
    attention = np.concatenate([one_cell(0, 0), one_cell(1, 1)])
    longer = np.concatenate([attention, one_cell(2, 2)])
    return [caption_of(attention, GEOMETRY, ("a", "dog"))] * 12 + [caption_of(longer, GEOMETRY, ("a", "red", "dog"))]


@pytest.fixture(scope="module")
def diagnostics() -> Diagnostics:
    return diagnose(captions())


@pytest.fixture(scope="module")
def curves() -> LengthCurves:
    models = {"first": [own[0] for own in REFERENCES], "second": ["a dog"] * 12}
    return length_curves(models, REFERENCES, buckets=2, resamples=20)


@pytest.fixture(scope="module")
def grounding() -> Grounding:
    image = AnnotatedImage(90, 70, (Instance("dog", (0.0, 0.0, 20.0, 20.0), False),))
    instances = Instances(dict.fromkeys(range(13), image), CATEGORIES, Problems())
    return measure_grounding(captions(), range(13), instances, resamples=20)


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def points_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each labelled curve."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()] for line in lines}


def lengths_of(axes: Axes) -> list[float]:
    return [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]


def test_scores_by_length_are_drawn_for_every_model_from_zero(curves: LengthCurves) -> None:
    figure = length_figure(curves)
    (axes,) = figure.axes
    assert legend_of(figure) == ["first", "second"]
    assert axes.get_ylim()[0] == 0
    for container, scored in zip(axes.containers, curves.models.values(), strict=True):
        heights = np.asarray(container.lines[0].get_ydata())  # type: ignore[attr-defined]
        assert heights == pytest.approx([own.scores["bleu4"] for own in scored])
    assert [label.get_text().splitlines()[1] for label in axes.get_xticklabels()] == ["6 images", "6 images"]
    assert "CIDEr-D" in length_figure(curves, "cider").axes[0].get_ylabel()
    with pytest.raises(ValueError, match="metric is 'meteor'; choose from bleu4, cider"):
        length_figure(curves, "meteor")


def test_positions_of_few_words_are_left_out(diagnostics: Diagnostics) -> None:
    spread, movement = position_figure({"model": diagnostics}).axes
    assert points_of(spread) == {"model": [(1.0, 0.0), (2.0, 0.0)]}  # one caption alone has a third word
    assert points_of(movement) == {"model": [(2.0, 1.0)]}
    (uniform,) = [line for line in spread.get_lines() if str(line.get_label()).startswith("_")]
    assert uniform.get_ydata() == pytest.approx([math.log(GRID[0] * GRID[1])] * 2)


def test_bars_of_classes_start_at_uniform_attention(diagnostics: Diagnostics) -> None:
    figure = class_figure({"model": diagnostics})
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0
    # All look at one cell: as far below uniform as can be.
    assert lengths_of(axes) == pytest.approx([math.log(GRID[0] * GRID[1])] * 3)
    assert sorted(label.get_text() for label in axes.get_yticklabels()) == ["animal", "article", "colour"]
    assert sorted(text.get_text() for text in axes.texts) == ["1", "13", "13"]


def test_classes_that_a_model_never_uses_leave_a_gap(diagnostics: Diagnostics) -> None:
    other = diagnose([caption_of(np.full((1, *GRID), 1 / 63), GEOMETRY, ("under",))])
    (axes,) = class_figure({"model": diagnostics, "other": other}).axes
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "preposition"
    assert len(axes.texts) == 4
    assert sum(math.isnan(length) for length in lengths_of(axes)) == 4


def test_grounding_beside_its_baselines(grounding: Grounding) -> None:
    figure = grounding_figure({"model": grounding, "$same$": grounding})
    pointing, mass = figure.axes
    for axes, scores in ((pointing, grounding.overall.pointing), (mass, grounding.overall.mass)):
        expected = [100 * scores[method].value for method in METHODS for _ in range(2)]
        assert lengths_of(axes) == pytest.approx(expected)
        assert axes.get_xlim()[0] == 0
    assert len(legend_of(figure)) == len(METHODS)
    assert [label.get_text() for label in pointing.get_yticklabels()] == ["model\n13 words", "$same$\n13 words"]


def test_nothing_to_ground_is_drawn_too(tmp_path: Path) -> None:
    instances = Instances({1: AnnotatedImage(90, 70, ())}, CATEGORIES, Problems())
    nothing = measure_grounding(captions()[:1], [1], instances)
    save_figure(grounding_figure({"model": nothing}), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").exists()


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_charts_are_files_that_are_the_same_each_time(suffix: str, curves: LengthCurves, tmp_path: Path) -> None:
    path = tmp_path / f"chart{suffix}"
    save_figure(length_figure(curves), path)
    assert path.read_bytes() == figure_bytes(length_figure(curves), suffix)
    if suffix == ".png":
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            assert picture.size == (1050, 540)
    elif suffix == ".svg":
        assert ">first</text>" in path.read_text()


def test_names_are_shown_as_they_are_but_not_without_end(diagnostics: Diagnostics) -> None:
    names = ["_hidden", "$x^2$", "two\nlines", "n" * 300, "模型"]
    figure = position_figure(dict.fromkeys(names, diagnostics))
    shown = legend_of(figure)
    assert shown[:2] == [" _hidden", "$x^2$"]
    assert "\n" not in shown[2]
    assert len(shown[3]) == 40
    assert ">$x^2$<" in figure_bytes(figure, ".svg").decode()  # not set as mathematics


def test_refuses_other_files_and_no_models(curves: LengthCurves, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'chart.gif' has the suffix '.gif'; choose from .png, .pdf, .svg"):
        save_figure(length_figure(curves), tmp_path / "chart.gif")
    with pytest.raises(ValueError, match=r"suffix is \'\.gif\'"):
        figure_bytes(length_figure(curves), ".gif")
    for draw in (position_figure, class_figure, grounding_figure):
        with pytest.raises(ValueError, match="no models"):
            draw({})
