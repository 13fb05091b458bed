"""The part of a report that tells the most common errors, with an example of each."""

from __future__ import annotations

from collections.abc import Callable

from captioner.datasets.vocabulary import tokenize
from captioner.evaluation.analysis.analysis import Analysis, example_of
from captioner.evaluation.analysis.common_errors import KINDS, LISTED, CommonErrors, WordCount, stem
from captioner.evaluation.comparison import Comparison
from captioner.evaluation.report.examples import SYSTEMS
from captioner.evaluation.report.html import Html, join, quote, section, table, tag
from captioner.evaluation.scoring import Evaluation

_INTRO = (
    "Found by counting words, nothing more. Words are compared by their stems, so that “dog” and “dogs”, "
    "“ran” and “running” are the same; synonyms are not known, so that a “puppy” that all references call a dog counts "
    "as an error. Content words leave out articles, prepositions, conjunctions, pronouns, adverbs, auxiliary verbs and "
    "words such as “side” or “group”. What no reference says may still be true."
)
_PEOPLE = (
    " The captions of people, each image's first reference against its others, show how much of each error is a matter "
    "of taste."
)


def errors_section(comparison: Comparison, analysis: Analysis) -> Html:
    """Return how common each kind of error is, and which words it is made of."""
    rows = [row for row in comparison.rows if row.name in analysis.errors]
    intro = _INTRO if comparison.humans is None else _INTRO + _PEOPLE
    parts: list[Html] = [tag("p", intro), _kinds_table(rows, analysis)]
    for system in comparison.evaluations[:SYSTEMS]:
        if system.name not in analysis.errors:
            continue
        if len(comparison.evaluations) > 1:
            parts.append(tag("h3", tag("bdi", system.name)))
        parts += _word_tables(
            system, analysis.errors[system.name], LISTED if len(comparison.evaluations) == 1 else LISTED // 2
        )
    return section("errors", "Most common errors", *parts)


def _kinds_table(rows: list[Evaluation], analysis: Analysis) -> Html:
    lines = []
    for kind, meaning in KINDS.items():
        tallies = [analysis.errors[row.name].kinds[kind] for row in rows]
        totals = [analysis.errors[row.name].captions for row in rows]
        shares = (f"{tally.count / total:.1%}" for tally, total in zip(tallies, totals, strict=True))
        # Of the first that makes the error.
        examples = (
            row.texts[tally.example] for row, tally in zip(rows, tallies, strict=True) if tally.example is not None
        )
        shown = next(([tag("small", quote(text))] for text in examples if text), [])
        lines.append([join([f"{meaning[:1].upper()}{meaning[1:]}", *shown]), *shares])
    heads = ["the caption …", *(tag("bdi", row.name) for row in rows)]
    caption = "Share of captions by kind of error, with an example; a caption may have several."
    return table(caption, heads, lines, class_="kinds")


def _word_tables(evaluation: Evaluation, errors: CommonErrors, listed: int) -> list[Html]:
    """Return the words and pairs of words that are most often wrong, so many of each."""

    def says(place: int, word: str) -> Html:
        return quote(example_of(evaluation, place)[0], _is_form_of(word))

    def expects(place: int, word: str) -> Html:
        """Return the first reference that has a word."""
        references = example_of(evaluation, place)[1]
        marks = _is_form_of(word)
        found = next((reference for reference in references if any(map(marks, reference.split()))), references[0])
        return tag("small", "a reference: ", quote(found, marks))

    unsupported = [[*_counted(word), says(word.example, word.word)] for word in errors.unsupported[:listed]]
    missed = [
        [*_counted(word), join([quote(evaluation.texts[word.example]), expects(word.example, word.word)])]
        for word in errors.missed[:listed]
    ]
    confusions = [
        [
            join([pair.said, " for ", pair.expected, tag("small", pair.word_class)]),
            f"{pair.count:,}",
            join([says(pair.example, pair.said), expects(pair.example, pair.expected)]),
        ]
        for pair in errors.confusions[:listed]
    ]
    captions = {
        "Words that no reference has, of all captions that use them.": unsupported,
        "Words that more than half of the references have and the caption lacks, of all such images.": missed,
        "One word for another of its class: the first is in no reference, the second in more than half.": confusions,
    }
    heads = ["word", "captions", "for example"]
    return [table(caption, heads, rows, wide=(0, 2), class_="words") for caption, rows in captions.items() if rows]


def _counted(word: WordCount) -> list[str]:
    return [word.word, f"{word.count:,} of {word.cases:,}"]


def _is_form_of(word: str) -> Callable[[str], bool]:
    """Return a function that tells whether a word of a text, with its punctuation, is a form of this one."""
    wanted = stem(word)
    return lambda other: any(stem(token) == wanted for token in tokenize(other))
