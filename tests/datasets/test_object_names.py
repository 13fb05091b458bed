from __future__ import annotations

import pytest

from captioner.datasets.object_names import CATEGORIES, find_mentions


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a man and two women with children", "person person person"),
        ("a dog chases puppies", "dog dog"),
        ("Dogs", "dog"),
        ("a teddy bear beside a bear", "teddy bear,bear"),
        ("two hot dogs and a dog", "hot dog,dog"),
        ("a tennis player with a tennis racket", "person,tennis racket"),
        ("a red fire hydrant near stop signs", "fire hydrant,stop sign"),
        ("a boy rides his dirt bike past a bike", "person,motorcycle,bicycle"),
        ("knives geese mice benches buses sheep scissors", "knife,bird,mouse,bench,bus,sheep,scissors"),
        ("a baby elephant and a baby", "elephant,person"),
        ("people at a train station", "person"),
        ("a couple of cows", "cow"),
        ("a couple on a couch", "person,couch"),
        ("an orange shirt in front of oranges", "orange"),
        ("a toy car on the grass", ""),
        ("teddy", "teddy bear"),
        ("hot", ""),
        ("", ""),
    ],
)
def test_names_synonyms_and_plurals(caption: str, expected: str) -> None:
    categories = expected.split(",") if "," in expected or expected in CATEGORIES else expected.split()
    assert [mention.category for mention in find_mentions(caption.split())] == categories


def test_a_mention_tells_which_words_it_is_made_of() -> None:
    (racket, dog) = find_mentions(["a", "tennis", "racket", "and", "dogs"])
    assert (racket.start, racket.end) == (1, 3)
    assert (dog.start, dog.end) == (4, 5)


def test_every_category_is_found_by_its_own_name() -> None:
    assert len(CATEGORIES) == 80
    for category in set(CATEGORIES) - {"orange"}:
        assert [mention.category for mention in find_mentions(category.split())] == [category]
