from __future__ import annotations

import pytest

from captioner.evaluation.analysis.diversity import Diversity, measure_diversity


def test_counted_by_hand() -> None:
    captions = ["a dog runs", "a cat sits", "a dog runs", "two dogs on a beach", ""]
    assert measure_diversity(captions, {"a dog runs", "something else"}) == Diversity(
        captions=5,
        distinct=4,
        commonest="a dog runs",
        commonest_count=2,
        vocabulary=9,
        novel=3,
        repetitive=0,
        mean_length=pytest.approx(14 / 5),
    )


def test_novelty_needs_training_captions() -> None:
    assert measure_diversity(["a", "b"]).novel is None
    assert measure_diversity(["a", "b"], frozenset()).novel == 2
    assert measure_diversity(["a", "a"], {"a"}).novel == 0


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a table with a table", True),
        ("a red bus and a red car", True),
        ("a man is on the side of the road with the man", True),
        ("a dog and two dogs", False),  # other forms
        ("the cat is on the left side of the other side", False),  # words that say next to nothing
        ("a", False),
        ("", False),
    ],
)
def test_a_content_word_twice_is_a_repetition(caption: str, expected: bool) -> None:
    assert measure_diversity([caption, "two cats"]).repetitive == int(expected)


def test_the_order_of_captions_does_not_matter() -> None:
    captions = ["b", "a", "c", "b", "c"]
    assert measure_diversity(captions) == measure_diversity(captions[::-1])
    assert measure_diversity(captions).commonest == "b"


def test_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="no captions"):
        measure_diversity([])
