from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from captioner.model.losses import (
    attention_entropy,
    cross_entropy,
    doubly_stochastic_penalty,
    guide_losses,
    moving_baseline,
    region_losses,
    reinforce_surrogate,
    self_critical_loss,
    word_losses,
)

# Two images, the first with two captions of three and one words, the second with one caption of two.
MASK = torch.tensor([[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]]], dtype=torch.bool)


def some_logits(words: int = 5) -> Tensor:
    return torch.randn(2, 2, 3, words, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_cross_entropy_by_hand() -> None:
    logits = some_logits()[MASK]  # (W, V), six words of three captions
    targets = torch.tensor([1, 2, 3, 4, 2, 2])
    log_probabilities = logits.log_softmax(dim=-1)
    total = -sum(log_probabilities[word, target] for word, target in enumerate(targets))
    losses, nll = word_losses(logits, targets)
    assert losses is nll
    torch.testing.assert_close(cross_entropy(losses, 3, reduction="sum"), total / 3)
    torch.testing.assert_close(cross_entropy(losses, 3, reduction="mean"), total / 6)
    smoothed, plain = word_losses(logits, targets, smoothing=0.1)
    torch.testing.assert_close(plain, nll)
    even = -log_probabilities.mean()
    torch.testing.assert_close(cross_entropy(smoothed, 3, reduction="mean"), 0.9 * total / 6 + 0.1 * even)


def test_half_precision_logits_are_summed_up_in_single() -> None:
    logits = (100 * some_logits()[MASK]).bfloat16()
    losses, _ = word_losses(logits, torch.zeros(6, dtype=torch.long))
    assert losses.dtype == torch.float32
    expected = torch.nn.functional.cross_entropy(logits.float(), torch.zeros(6, dtype=torch.long), reduction="none")
    torch.testing.assert_close(losses, expected)


def test_padding_counts_nowhere() -> None:
    alpha = some_logits(4).softmax(dim=-1).requires_grad_()
    loss = doubly_stochastic_penalty(alpha, MASK, reduction="sum") + attention_entropy(alpha, MASK)
    loss.backward()
    gradient = alpha.grad
    assert gradient is not None
    assert (gradient[~MASK] == 0).all()
    assert (gradient[MASK] != 0).any(dim=-1).all()


def test_doubly_stochastic_penalty_by_hand() -> None:
    alpha = torch.tensor([[[[0.5, 0.5], [0.9, 0.1]]]])  # one caption, T = 2, L = 2
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    # Sums over t are 1.4 and 0.6; (1 - 1.4)^2 + (1 - 0.6)^2 = 0.32.
    assert doubly_stochastic_penalty(alpha, mask, reduction="sum").item() == pytest.approx(0.32)
    assert doubly_stochastic_penalty(alpha, mask, reduction="mean").item() == pytest.approx(0.16)
    mask[0, 0, 1] = False  # only the first word: (1 - 0.5)^2 twice
    assert doubly_stochastic_penalty(alpha, mask, reduction="sum").item() == pytest.approx(0.5)


def test_reductions_are_named() -> None:
    with pytest.raises(ValueError, match="reduction is 'max'; choose from sum, mean"):
        doubly_stochastic_penalty(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool), reduction="max")


def test_entropy_is_that_of_a_uniform_and_of_a_certain_look() -> None:
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    alpha = torch.tensor([[[[0.25] * 4, [1.0, 0.0, 0.0, 0.0]]]])
    assert attention_entropy(alpha, mask).item() == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize("baseline", [0.0, -3.0])
def test_reinforce_gradient_is_the_exact_one_on_average(baseline: float) -> None:
    """All attention paths of a tiny model, weighted by their probability, against the gradient of the bound itself."""
    steps, regions = 3, 4
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(steps, regions, generator=generator, dtype=torch.float64).requires_grad_()
    # log p(word t | region): the likelihood of a caption given a path is a sum over its steps.
    words = torch.randn(steps, regions, generator=generator, dtype=torch.float64).requires_grad_()
    mask = torch.ones(1, 1, steps, dtype=torch.bool)
    weight = 0.1

    def bound() -> Tensor:
        alpha = scores.softmax(dim=-1)
        total = torch.zeros((), dtype=torch.float64)
        for path in itertools.product(range(regions), repeat=steps):
            probability = torch.stack([alpha[t, region] for t, region in enumerate(path)]).prod()
            total = total + probability * sum(words[t, region] for t, region in enumerate(path))
        return -(total + weight * torch.special.entr(alpha).sum())

    exact = torch.autograd.grad(bound(), (scores, words))
    average = [torch.zeros_like(scores), torch.zeros_like(words)]
    for path in itertools.product(range(regions), repeat=steps):
        alpha = scores.softmax(dim=-1)
        chosen = torch.tensor(path).view(1, 1, steps)
        log_likelihood = words.gather(1, chosen.view(steps, 1)).sum().view(1, 1)
        surrogate = reinforce_surrogate(
            alpha.view(1, 1, steps, regions),
            chosen,
            log_likelihood,
            mask,
            baseline=baseline,
            reward_scale=1.0,
            entropy_weight=weight,
        )
        gradients = torch.autograd.grad(surrogate - log_likelihood.mean(), (scores, words))
        probability = alpha.detach().gather(1, chosen.view(steps, 1)).prod()
        for total, gradient in zip(average, gradients, strict=True):
            total += probability * gradient
    for found, expected in zip(average, exact, strict=True):
        torch.testing.assert_close(found, expected)


def test_reward_scale_and_baseline_by_hand() -> None:
    alpha = torch.tensor([[[[0.25, 0.75]]]], requires_grad=True)
    chosen, mask = torch.tensor([[[1]]]), torch.ones(1, 1, 1, dtype=torch.bool)
    settings = {"baseline": -5.0, "reward_scale": 0.1, "entropy_weight": 0.0}
    surrogate = reinforce_surrogate(alpha, chosen, torch.tensor([[-2.0]]), mask, **settings)
    assert surrogate.item() == pytest.approx(-0.1 * 3 * math.log(0.75))
    expecting = {"sampled": torch.tensor([[False]]), **settings}
    assert reinforce_surrogate(alpha, chosen, torch.tensor([[-2.0]]), mask, **expecting).item() == 0
    assert moving_baseline(None, -4.0) == -4.0
    assert moving_baseline(-5.0, -4.0) == pytest.approx(-4.9)


def test_self_critical_by_hand() -> None:
    log_probabilities = torch.full((2, 2, 3), -1.0, requires_grad=True)
    reward, baseline = torch.tensor([[2.0, 1.0], [0.5, 9.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    # Advantages 1, 0, -0.5 with 3, 1, 2 words of log probability -1; the fourth caption is not there.
    loss = self_critical_loss(log_probabilities, MASK, reward, baseline)
    assert loss.item() == pytest.approx(-(1 * -3 + 0 * -1 - 0.5 * -2) / 3)
    loss.backward()
    gradient = log_probabilities.grad
    assert gradient is not None
    assert (gradient[~MASK] == 0).all()
    assert (gradient[0, 0] < 0).all()  # a better caption than the baseline's becomes more probable


def test_a_guide_by_hand() -> None:
    scores = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    coverage = torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.25] * 4, [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    losses = guide_losses(scores.softmax(dim=-1), coverage)
    alpha = scores.softmax(dim=-1).tolist()
    inside = [alpha[0][0] + 0.5 * alpha[0][2], 0.25, alpha[2][3]]
    assert losses.tolist() == pytest.approx([-math.log(mass) for mass in inside])
    losses.sum().backward()
    assert scores.grad is not None
    # The slope is alpha - (what of alpha lies inside, made to sum to one): nothing where all regions are alike.
    for word, mass in enumerate(inside):
        slopes = [a - a * c / mass for a, c in zip(alpha[word], coverage[word].tolist(), strict=True)]
        assert scores.grad[word].tolist() == pytest.approx(slopes, abs=1e-12)
    assert scores.grad[1].abs().max() < 1e-12


def test_a_guide_is_finite_where_all_attention_lies_outside() -> None:
    alpha = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = guide_losses(alpha, torch.tensor([[0.0, 1.0]]))
    assert loss.item() == pytest.approx(-math.log(1e-6))
    loss.sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.isfinite().all()


def test_regions_say_what_lies_on_them_by_hand() -> None:
    chance = torch.Generator().manual_seed(0)
    logits, coverage = (torch.rand(2, 3, 4, generator=chance, dtype=torch.float64) for _ in range(2))
    expected = []
    for image in range(2):
        total = 0.0
        for logit, covered in zip(logits[image].flatten().tolist(), coverage[image].flatten().tolist(), strict=True):
            probability = 1 / (1 + math.exp(-logit))
            total -= covered * math.log(probability) + (1 - covered) * math.log(1 - probability)
        expected.append(total / 3)
    assert region_losses(logits, coverage).tolist() == pytest.approx(expected)
    there = torch.ones(logits.shape[:2], dtype=torch.bool)
    assert torch.equal(region_losses(logits, coverage, there), region_losses(logits, coverage))
    there[:, -1] = False  # what is missing counts for nothing
    torch.testing.assert_close(region_losses(logits, coverage, there), region_losses(logits[:, :-1], coverage[:, :-1]))
