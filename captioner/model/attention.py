"""Attention over regions in every mode, all returning the context and the weights.

Batches are image-major: the N captions of an image share its regions, so a hidden state is (B, N, H) and weights are
(B, N, L). What depends on the regions alone is computed once per image, by `prepare`. Nothing is random unless
randomness is given: it makes a step one of training, in which hard and gumbel modes sample one region, and the glimpse
mode a point to look at. Regions that a mask says are missing have a score of minus infinity, and so a weight and a
gradient of exactly zero in every mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.config import AttentionConfig
from captioner.model.glimpse import Fixations, GlimpsePolicy
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import SharedMatrix, at_least_single
from captioner.model.randomness import Randomness
from captioner.model.scores import Keys, make_score


@dataclass(frozen=True)
class PreparedRegions:
    """What attention needs of a batch of images, computed once."""

    features: SharedMatrix  # (B, L, D)
    keys: Keys | None  # the regions as the score function sees them
    expected: Tensor | None = None  # (B, 1, 1) bool: whose context is an expectation, not one region; None: all
    mask: Tensor | None = None  # (B, L) bool: which regions there are; None: all

    def select(self, index: Tensor) -> PreparedRegions:
        """Return what belongs to some images only."""
        return PreparedRegions(
            self.features.select(index),
            self.keys.select(index) if self.keys is not None else None,
            self.expected[index] if self.expected is not None else None,
            self.mask[index] if self.mask is not None else None,
        )


@dataclass(frozen=True)
class Glimpse:
    """One look at the regions."""

    context: Tensor  # (B, N, D)
    alpha: Tensor  # (B, N, L), each row sums to one
    chosen: Tensor | None = None  # (B, N), the one region that was looked at, where it was one
    fixations: Fixations | None = None  # the points that were looked at, where a policy chose them


class Attention(nn.Module):
    """Weights over regions and the context made of them, in the mode of `config`; `grid` is (rows, columns)."""

    positions: Tensor

    def __init__(self, config: AttentionConfig, region_width: int, hidden_width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.temperature, self.deviation = config.temperature, config.deviation  # of samples; see `anneal`
        rows, columns = grid
        scored = config.mode not in ("glimpse", "none")
        self.score = make_score(config, region_width, hidden_width, rows * columns) if scored else None
        self.policy = None
        if config.mode == "glimpse":
            self.policy = GlimpsePolicy(config, region_width, hidden_width, grid)
        self.centre = None
        if config.mode == "local":
            self.centre = Linear(hidden_width, 2)
            cells = [(float(row), float(column)) for row in range(rows) for column in range(columns)]
            self.register_buffer("positions", torch.tensor(cells), persistent=False)  # (L, 2)
        self.mixing = None
        if config.heads:
            self.mixing = nn.MultiheadAttention(region_width, config.heads, batch_first=True)
            self.norm = nn.LayerNorm(region_width)

    def readers(self) -> list[nn.Linear]:
        """Return the layers through which hidden states are read, in the order in which `forward` takes the results."""
        if self.policy is not None:
            return [self.policy.reader]
        score = self.score.reader if self.score is not None else None
        return [reader for reader in (score, self.centre) if reader is not None]

    def anneal(self, step: int, total: int) -> None:
        """Let samples be as random as they are at `step` (from 0) of a training of `total` steps."""
        self.temperature = self.config.temperature_at(step, total)
        self.deviation = self.config.deviation_at(step, total)

    def prepare(
        self, regions: Tensor, randomness: Randomness | None = None, mask: Tensor | None = None
    ) -> PreparedRegions:
        """Return what `forward` needs of regions (B, L, D); randomness decides which images of a batch expect.

        The mask (B, L) is True where there is a region; without one, all are there.
        """
        if self.mixing is not None:
            missing = ~mask if mask is not None else None  # (B, L)
            mixed, _ = self.mixing(regions, regions, regions, key_padding_mask=missing, need_weights=False)
            regions = self.norm(regions + mixed)
        keys = self.score.prepare(regions) if self.score is not None else None
        shared = SharedMatrix(regions)
        if self.config.mode not in ("hard", "gumbel"):
            return PreparedRegions(shared, keys, mask=mask)
        if randomness is None and self.config.inference == "expectation":
            return PreparedRegions(shared, keys, mask=mask)
        # Only hard training mixes the two; one region is looked at in all other cases.
        expected = regions.new_zeros(len(regions), 1, 1, dtype=torch.bool)
        if randomness is not None and self.config.mode == "hard":
            expected = randomness.uniform(1, 1, device=regions.device) < self.config.expected
        return PreparedRegions(shared, keys, expected, mask)

    def forward(
        self,
        regions: PreparedRegions,
        hidden: Tensor,
        randomness: Randomness | None = None,
        *,
        reads: Sequence[Tensor] | None = None,
        captions: int | None = None,
    ) -> Glimpse:
        """Return a look (B, N, ...) at the regions for hidden states (B, N, H).

        `reads` is what the `readers` make of the hidden states, where that is known already. Samples are drawn for
        `captions` of each image (default: N), of which those here are the first.
        """
        reads = list(reads if reads is not None else [reader(hidden) for reader in self.readers()])
        captions = hidden.shape[1] if captions is None else captions
        if self.policy is not None:
            place = regions.features, regions.mask, self.deviation  # what is looked at, and how surely
            alpha, fixations = self.policy(reads[0], hidden, *place, randomness, captions)  # (B, N, L)
            return Glimpse(regions.features(alpha), alpha, fixations=fixations)
        if self.score is None:
            alpha = _uniform(regions, hidden)  # (B, N, L)
            return Glimpse(regions.features(alpha), alpha)
        assert regions.keys is not None
        query = reads.pop(0) if self.score.reader is not None else hidden
        scores = at_least_single(self.score(regions.keys, query))  # (B, N, L)
        if self.config.mode == "local":
            scores = scores + self._window(reads.pop(0), regions.mask)
        if regions.mask is not None:
            scores = scores.masked_fill(~regions.mask.unsqueeze(1), -math.inf)
        alpha = scores.softmax(dim=-1)  # (B, N, L), eq. 5
        if regions.expected is None:
            return Glimpse(regions.features(alpha), alpha)
        if randomness is None:
            chosen = alpha.argmax(dim=-1)  # (B, N)
            sample = _one_hot(chosen, alpha)
        elif self.config.mode == "gumbel":
            chosen, sample = self._gumbel(scores, randomness, captions)
        else:
            chosen = _sample(alpha.detach(), regions.mask, randomness, captions)
            sample = _one_hot(chosen, alpha)
        weights = torch.where(regions.expected, alpha, sample)  # (B, N, L)
        return Glimpse(regions.features(weights), alpha, chosen)

    def _window(self, centre: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logarithm (B, N, L) of a Gaussian around a centre (B, N, 2) that the hidden state predicts.

        The centre lies between the first and the last row and column of which there is a region.
        """
        first, last = self.positions[0], self.positions[-1]  # (2,)
        if mask is not None:
            there, missing = self.positions.unsqueeze(0), ~mask.unsqueeze(-1)  # (1, L, 2), (B, L, 1)
            first = there.masked_fill(missing, math.inf).amin(dim=1, keepdim=True)  # (B, 1, 2)
            last = there.masked_fill(missing, -math.inf).amax(dim=1, keepdim=True)  # (B, 1, 2)
        centre = first + centre.sigmoid() * (last - first)  # (B, N, 2)
        distances = (centre.unsqueeze(2) - self.positions).square().sum(dim=-1)  # (B, N, L), squared
        return -distances / (2 * self.config.window**2)

    def _gumbel(self, scores: Tensor, randomness: Randomness, captions: int) -> tuple[Tensor, Tensor]:
        """Return sampled regions (B, N), and (B, N, L) with their value and the relaxed samples' gradient."""
        uniform = randomness.uniform(captions, scores.shape[-1], device=scores.device)[:, : scores.shape[1]].to(
            scores.dtype
        )
        noise = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
        relaxed = ((scores + noise) / self.temperature).softmax(dim=-1)  # (B, N, L)
        chosen = relaxed.argmax(dim=-1)  # (B, N)
        return chosen, _one_hot(chosen, scores) + relaxed - relaxed.detach()  # straight through (Jang et al., 2017)


def _uniform(regions: PreparedRegions, hidden: Tensor) -> Tensor:
    """Return equal weights (B, N, L) for hidden states (B, N, H), of the regions that are there."""
    batch, count = regions.features.matrix.shape[:2]
    if regions.mask is None:
        return hidden.new_full((batch, hidden.shape[1], count), 1 / count)  # (B, N, L)
    shares = regions.mask.to(hidden.dtype) / regions.mask.sum(dim=1, keepdim=True)  # (B, L)
    return shares.unsqueeze(1).expand(-1, hidden.shape[1], -1)  # (B, N, L)


def _sample(alpha: Tensor, mask: Tensor | None, randomness: Randomness, captions: int) -> Tensor:
    """Return one region (B, N) for each row of alpha (B, N, L), as probable as its weight, of those in the mask."""
    uniform = randomness.uniform(captions, 1, device=alpha.device)[:, : alpha.shape[1]]  # (B, N, 1)
    chosen = (alpha.float().cumsum(dim=-1) <= uniform).sum(dim=-1)  # (B, N)
    # Rounding may leave the sum of all weights below the number; it then means the last region that there is.
    last = alpha.shape[-1] - 1
    if mask is None:
        return chosen.clamp(max=last)
    return chosen.minimum(last - mask.flip(1).int().argmax(dim=1, keepdim=True))


def _one_hot(chosen: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(chosen, like.shape[-1]).to(like.dtype)  # (B, N, L)
