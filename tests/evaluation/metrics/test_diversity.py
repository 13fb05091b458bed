from __future__ import annotations

import pytest

from captioner.evaluation.metrics.ngram_metrics import Diversity, measure_diversity


def test_counted_by_hand() -> None:
    captions = ["a dog runs", "a cat sits", "a dog runs", "two dogs on a beach", ""]
    assert measure_diversity(captions, {"a dog runs", "something else"}) == Diversity(
        captions=5,
        distinct=4,
        commonest="a dog runs",
        commonest_count=2,
        vocabulary=9,
        novel=3,
        mean_length=pytest.approx(14 / 5),
    )


def test_novelty_needs_training_captions() -> None:
    assert measure_diversity(["a", "b"]).novel is None
    assert measure_diversity(["a", "b"], frozenset()).novel == 2
    assert measure_diversity(["a", "a"], {"a"}).novel == 0


def test_the_order_of_captions_does_not_matter() -> None:
    captions = ["b", "a", "c", "b", "c"]
    assert measure_diversity(captions) == measure_diversity(captions[::-1])
    assert measure_diversity(captions).commonest == "b"


def test_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="no captions"):
        measure_diversity([])
