"""Losses as pure functions over tensors; each names its reduction.

Captions are image-major: weights are (B, N, T, L), masks (B, N, T). A mask is True where there is a word to predict,
the end marker included; what lies beyond it counts nowhere. What belongs to words alone has a row for each of the W
words where the mask is True.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.model.kernels.word_losses import Drawing, fused_word_losses
from captioner.model.regions import mean_region

REDUCTIONS = ("sum", "mean")
AS_THEY_ARE = Drawing()
LEAST_MASS = 1e-6  # of attention, below which a guide no longer pulls: the slope of the logarithm has no bound


def word_losses(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, drawing: Drawing = AS_THEY_ARE
) -> tuple[Tensor, Tensor]:
    """Return the loss (W,) and the negative log likelihood (W,) of each of W target words under logits (W, V).

    They differ by `smoothing` (0..1), which spreads that share of each target evenly over all V words. Where words were
    drawn, the likelihood is the one they were drawn with.
    """
    return fused_word_losses(logits, targets, smoothing, drawing)


def cross_entropy(losses: Tensor, captions: int, *, reduction: str) -> Tensor:
    """Return the cross entropy of the `captions` that the words with these losses (W,) belong to.

    `reduction` "sum" is the mean over captions of the sum over words, as in the paper; "mean" the mean over words.
    """
    _check_reduction(reduction)
    return losses.sum() / captions if reduction == "sum" else losses.mean()


def doubly_stochastic_penalty(alpha: Tensor, mask: Tensor, *, reduction: str, regions: Tensor | None = None) -> Tensor:
    """Return how far each region is from being looked at once: (1 - sum over t of alpha (B, N, T, L))^2.

    `reduction` "sum" adds over regions, as the paper's equation 14 does; "mean" averages over them, which makes the
    same weight L times weaker. Both average over captions. `regions` (B, L) is True where there is a region, and only
    these count; without it, all are there.
    """
    _check_reduction(reduction)
    looks = (alpha * mask.unsqueeze(-1)).sum(dim=2)  # (B, N, L)
    residuals = (1 - looks).square()  # (B, N, L)
    if regions is not None:
        residuals = residuals * regions.unsqueeze(1)
    per_caption = residuals.sum(dim=-1)  # (B, N)
    if reduction == "mean":
        per_caption = per_caption / (alpha.shape[-1] if regions is None else regions.sum(dim=-1, keepdim=True))
    present = mask.any(dim=-1)  # (B, N)
    return per_caption[present].mean()


def attention_entropy(alpha: Tensor, mask: Tensor) -> Tensor:
    """Return the entropy of alpha (B, N, T, L) in nats, averaged over words; between 0 and log L."""
    entropy: Tensor = torch.special.entr(alpha).sum(dim=-1)  # (B, N, T)
    return entropy[mask].mean()


def guide_losses(alpha: Tensor, coverage: Tensor) -> Tensor:
    """Return -log of the weight (W,) that alpha (W, L) has inside boxes, each region's spread evenly over its cell.

    `coverage` (W, L) is the share, 0..1, of each region that lies inside the boxes of what the word names.
    """
    return -(alpha * coverage).sum(dim=-1).clamp_min(LEAST_MASS).log()


def region_losses(logits: Tensor, coverage: Tensor, regions: Tensor | None = None) -> Tensor:
    """Return the cross entropy (B,) of logits (B, L, C) that say which of C categories lie on each region.

    `coverage` (B, L, C) is how much of each region each of them covers, 0..1. Summed over categories, as if each were
    asked for by itself; averaged over regions, of which `regions` (B, L) is True for those that there are.
    """
    losses = F.binary_cross_entropy_with_logits(logits, coverage, reduction="none").sum(dim=-1)  # (B, L)
    return mean_region(losses.unsqueeze(-1), regions).squeeze(-1)


def reinforce_surrogate(
    alpha: Tensor,
    chosen: Tensor,
    log_likelihood: Tensor,
    mask: Tensor,
    *,
    sampled: Tensor | None = None,
    baseline: float,
    reward_scale: float,
    entropy_weight: float,
) -> Tensor:
    """Return a number whose gradient, with the cross entropy's, is the paper's for hard attention (equation 12).

    `chosen` (B, N, T) are the sampled regions under alpha (B, N, T, L), `log_likelihood` (B, N) that of each caption
    given them. The mean over captions of - scale * (log likelihood - baseline) * log p(samples) - weight * entropy, the
    sums running over words. Captions of images that looked at the expectation, where `sampled` (B, 1) is False, have
    no samples to be rewarded for.
    """
    alpha = alpha.clamp_min(torch.finfo(alpha.dtype).tiny)  # the slopes of logarithm and entropy are infinite at zero
    log_alpha = alpha.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).log()
    log_path = (log_alpha * mask).sum(dim=-1)  # (B, N)
    entropy: Tensor = (torch.special.entr(alpha).sum(dim=-1) * mask).sum(dim=-1)  # (B, N)
    reward = reward_scale * (log_likelihood.detach() - baseline)  # (B, N)
    if sampled is not None:
        reward = reward * sampled
    present = mask.any(dim=-1)  # (B, N)
    return -(reward * log_path + entropy_weight * entropy)[present].mean()


def glimpse_surrogate(
    log_density: Tensor, value: Tensor, log_likelihood: Tensor, mask: Tensor, *, reward_scale: float
) -> Tensor:
    """Return a number whose gradient, with the cross entropy's, is that of the expected log likelihood over points.

    `log_density` (B, N, T) is that of the points looked at for each word, `log_likelihood` (B, N, T) that of the word
    itself. The mean over captions of the sum over words of - scale * (reward - baseline) * log density. The reward is
    the reward to go, what follows of the look: the log likelihood of this word and of all after it. The baseline is
    the value (B, N, T) for each of these words; how many they are does not depend on where the eye looks.
    """
    rewards, words = rewards_to_go(log_likelihood, mask)
    advantage = (rewards - value * words).detach() * mask  # (B, N, T)
    present = mask.any(dim=-1)  # (B, N)
    return -reward_scale * (advantage * log_density).sum(dim=-1)[present].mean()


def value_loss(value: Tensor, log_likelihood: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over words of half the squared error of the value (B, N, T) that was expected.

    Right would have been the mean log likelihood, of (B, N, T), of this word and all after it; it has no gradient.
    """
    rewards, words = rewards_to_go(log_likelihood, mask)
    return (value - (rewards / words.clamp_min(1)).detach())[mask].square().mean() / 2


def rewards_to_go(log_likelihood: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log likelihood of each word and all after it in its caption, and how many these are, (B, N, T)."""
    given = (log_likelihood * mask, mask.to(log_likelihood.dtype))
    rewards, words = (each.flip(-1).cumsum(dim=-1).flip(-1) for each in given)
    return rewards, words


def moving_baseline(previous: float | None, log_likelihood: float, decay: float = 0.9) -> float:
    """Return the baseline after one more batch: decay * previous + (1 - decay) * its mean log likelihood."""
    return log_likelihood if previous is None else decay * previous + (1 - decay) * log_likelihood


def self_critical_loss(log_probabilities: Tensor, mask: Tensor, reward: Tensor, baseline: Tensor) -> Tensor:
    """Return the self-critical loss of sampled captions: the mean over captions of -(reward - baseline) log p.

    `log_probabilities` (B, N, T) are those of the sampled words; `reward` and `baseline` (B, N) carry no gradient.
    """
    log_caption = (log_probabilities * mask).sum(dim=-1)  # (B, N)
    present = mask.any(dim=-1)  # (B, N)
    return -((reward - baseline).detach() * log_caption)[present].mean()


def _check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; choose from {', '.join(REDUCTIONS)}")
