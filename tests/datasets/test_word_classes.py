from __future__ import annotations

from collections import Counter

import pytest

from captioner.datasets.object_names import CATEGORIES
from captioner.datasets.word_classes import _LISTS, CLASSES, content_groups, word_class


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a an the", "article"),
        ("in on with of through", "preposition"),
        ("and while or but", "conjunction"),
        ("his her another something", "pronoun"),
        ("is are wearing running runs jumps plays catches tries carries sat stands", "verb"),
        ("two three 3 25 1st dozen", "number"),
        ("red blue multi-colored orange", "colour"),
        ("young grassy snow-covered fast-moving colourless", "adjective"),
        ("together quickly upwards", "adverb"),
        ("man men women children girls skateboarder wakeboarders policeman cyclists", "person"),
        ("dog dogs puppies greyhounds sheep geese calves", "animal"),
        ("shirt balls benches knives leaves bicycles t-shirt ski-helmet", "object"),
        ("grass street beaches cities building", "place"),
        ("front race tricks", "abstract"),
        ("<unk> zyzzyva 's - -- é", "other"),
    ],
)
def test_words_and_their_forms_have_a_class(words: str, expected: str) -> None:
    assert {word: word_class(word) for word in words.split()} == dict.fromkeys(words.split(), expected)


def test_case_does_not_matter_and_nothing_is_no_word() -> None:
    assert word_class("Dogs") == "animal"
    assert word_class("") == "other"


def test_short_words_are_not_taken_for_forms() -> None:
    # Endings are a last resort: these are listed, or too short to be judged by theirs.
    assert {word: word_class(word) for word in ("bed", "red", "ring", "building", "xing")} == {
        "bed": "object", "red": "colour", "ring": "object", "building": "place", "xing": "other",
    }  # fmt: skip


def test_no_word_is_listed_twice() -> None:
    counts = Counter(word for words in _LISTS.values() for word in words.split())
    assert [word for word, count in counts.items() if count > 1] == []


def test_categories_of_objects_are_nouns() -> None:
    # "orange" is a colour first.
    names = [name for name in CATEGORIES if " " not in name and name != "orange"]
    assert {name for name in names if word_class(name) not in ("person", "animal", "object")} == set()
    assert set(map(word_class, names)) <= set(CLASSES)


def test_content_words_are_numbered_with_their_plurals() -> None:
    words = [
        "<pad>",
        "<start>",
        "<end>",
        "<unk>",
        "a",
        "dog",
        "on",
        "dogs",
        "table",
        "tables",
        "the",
        "bench",
        "side",
        "benches",
        "grass",
        "red",
        "zyzzyva",
    ]
    groups = dict(zip(words, content_groups(words), strict=True))
    assert [word for word, group in groups.items() if not group] == [*words[:5], "on", "the", "side"]
    assert groups["dog"] == groups["dogs"] != groups["table"] == groups["tables"]
    assert groups["bench"] == groups["benches"]
    assert len({groups[word] for word in ("dog", "table", "bench", "grass", "red", "zyzzyva")}) == 6
