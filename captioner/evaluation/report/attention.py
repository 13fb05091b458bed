"""The parts of a report that hold curves: quality by length, and what attention does."""

from __future__ import annotations

import math
from collections.abc import Mapping

from captioner.evaluation.analysis.analysis import Analysis
from captioner.evaluation.analysis.diagnostics import STILL, Diagnostics
from captioner.evaluation.analysis.grounding import MEASURES, METHODS, Grounding, Score
from captioner.evaluation.analysis.length_curves import METRICS, LengthCurves
from captioner.evaluation.metrics.bootstrap import LEVEL, Interval
from captioner.evaluation.report.charts import (
    FEWEST,
    METHOD_LABELS,
    class_figure,
    grounding_figure,
    length_figure,
    position_figure,
)
from captioner.evaluation.report.html import Html, join, section, stacked, table, tag
from captioner.evaluation.report.inline_charts import Charts
from captioner.evaluation.report.summary import p_value, signed
from captioner.evaluation.tables import LABELS, number

CATEGORIES = 10  # of objects, in the table of grounding
_LEVEL = f"{LEVEL:.0%}"
_MEASURE_NAMES = {"pointing": "peak inside a box", "mass": "attention inside boxes"}


def lengths_section(curves: LengthCurves | None, charts: Charts) -> Html:
    """Return scores by the length of the references, as charts and tables."""
    title = "Quality by length"
    if curves is None:
        return section("lengths", title, tag("p", "No system was evaluated."))
    spans = [f"{bucket.shortest:.1f} to {bucket.longest:.1f}" for bucket in curves.buckets]
    rows: list[list[str]] = [["images", *(f"{bucket.images:,}" for bucket in curves.buckets)]]
    figures = []
    for metric in METRICS:
        name = LABELS[metric]
        rows += [
            [
                join([f"{name}, ", tag("bdi", model)]),
                *(_share(bucket.scores[metric], bucket.intervals[metric]) for bucket in scored),
            ]
            for model, scored in curves.models.items()
        ]
        told = _describe_lengths(curves, metric, spans)
        caption = f"{name}, with {_LEVEL} intervals over images."
        figures.append(charts.add(f"lengths-{metric}", length_figure(curves, metric), told, caption, half=True))
    intro = (
        "Images are grouped by the mean length of their references in words, which depends on no system; all systems "
        "are scored on the same images."
    )
    shown = table(f"Scores by mean length of the references in words, with {_LEVEL} intervals.", ["", *spans], rows)
    return section("lengths", title, tag("p", intro), tag("div", *figures, class_="pair"), shown, *_trends(curves))


def _share(value: float, interval: Interval | None, form: str = ".1f") -> Html:
    if interval is None or math.isnan(value):
        return join([number(value, form)])
    return stacked(number(value, form), f"{interval.low:{form}} to {interval.high:{form}}")


def _describe_lengths(curves: LengthCurves, metric: str, spans: list[str]) -> str:
    told = []
    for model, scored in curves.models.items():
        points = (f"{bucket.scores[metric]:.1f} at {span} words" for bucket, span in zip(scored, spans, strict=True))
        told.append(f"{model}: {', '.join(points)}.")
    return f"Chart of {LABELS[metric]} by mean length of the references. {' '.join(told)}"


def _trends(curves: LengthCurves) -> list[Html]:
    """Return how a lead over the first system changes with length, where there is one."""
    lines = []
    first = next(iter(curves.models))
    for model, trends in curves.trends.items():
        told = []
        for metric, trend in trends.items():
            low, high = trend.interval.low, trend.interval.high
            verdict = "a gain" if low > 0 else "a loss" if high < 0 else "not significant"
            span = f"{signed(low)} to {signed(high)}, {p_value(trend.p)}"
            told.append(f"{signed(trend.value)} {LABELS[metric]} ({span}), {verdict}")
        who = [tag("bdi", model), "'s lead over ", tag("bdi", first)]
        lines.append(tag("li", "From the shortest references to the longest ", *who, f" changes by {'; '.join(told)}."))
    return [tag("ul", *lines, class_="notes")] if lines else []


def attention_section(analysis: Analysis, charts: Charts) -> Html:
    """Return how wide attention is, how it moves, and whether it lies on what words name."""
    title, models = "What attention does", analysis.diagnostics
    if not models:
        return section("attention", title, tag("p", "The attention of these captions is not known."))
    position = charts.add(
        "attention-positions",
        position_figure(models),
        _describe_positions(models),
        "First, the entropy of attention by position of the word; the dotted line is uniform attention. Second, the "
        f"share of it that has moved since the previous word. Positions with fewer than {FEWEST} words are left out.",
    )
    classes = charts.add(
        "attention-classes",
        class_figure(models),
        _describe_classes(models),
        "How far the entropy of attention lies below that of uniform attention, by word class: the longer the bar, the "
        "more concentrated. Numbers are word counts.",
    )
    return section(
        "attention", title, _key_numbers(models), position, classes, *_grounding_parts(analysis.grounding, charts)
    )


def _key_numbers(models: Mapping[str, Diagnostics]) -> Html:
    rows = []
    for name, found in models.items():
        overall = found.overall
        rows.append(
            [
                tag("bdi", name),
                stacked(number(overall.entropy, ".2f"), f"{number(overall.entropy_share, '.1%')} of uniform"),
                number(overall.peak, ".3f"),
                number(overall.movement, ".3f"),
                number(overall.beta, ".2f"),
                stacked(number(found.residual, ".3f"), f"{number(found.residual_sum, '.1f')} per caption"),
                number(found.collapsed, ".1%"),
            ]
        )
    heads = ["", "entropy, nats", "peak weight", "movement", "gate β", "residual per region", "collapsed"]
    caption = (
        "Means over words. Movement: the share of attention that moves from one word to the next. Residual: the square "
        "of 1 minus the sum of a region's weights over the words, 0 for doubly stochastic attention. "
        f"Collapsed: captions in which less than {STILL:.0%} moves per word."
    )
    return table(caption, heads, rows)


def _describe_positions(models: Mapping[str, Diagnostics]) -> str:
    told = []
    for name, found in models.items():
        rows = [(place, row) for place, row in enumerate(found.positions, start=1) if row.words >= FEWEST]
        widths = ", ".join(f"{number(row.entropy, '.2f')} at word {place}" for place, row in rows)
        moves = ", ".join(f"{number(row.movement, '.2f')} at word {place}" for place, row in rows if row.moves)
        told.append(f"{name}: entropy {widths or 'unknown'}; movement {moves or 'unknown'}.")
    uniform = ", ".join(f"{math.log(regions):.2f}" for regions in sorted({found.regions for found in models.values()}))
    return f"Two charts by position of the word. {' '.join(told)} Uniform attention has an entropy of {uniform} nats."


def _describe_classes(models: Mapping[str, Diagnostics]) -> str:
    told = []
    for name, found in models.items():
        gaps = {word_class: math.log(found.regions) - row.entropy for word_class, row in found.classes.items()}
        ordered = sorted(gaps.items(), key=lambda item: -item[1])
        told.append(f"{name}: {', '.join(f'{word_class} {gap:.2f}' for word_class, gap in ordered)}.")
    return f"Bar chart of how far the entropy of attention lies below uniform, in nats. {' '.join(told)}"


def _grounding_parts(models: Mapping[str, Grounding], charts: Charts) -> list[Html]:
    """Return whether attention lies on the objects that words name; nothing where their boxes are not known."""
    if not any(found.overall.words for found in models.values()):
        return []
    intro = (
        "For each word that names an object with a box in the image: whether the strongest region lies inside one of "
        "its boxes, and how much of the attention does. The baselines do not depend on the word: they show how much of "
        "that is chance."
    )
    told = []
    for name, found in models.items():
        for measure in MEASURES:
            values = getattr(found.overall, measure)
            shares = ", ".join(f"{METHOD_LABELS[method]} {number(values[method].value, '.1%')}" for method in METHODS)
            told.append(f"{name}, {_MEASURE_NAMES[measure]}: {shares}.")
    figure = charts.add(
        "attention-grounding",
        grounding_figure(models),
        f"Bar charts of grounding. {' '.join(told)}",
        f"Grounding of the words that name objects, with {_LEVEL} intervals over images.",
    )
    tables = [_grounding_table(name, found) for name, found in models.items() if found.overall.words]
    return [tag("h3", "Grounding"), tag("p", intro), figure, *tables]


def _grounding_table(model: str, found: Grounding) -> Html:
    rows = [_grounding_row(join(["all names"]), found.overall.words, found.overall.pointing, found.overall.mass)]
    ordered = sorted(found.categories.items(), key=lambda item: (-item[1].words, item[0]))
    rows += [_grounding_row(tag("bdi", name), row.words, row.pointing, row.mass) for name, row in ordered[:CATEGORIES]]
    caption = (
        f": by category, the {CATEGORIES} most frequent. {number(found.absent_share, '.1%')} of the objects that its "
        "captions name have no box in what the network saw. Below each share: those of the image centre and of uniform "
        "attention."
    )
    heads = ["", "words", *(_MEASURE_NAMES[measure] for measure in MEASURES)]
    return table(join([tag("bdi", model), caption]), heads, rows)


def _grounding_row(name: Html, words: int, pointing: Mapping[str, Score], mass: Mapping[str, Score]) -> list[str]:
    cells = []
    for scores in (pointing, mass):
        score = scores["attention"]
        bases = ", ".join(f"{method} {number(scores[method].value, '.0%')}" for method in METHODS[2:])
        cells.append(join([_share(score.value, score.interval, ".0%"), tag("small", bases)]))
    return [name, f"{words:,}", *cells]
