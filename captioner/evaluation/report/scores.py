"""The parts of a report that hold scores: the table, differences, diversity and the protocol."""

from __future__ import annotations

from captioner.evaluation.comparison import Comparison
from captioner.evaluation.metrics.bootstrap import SIGNIFICANT, Difference
from captioner.evaluation.report.html import Html, join, section, stacked, table, tag
from captioner.evaluation.report.summary import p_value, signed
from captioner.evaluation.scoring import Evaluation
from captioner.evaluation.tables import ABSENT, label


def scores_section(comparison: Comparison) -> Html:
    """Return all scores with their intervals, people's and the paper's, and how the systems differ."""
    metrics = comparison.metrics()
    level = f"{comparison.protocol.level:.0%}"
    best = _highest(comparison, metrics)
    rows: list[list[str]] = [[tag("bdi", row.name), *_score_cells(row, metrics, best)] for row in comparison.rows]
    for name, scores in (comparison.paper.rows if comparison.paper else {}).items():
        rows.append([name, *(f"{scores[metric]:.1f}" if metric in scores else ABSENT for metric in metrics)])
    caption = f"Scores in per cent, with {level} intervals over images."
    if best:
        caption += " The highest of the systems in bold."
    heads = ["", *map(label, metrics)]
    return section(
        "scores",
        "Scores",
        table(caption, heads, rows, class_="scores"),
        *_differences(comparison, metrics, level),
        _notes(comparison),
    )


def _highest(comparison: Comparison, metrics: list[str]) -> dict[str, float]:
    """Return the highest score of the systems by metric; nothing where there is but one system."""
    systems = comparison.evaluations
    if len(systems) < 2:
        return {}
    return {metric: max(system.scores.get(metric, -1.0) for system in systems) for metric in metrics}


def _score_cells(evaluation: Evaluation, metrics: list[str], best: dict[str, float]) -> list[Html]:
    intervals = evaluation.intervals()
    cells = []
    for metric in metrics:
        score = evaluation.scores.get(metric)
        if score is None:
            cells.append(join([ABSENT]))
            continue
        is_best = evaluation.kind != "humans" and best.get(metric) == score
        shown = tag("strong", f"{score:.1f}") if is_best else join([f"{score:.1f}"])
        span = intervals[metric]
        cells.append(stacked(shown, f"{span.low:.1f} to {span.high:.1f}"))
    return cells


def _differences(comparison: Comparison, metrics: list[str], level: str) -> list[Html]:
    """Return how the others differ from the first system; nothing where it is alone."""
    if len(comparison.evaluations) < 2:
        return []
    first, *others = comparison.evaluations
    rows = []
    for other in others:
        found = other.against(first)
        cells = [_difference_cell(found[metric]) if metric in found else join([ABSENT]) for metric in metrics]
        rows.append([tag("bdi", other.name), *cells])
    caption = join(
        [
            "Difference to ",
            tag("bdi", first.name),
            f" on the same images, with {level} interval and p value (paired bootstrap, two-sided). In bold, with an "
            f"asterisk: p < {SIGNIFICANT}, each score by itself.",
        ]
    )
    return [table(caption, ["", *map(label, metrics)], rows, class_="scores")]


def _difference_cell(difference: Difference) -> Html:
    shown = signed(difference.value)
    interval = f"{signed(difference.interval.low)} to {signed(difference.interval.high)}"
    number = tag("strong", f"{shown}*") if difference.is_significant else join([shown])
    return stacked(number, interval, p_value(difference.p))


def _notes(comparison: Comparison) -> Html:
    # The first says what ± is, which stands in no table here, and the mark of the next is in a caption.
    notes = [note for note in comparison.notes() if not note.startswith(("scores are", "*"))]
    items = [tag("li", f"{note[:1].upper()}{note[1:]}.") for note in notes]
    return tag("ul", *items, class_="notes") if items else Html()


def diversity_section(comparison: Comparison) -> Html:
    """Return how much the captions differ from each other and from those of the training set."""
    rows = []
    for evaluation in comparison.rows:
        diversity = evaluation.diversity
        rows.append(
            [
                tag("bdi", evaluation.name),
                f"{diversity.distinct / diversity.captions:.1%}",
                ABSENT if diversity.novel is None else f"{diversity.novel / diversity.captions:.1%}",
                f"{diversity.repetitive / diversity.captions:.1%}",
                f"{diversity.vocabulary:,}",
                f"{diversity.mean_length:.1f}",
                f"{diversity.commonest_count:,} ({diversity.commonest_count / diversity.captions:.1%})",
                tag("bdi", diversity.commonest or "∅"),
            ]
        )
    caption = (
        "Shares of the captions that are distinct, that are not among the training captions (novel), and that repeat a "
        "content word, as in “a table with a table” (repetitive); the number of distinct words; words per caption; and "
        "the commonest caption."
    )
    heads = ["", "distinct", "novel", "repetitive", "vocabulary", "mean length", "commonest", "which is"]
    return section("diversity", "Diversity", table(caption, heads, rows, wide=(0, len(heads) - 1)))


def protocol_section(comparison: Comparison) -> Html:
    """Return all that one has to know to get the same numbers again."""
    protocol = comparison.protocol
    lines = comparison.protocol_lines()
    lines.append(("intervals", f"{protocol.level:.0%}, by percentiles of the resamples"))
    lines.append(("missing", comparison.missing or "nothing: all metrics were computed"))
    if protocol.left_out:
        lines.append(("left out", ", ".join(protocol.left_out)))
    rows = [[tag("bdi", name), tag("bdi", value)] for name, value in lines]
    caption = "What the numbers were obtained with. The same settings give the same numbers."
    return section("protocol", "Protocol", table(caption, ["setting", "value"], rows, wide=(0, 1), class_="protocol"))
