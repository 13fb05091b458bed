from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.toy_captions import GRID, SIZES, caption_of, flat, one_cell
from numpy.typing import NDArray

from captioner.captioning.caption import Caption
from captioner.evaluation.analysis.diagnostics import (
    STILL,
    diagnose,
    entropy,
    jensen_shannon,
    residual,
    total_variation,
)
from captioner.images.geometry import Geometry
from captioner.model.losses import attention_entropy, doubly_stochastic_penalty
from captioner.model.search.hypotheses import Hypothesis
from captioner.training.validation import Findings, _movement

REGIONS = GRID[0] * GRID[1]
SQUARE = Geometry(90, 70, (0.0, 0.0, 90.0, 70.0))


def random_attention(words: int, seed: int = 0, grid: tuple[int, int] = GRID) -> NDArray[np.float32]:
    weights = np.random.default_rng(seed).random((words, *grid)) ** 4
    return (weights / weights.sum(axis=(1, 2), keepdims=True)).astype(np.float32)


def looks(*cells: tuple[int, int], words: tuple[str, ...] | None = None) -> Caption:
    """Return a caption that looks at one cell alone for each word."""
    return caption_of(np.concatenate([one_cell(*cell) for cell in cells]), SQUARE, words)


def nothing() -> Caption:
    none = np.zeros(0, dtype=np.float32)
    return Caption("", (), none, -1.0, np.zeros((0, *GRID), dtype=np.float32), none, SQUARE)


def test_uniform_attention_has_the_highest_entropy_and_stands_still() -> None:
    found = diagnose([flat(4, SIZES["landscape"]), flat(2, SIZES["portrait"])])
    assert found.overall.entropy == pytest.approx(math.log(REGIONS), abs=1e-6)
    assert found.overall.entropy_share == pytest.approx(1.0, abs=1e-6)
    assert found.overall.peak == pytest.approx(1 / REGIONS)
    assert found.overall.movement == pytest.approx(0.0, abs=1e-9)
    assert found.overall.jensen_shannon == pytest.approx(0.0, abs=1e-9)
    assert found.collapsed == 1.0
    # Each region was looked at T / L times.
    expected = np.mean([(1 - words / REGIONS) ** 2 for words in (4, 2)])
    assert found.residual == pytest.approx(expected, abs=1e-6)
    assert found.residual_sum == pytest.approx(REGIONS * expected, abs=1e-4)


def test_attention_on_one_cell_has_none_and_moves_as_far_as_can_be() -> None:
    found = diagnose([looks((0, 0), (0, 1), (0, 1))])
    assert found.overall.entropy == 0.0
    assert found.overall.entropy_share == 0.0
    assert found.overall.peak == 1.0
    first, second, third = found.positions
    assert (first.words, first.moves) == (1, 0)
    assert math.isnan(first.movement)
    assert (second.movement, third.movement) == (1.0, 0.0)
    assert second.jensen_shannon == pytest.approx(math.log(2))
    assert found.overall.movement == 0.5
    assert found.collapsed == 0.0
    # Of the regions, one was seen once, one twice, the others never.
    assert found.residual_sum == pytest.approx(0 + 1 + (REGIONS - 2))


def test_divergences_of_known_weights() -> None:
    first, second = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.0, 0.5])
    assert entropy(first) == pytest.approx(math.log(2))
    assert total_variation(first, second) == pytest.approx(0.5)
    # Half of the weight is shared; the other half is disjoint.
    assert jensen_shannon(first, second) == pytest.approx(0.5 * math.log(2))
    assert jensen_shannon(first, second) == jensen_shannon(second, first)


def test_agrees_with_the_losses_of_training() -> None:
    captions = [caption_of(random_attention(words, seed=words), SQUARE) for words in (3, 5)]
    alpha = torch.zeros(2, 1, 5, REGIONS)
    mask = torch.zeros(2, 1, 5, dtype=torch.bool)
    for row, caption in enumerate(captions):
        alpha[row, 0, : len(caption.words)] = torch.from_numpy(caption.attention).flatten(1)
        mask[row, 0, : len(caption.words)] = True
    found = diagnose(captions)
    assert found.residual == pytest.approx(doubly_stochastic_penalty(alpha, mask, reduction="mean").item(), rel=1e-5)
    assert found.residual_sum == pytest.approx(doubly_stochastic_penalty(alpha, mask, reduction="sum").item(), rel=1e-5)
    assert found.overall.entropy == pytest.approx(attention_entropy(alpha, mask).item(), rel=1e-5)
    assert residual(captions[0].attention) == pytest.approx(
        doubly_stochastic_penalty(alpha[:1], mask[:1], reduction="mean").item(), rel=1e-5
    )


def test_collapse_is_what_validation_calls_so() -> None:
    def caption(step: float) -> Caption:
        """Return a caption whose attention moves `step` of its weight back and forth."""
        weights = np.repeat(one_cell(3, 3), 4, axis=0)
        weights[::2, 3, 3] -= step
        weights[::2, 0, 0] += step
        return caption_of(weights, SQUARE)

    captions = [caption(0.9 * STILL), caption(1.1 * STILL)]
    movements = [_movement([_hypothesis(own)]) for own in captions]
    assert movements == pytest.approx([0.9 * STILL, 1.1 * STILL], rel=1e-4)
    assert [Findings({"movement": own}, []).is_collapsed for own in movements] == [True, False]
    found = [diagnose([own]) for own in captions]
    assert [own.overall.movement for own in found] == pytest.approx(movements, rel=1e-4)
    assert [own.collapsed for own in found] == [1.0, 0.0]
    both = diagnose([*captions, looks((0, 0), (5, 5)), looks((0, 0))])  # a single word cannot tell
    assert both.collapsed == pytest.approx(1 / 3)


def _hypothesis(caption: Caption) -> Hypothesis:
    alpha = torch.from_numpy(caption.attention).flatten(1)
    beta, probabilities = torch.from_numpy(caption.beta), torch.from_numpy(caption.probabilities)
    return Hypothesis(tuple(range(len(caption.words))), 0.0, 0.0, True, probabilities, alpha, beta)


def test_words_are_told_apart_by_class_and_place() -> None:
    first = looks((0, 0), (0, 1), words=("a", "dog"))
    second = caption_of(np.full((2, *GRID), 1 / REGIONS), SQUARE, ("the", "cat"), seed=1)
    third = looks((0, 0), words=("dog",))
    found = diagnose([first, second, third])
    assert {name: row.words for name, row in found.classes.items()} == {"article": 2, "animal": 3}
    assert found.classes["article"].entropy == pytest.approx(math.log(REGIONS) / 2, abs=1e-6)
    assert found.classes["animal"].entropy == pytest.approx(math.log(REGIONS) / 3, abs=1e-6)
    assert found.classes["animal"].moves == 2
    assert found.classes["article"].beta == pytest.approx((first.beta[0] + second.beta[0]) / 2)
    assert [row.words for row in found.positions] == [3, 2]
    assert found.overall.words == 5


def test_what_is_missing_is_none_in_json_and_a_dash_in_the_table() -> None:
    found = diagnose([nothing(), looks((0, 0))])
    assert (found.captions, found.empty) == (2, 1)
    assert found.residual_sum == pytest.approx(REGIONS - 1)  # of the caption that has words
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["collapsed"] is None
    assert plain["positions"][0]["movement"] is None
    assert plain["overall"]["entropy"] == 0.0
    assert "word 1" in found.to_text()
    empty = diagnose([nothing()])
    assert (empty.overall.words, empty.positions, empty.classes) == (0, (), {})
    assert json.loads(json.dumps(empty.to_dict(), allow_nan=False))["residual"] is None
    assert "-" in empty.to_text()


def test_a_single_region_leaves_nothing_to_spread_over() -> None:
    found = diagnose([caption_of(np.ones((2, 1, 1)), SQUARE)])
    assert found.overall.entropy == 0.0
    assert math.isnan(found.overall.entropy_share)


def test_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="no captions"):
        diagnose([])


def test_images_may_have_different_numbers_of_regions() -> None:
    captions = [caption_of(random_attention(2, grid=grid), SQUARE) for grid in ((2, 3), (2, 2), (1, 5))]
    found, alone = diagnose(captions), [diagnose([caption]) for caption in captions]
    assert found.regions == 5.0
    assert [each.regions for each in alone] == [6, 4, 5]
    assert found.overall.entropy == pytest.approx(np.mean([each.overall.entropy for each in alone]))
    assert found.residual == pytest.approx(np.mean([each.residual for each in alone]))
    assert found.residual_sum == pytest.approx(np.mean([each.residual_sum for each in alone]))
    assert found.overall.entropy_share == pytest.approx(found.overall.entropy / math.log(5))


def test_the_grid_is_that_of_the_captions_with_words() -> None:
    silent = replace(nothing(), attention=np.zeros((0, 1, 1), dtype=np.float32))
    assert diagnose([silent, looks((0, 0))]) == diagnose([nothing(), looks((0, 0))])
    assert diagnose([silent, looks((0, 0))]).regions == REGIONS
    assert diagnose([silent, nothing()]).empty == 2


def test_half_precision_does_not_lift_the_entropy_above_its_bound() -> None:
    weights = np.full((1, *GRID), 1 / REGIONS, dtype=np.float16).astype(np.float32) * np.float32(1.01)
    assert diagnose([caption_of(weights, SQUARE)]).overall.entropy_share == pytest.approx(1.0, abs=1e-9)
