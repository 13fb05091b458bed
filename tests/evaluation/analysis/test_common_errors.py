"""Errors of captions by counting words, against cases counted by hand."""

from __future__ import annotations

import pytest

from captioner.datasets.word_classes import is_content
from captioner.evaluation.analysis.common_errors import (
    KINDS,
    LISTED,
    Confusion,
    Tally,
    WordCount,
    find_errors,
    repeats,
    stem,
)


def split(*captions: str) -> list[list[str]]:
    return [caption.split() for caption in captions]


@pytest.mark.parametrize(
    "forms",
    [
        ("dog", "dogs"),
        ("man", "men"),
        ("child", "children"),
        ("person", "people"),
        ("puppy", "puppies"),
        ("bench", "benches"),
        ("dress", "dresses"),
        ("run", "runs", "running", "ran"),
        ("ride", "rides", "riding", "rode", "ridden"),
        ("roll", "rolls", "rolled", "rolling"),
        ("carry", "carries", "carried", "carrying"),
        ("lie", "lies", "lying", "lays", "laying"),
        ("jump", "jumped", "jumping"),
        ("grey", "gray"),
        ("bike", "bikes", "biking"),
    ],
)
def test_forms_of_a_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


@pytest.mark.parametrize(
    "words",
    [("man", "woman"), ("bus", "bu"), ("grass", "gras"), ("king", "k"), ("red", "r"), ("sing", "s"), ("boy", "bo")],
)
def test_short_words_keep_their_ends(words: tuple[str, str]) -> None:
    assert stem(words[0]) != stem(words[1])


def test_content_words() -> None:
    (said,) = split("a dog 's owner is quickly running in front of the two red bikes and it")
    assert [word for word in said if is_content(word)] == ["dog", "owner", "running", "two", "red", "bikes"]


def test_words_that_no_reference_has() -> None:
    captions = split("a man runs", "a man on a horse", "a man and dogs")
    references = [split("the men run"), split("a woman on a horse", "a horse"), split("the boy plays", "a dog")]
    found = find_errors(captions, references)
    # "men" supports "man" in the first image; in the others nothing does.
    assert found.unsupported == (WordCount("man", 2, 3, example=1),)
    assert found.kinds["unsupported"] == Tally(2, 1)


def test_words_that_most_references_have() -> None:
    captions = split("a boy", "a girl", "a girl")
    references = [
        split("a boy runs", "the boy ran", "a child"),  # "run" in two of three
        split("a girl runs", "a girl", "a girl", "a girl jumps"),  # in one of four
        split("a girl jumping", "a girl jumps", "she jumped", "a girl"),
    ]
    found = find_errors(captions, references)
    assert found.missed == (WordCount("jumps", 1, 1, example=2), WordCount("runs", 1, 1, example=0))
    assert found.kinds["missed"].count == 2


def test_a_single_reference_agrees_with_nobody() -> None:
    found = find_errors(split("a cat"), [split("a dog runs")])
    assert found.missed == found.confusions == ()
    assert found.kinds["unsupported"].count == 1


def test_a_word_for_another_of_its_class() -> None:
    captions = split("a man in a red hat", "a man on a bench", "three dogs", "a man")
    references = [
        split("a woman in a blue hat", "a woman wearing blue", "a lady in a blue hat"),
        split("a woman on a bench", "a woman sits", "a woman and a boy"),
        split("two dogs", "two dogs", "a few dogs"),
        split("a dog", "a dog", "a dog"),  # no person is expected
    ]
    found = find_errors(captions, references)
    assert found.confusions == (
        Confusion("man", "woman", "person", 2, example=1),  # all three references agree there
        Confusion("red", "blue", "colour", 1, example=0),
        Confusion("three", "two", "number", 1, example=2),
    )
    assert found.kinds["confused"].count == 3


@pytest.mark.parametrize(
    ("caption", "does"),
    [
        ("a man in a a hat", True),
        ("a man and a man", True),
        ("a man rides a bike on a bike", True),
        ("a black hat and a black dog", False),  # a colour said twice is no phrase said twice
        ("a dog in the snow in the sun", False),
        ("a dog", False),
        ("", False),
    ],
)
def test_repetitions(caption: str, does: bool) -> None:
    assert repeats(caption.split()) is does


def test_errors_of_form() -> None:
    captions = split("a dog with a", "", "dog", "a big dog runs on the green grass", "a dog runs")
    references = [split("a dog with a ball here", "a dog runs")] * 4 + [split("a dog runs", "a dog runs fast")]
    kinds = find_errors(captions, references).kinds
    assert kinds["unfinished"] == Tally(1, 0)
    assert kinds["empty"] == Tally(1, 1)
    assert kinds["short"] == Tally(1, 2)  # an empty caption is empty and nothing else
    assert kinds["long"] == Tally(1, 3)
    assert kinds["repeated"] == Tally(0, None)
    assert list(kinds) == list(KINDS)


def test_each_kind_has_an_example_of_its_own_where_that_can_be() -> None:
    captions = split("a cat", "a cat")
    references = [split("a dog", "a dog", "the dog")] * 2
    kinds = find_errors(captions, references).kinds
    assert [kinds[kind].example for kind in ("unsupported", "missed", "confused")] == [0, 1, 0]


def test_lists_are_cut_and_the_commonest_come_first() -> None:
    animals = ("cat", "horse", "bird", "dog", "cow", "sheep", "bear", "zebra", "duck", "goat", "pig")
    captions = split("cat horse", "cat horse", "cat", *animals)
    found = find_errors(captions, [split("snow", "ice")] * len(captions))
    assert [(word.word, word.count) for word in found.unsupported[:2]] == [("cat", 4), ("horse", 3)]
    assert len(found.unsupported) == LISTED


def test_captions_and_images_must_match() -> None:
    with pytest.raises(ValueError, match="2 captions for 1 images"):
        find_errors(split("a", "b"), [split("a")])
