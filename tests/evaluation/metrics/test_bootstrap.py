from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from captioner.evaluation.metrics.bootstrap import BLOCK, Interval, bootstrap, find_difference, find_interval


class Means:
    """Scores that are means over images, and remember what was drawn."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        self.drawn: list[NDArray[np.int64]] = []

    def resample(self, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        self.drawn.append(rows)
        return {"mean": self.values[rows].mean(axis=1)}


def test_interval_by_hand() -> None:
    interval = find_interval(np.random.default_rng(0).permutation(np.arange(1001.0)))
    assert (interval.low, interval.high) == pytest.approx((25, 975))
    assert interval.margin == pytest.approx(475)
    assert find_interval(np.arange(201.0)) == Interval(pytest.approx(5), pytest.approx(195))


def test_difference_by_hand() -> None:
    moved = np.array([1.0] * 96 + [-1.0] * 2 + [0.0])  # on 3 of 99 resamples it is not above 0
    first = np.linspace(10, 20, 99)
    found = find_difference(14.0, 15.0, first, first + moved)
    assert found.value == 1.0
    assert found.p == pytest.approx(2 * (3 + 1) / (99 + 1))
    reverse = find_difference(15.0, 14.0, first + moved, first)
    assert reverse.value == -1.0
    assert reverse.p == found.p
    assert (reverse.interval.low, reverse.interval.high) == pytest.approx((-found.interval.high, -found.interval.low))


def test_equal_systems_do_not_differ() -> None:
    values = np.linspace(0, 1, 50)
    found = find_difference(0.5, 0.5, values, values)
    assert (found.value, found.interval, found.p) == (0.0, Interval(0.0, 0.0), 1.0)


def test_a_difference_on_every_image_is_certain_because_draws_are_paired() -> None:
    values = np.random.default_rng(0).normal(50, 20, 40)
    first, second = (bootstrap(Means(own), 40, resamples=200, seed=3)["mean"] for own in (values, values + 0.5))
    found = find_difference(values.mean(), values.mean() + 0.5, first, second)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.5, 0.5))
    assert found.p == pytest.approx(2 / 201)


def test_two_images_give_the_three_means_that_there_are() -> None:
    means = bootstrap(Means(np.array([0.0, 10.0])), 2, resamples=4000)["mean"]
    shares = [float((means == value).mean()) for value in (0, 5, 10)]
    assert sum(shares) == 1
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert find_interval(means) == Interval(0.0, 10.0)


def test_the_spread_is_that_of_a_mean() -> None:
    values = np.random.default_rng(0).exponential(10, 400)
    interval = find_interval(bootstrap(Means(values), 400, resamples=2000)["mean"])
    assert interval.margin == pytest.approx(1.96 * values.std() / np.sqrt(400), rel=0.08)


def test_equal_systems_seldom_differ_significantly() -> None:
    chance = np.random.default_rng(1)
    significant = 0
    for trial in range(200):
        pair = chance.normal(0, 1, (2, 60))
        first, second = (bootstrap(Means(own), 60, resamples=200, seed=trial)["mean"] for own in pair)
        significant += find_difference(pair[0].mean(), pair[1].mean(), first, second).p < 0.05
    assert 2 <= significant <= 24  # 10 expected


def test_draws_follow_from_the_seed_and_do_not_depend_on_how_many_there_are() -> None:
    values = np.random.default_rng(0).random(9)
    few, many, other = (
        bootstrap(Means(values), 9, resamples=count, seed=seed)["mean"]
        for count, seed in ((BLOCK - 7, 5), (2 * BLOCK + 3, 5), (BLOCK - 7, 6))
    )
    assert len(few) == BLOCK - 7
    assert len(many) == 2 * BLOCK + 3
    assert np.array_equal(few, many[: len(few)])
    assert not np.array_equal(few, other)
    scores = Means(values)
    bootstrap(scores, 9, resamples=BLOCK + 1)
    assert [rows.shape for rows in scores.drawn] == [(BLOCK, 9), (1, 9)]
    assert set(np.unique(scores.drawn[0])) == set(range(9))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="1000 resamples of 0 images; both must be at least 1"):
        bootstrap(Means(np.empty(0)), 0)
    with pytest.raises(ValueError, match="0 resamples of 3 images"):
        bootstrap(Means(np.zeros(3)), 3, resamples=0)
    with pytest.raises(ValueError, match="2 and 3 resamples; a pair needs the same resamples"):
        find_difference(0, 0, np.zeros(2), np.zeros(3))
