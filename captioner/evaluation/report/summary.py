"""A report in a paragraph: what the numbers say, in plain words, and no more than they say."""

from __future__ import annotations

from collections.abc import Sequence

from captioner.evaluation.analysis.analysis import Analysis
from captioner.evaluation.comparison import Comparison
from captioner.evaluation.report.html import Html, join, tag
from captioner.evaluation.scoring import Evaluation
from captioner.evaluation.tables import label

_MAIN = ("cider", "bleu4")  # the scores that a summary is of, of those that there are
_PAPER_METRIC = "bleu4"
_COUNTS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def summarise(comparison: Comparison, analysis: Analysis) -> Html:
    """Return the paragraphs that a report begins with."""
    if not comparison.evaluations:
        return tag("p", "No system was evaluated; the scores below are those of people against each other.")
    best = find_best(comparison.evaluations)
    paragraphs: list[list[Html]] = [
        [_subject(comparison), *_standing(comparison, best), *_beside(comparison, best)],
        [*_diversity(best), *_attention(best, analysis), *_errors(comparison, best, analysis)],
        [join([f"Not all metrics are here: {comparison.missing}."])] if comparison.missing else [],
    ]
    return join(tag("p", join(sentences, " ")) for sentences in paragraphs if sentences)


def find_best(systems: Sequence[Evaluation]) -> Evaluation:
    """Return the system with the highest CIDEr-D, or else BLEU-4, the first of several."""
    return max(systems, key=lambda system: system.scores[main_metric(system)])


def main_metric(evaluation: Evaluation) -> str:
    """Return the name of the score that a system is judged by first."""
    return next((metric for metric in _MAIN if metric in evaluation.scores), next(iter(evaluation.scores)))


def name_of(evaluation: Evaluation) -> Html:
    """Return the name of a system, told apart from the text around it."""
    return tag("b", tag("bdi", evaluation.name))


def signed(value: float) -> str:
    """Return a number with its sign, and a minus as wide as a plus."""
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def p_value(p: float) -> str:
    """Return a p value that stays on one line."""
    return f"p = {p:.3f}".replace(" ", "\N{NO-BREAK SPACE}")


def _subject(comparison: Comparison) -> Html:
    protocol = comparison.protocol
    images = f"{protocol.images:,} images"
    if protocol.images != protocol.split_images:
        images = f"{protocol.images:,} of the {protocol.split_images:,} images"
    count = len(comparison.evaluations)
    who = (
        join(["One system, ", name_of(comparison.evaluations[0]), ","])
        if count == 1
        else f"{_COUNTS.get(count, count)} systems"
    )
    return join([who, f" captioned {images} of the {protocol.split} split of {protocol.data}."])


def _standing(comparison: Comparison, best: Evaluation) -> list[Html]:
    """Return sentences on the best system, and on the one after it."""
    metric, level = main_metric(best), f"{comparison.protocol.level:.0%}"
    interval = best.intervals()[metric]
    scored = f"{best.scores[metric]:.1f} {label(metric)} ({level} interval {interval.low:.1f} to {interval.high:.1f})"
    others = [system for system in comparison.evaluations if system is not best and metric in system.scores]
    if not others:
        further = [name for name in _MAIN if name in best.scores and name != metric]
        more = [f" and {best.scores[name]:.1f} {label(name)}" for name in further]
        return [join(["It scores ", scored, *more, "."])]
    second = find_best(others)
    differences = best.against(second)
    difference = differences[metric]
    better = [name for name, each in differences.items() if each.is_significant and each.value > 0]
    verdict = (
        f"more than chance explains ({p_value(difference.p)})"
        if difference.is_significant
        else f"no more than chance explains ({p_value(difference.p)})"
    )
    low, high = difference.interval.low, difference.interval.high
    return [
        join([name_of(best), f" is the best of them with {scored}."]),
        join(
            [
                f"That is {difference.value:.1f} above ",
                name_of(second),
                f" ({signed(low)} to {signed(high)}), {verdict}; it is significantly ahead of it in ",
                f"{len(better)} of {len(differences)} scores.",
            ]
        ),
    ]


def _beside(comparison: Comparison, best: Evaluation) -> list[Html]:
    """Return sentences on people and on the paper."""
    sentences = []
    humans, paper, metric = comparison.humans, comparison.paper, main_metric(best)
    if humans is not None:
        reached = f"{humans.scores[metric]:.1f} {label(metric)}"
        people = f"Human captions, each scored against the other references, reach {reached}, with one reference fewer."
        sentences.append(join([people]))
    published = paper.rows if paper else {}
    theirs = {name: scores[_PAPER_METRIC] for name, scores in published.items() if _PAPER_METRIC in scores}
    if paper is not None and theirs and _PAPER_METRIC in best.scores:
        listed = " and ".join(f"{score:.1f} ({name})" for name, score in theirs.items())
        roughly = "on other images, so the comparison is rough"
        where = roughly if paper.note else "on the same images"
        rest = f" has {best.scores[_PAPER_METRIC]:.1f}; the paper reports {listed}, {where}."
        sentences.append(join([f"In {label(_PAPER_METRIC)}, ", name_of(best), rest]))
    return sentences


def _diversity(best: Evaluation) -> list[Html]:
    diversity = best.diversity
    facts = [f"{diversity.distinct / diversity.captions:.0%} are distinct"]
    if diversity.novel is not None:
        facts.append(f"{diversity.novel / diversity.captions:.0%} are not among the training captions")
    facts.append(f"{diversity.repetitive / diversity.captions:.0%} repeat a content word")
    return [join(["Of ", name_of(best), f"'s captions, {', '.join(facts[:-1])} and {facts[-1]}."])]


def _attention(best: Evaluation, analysis: Analysis) -> list[Html]:
    sentences = []
    found = analysis.diagnostics.get(best.name)
    if found is not None and found.collapsed == found.collapsed:  # NaN where no caption has two words
        still = (
            f"in {found.collapsed:.0%} of the captions it stays" if found.collapsed else "in no caption does it stay"
        )
        moved = f"On average, {found.overall.movement:.0%} of the attention moves from one word to the next"
        sentences.append(f"{moved}; {still} in place.")
    grounded = analysis.grounding.get(best.name)
    if grounded is not None and grounded.overall.words:
        pointing = grounded.overall.pointing
        sentences.append(
            f"When a word names an object, attention peaks inside one of its boxes {pointing['attention'].value:.0%} "
            f"of the time; the centre of the image lies in one {pointing['centre'].value:.0%} of the time."
        )
    return [join([sentence]) for sentence in sentences]


def _errors(comparison: Comparison, best: Evaluation, analysis: Analysis) -> list[Html]:
    found = analysis.errors.get(best.name)
    if found is None:
        return []
    count = found.kinds["missed"].count / found.captions
    people = analysis.errors.get(comparison.humans.name) if comparison.humans else None
    beside = f" ({people.kinds['missed'].count / people.captions:.0%} of people's)" if people else ""
    return [join([f"{count:.0%} of the captions{beside} leave out a word that most references use."])]
