"""Attention over regions: score functions times modes, all returning the context and the weights.

Batches are image-major: the N captions of an image share its regions, so a hidden state is (B, N, H) and weights are
(B, N, L). What depends on the regions alone is computed once per image, by `prepare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.config import AttentionConfig


@dataclass(frozen=True)
class Memory:
    """What attention needs of a batch of images, computed once."""

    regions: Tensor  # (B, L, D)
    keys: Tensor  # (B, L, A), the regions as the score function sees them
    expected: Tensor | None = None  # (B, 1, 1) bool: whose context is an expectation, not one region; None: all


@dataclass(frozen=True)
class Glimpse:
    """One look at the regions."""

    context: Tensor  # (B, N, D)
    alpha: Tensor  # (B, N, L), each row sums to one
    chosen: Tensor | None = None  # (B, N), the region that was sampled, where one was


class Score(nn.Module):
    """A score function; its `prepare` turns regions (B, L, D) into keys (B, L, A)."""

    def prepare(self, regions: Tensor) -> Tensor:
        """Return the regions themselves, unless a score function has a projection of its own."""
        return regions

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L) for hidden states (B, N, H)."""
        raise NotImplementedError


class AdditiveScore(Score):
    """v . tanh(W region + U hidden), the paper's (Bahdanau et al., 2015)."""

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__()
        self.region = nn.Linear(region_width, width, bias=False)
        self.hidden = nn.Linear(hidden_width, width)
        self.energy = nn.Linear(width, 1, bias=False)  # a bias would cancel in the softmax

    def prepare(self, regions: Tensor) -> Tensor:
        """Return W region, (B, L, A)."""
        keys: Tensor = self.region(regions)
        return keys

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        query = self.hidden(hidden).unsqueeze(2)  # (B, N, 1, A)
        scores: Tensor = self.energy(torch.tanh(keys.unsqueeze(1) + query))  # (B, N, L, 1)
        return scores.squeeze(-1)


class ConcatScore(AdditiveScore):
    """v . tanh(W [region; hidden]) (Luong et al., 2015).

    One matrix times two vectors end to end is two matrices times one vector each, so this is the additive score; what
    sets it apart is how it starts: as one matrix, scaled for both widths together.
    """

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__(region_width, hidden_width, width)
        bound = 1 / math.sqrt(region_width + hidden_width)
        for parameter in (self.region.weight, self.hidden.weight, self.hidden.bias):
            nn.init.uniform_(parameter, -bound, bound)


class DotScore(Score):
    """hidden . region, divided by the root of their width where `scaled` (Vaswani et al., 2017)."""

    def __init__(self, region_width: int, hidden_width: int, scaled: bool) -> None:
        super().__init__()
        if region_width != hidden_width:
            raise ValueError(
                f"dot scores need regions and hidden states of one width, not {region_width} and {hidden_width}; "
                "project the regions, or choose general"
            )
        self.scale = 1 / math.sqrt(hidden_width) if scaled else 1.0

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        return self.scale * hidden @ keys.transpose(1, 2)


class GeneralScore(Score):
    """hidden . W region, bilinear (Luong et al., 2015)."""

    def __init__(self, region_width: int, hidden_width: int) -> None:
        super().__init__()
        self.region = nn.Linear(region_width, hidden_width, bias=False)

    def prepare(self, regions: Tensor) -> Tensor:
        """Return W region, (B, L, H)."""
        keys: Tensor = self.region(regions)
        return keys

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        return hidden @ keys.transpose(1, 2)


class CosineScore(Score):
    """The cosine between projections of region and hidden state, times a learned sharpness."""

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__()
        self.region = nn.Linear(region_width, width, bias=False)
        self.hidden = nn.Linear(hidden_width, width, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))  # cosines alone could not get far from uniform weights

    def prepare(self, regions: Tensor) -> Tensor:
        """Return projected regions of length one, (B, L, A)."""
        return F.normalize(self.region(regions), dim=-1)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        return self.sharpness * F.normalize(self.hidden(hidden), dim=-1) @ keys.transpose(1, 2)


class LocationScore(Score):
    """W hidden, one row a region: where to look follows from the hidden state alone."""

    def __init__(self, hidden_width: int, regions: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(hidden_width, regions)

    def forward(self, keys: Tensor, hidden: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        scores: Tensor = self.hidden(hidden)
        return scores


def make_score(config: AttentionConfig, region_width: int, hidden_width: int, regions: int) -> Score:
    """Return the score function of `config` for L `regions` of `region_width` D and hidden states of width H."""
    makers: dict[str, Callable[[], Score]] = {
        "additive": lambda: AdditiveScore(region_width, hidden_width, config.width),
        "concat": lambda: ConcatScore(region_width, hidden_width, config.width),
        "dot": lambda: DotScore(region_width, hidden_width, scaled=False),
        "scaled-dot": lambda: DotScore(region_width, hidden_width, scaled=True),
        "general": lambda: GeneralScore(region_width, hidden_width),
        "cosine": lambda: CosineScore(region_width, hidden_width, config.width),
        "location": lambda: LocationScore(hidden_width, regions),
    }
    return makers[config.score]()


class Attention(nn.Module):
    """Weights over regions and the context made of them, in the mode of `config`; `grid` is (rows, columns)."""

    positions: Tensor

    def __init__(self, config: AttentionConfig, region_width: int, hidden_width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.temperature = 1.0  # of gumbel samples; training lowers it
        rows, columns = grid
        self.score = make_score(config, region_width, hidden_width, rows * columns) if config.mode != "none" else None
        if config.mode == "local":
            self.centre = nn.Linear(hidden_width, 2)
            cells = [(float(row), float(column)) for row in range(rows) for column in range(columns)]
            self.register_buffer("positions", torch.tensor(cells), persistent=False)  # (L, 2)
        self.mixing = None
        if config.heads:
            self.mixing = nn.MultiheadAttention(region_width, config.heads, batch_first=True)
            self.norm = nn.LayerNorm(region_width)

    def prepare(self, regions: Tensor, generator: torch.Generator | None = None) -> Memory:
        """Return what `forward` needs of regions (B, L, D); `generator` draws which images of a batch expect."""
        if self.mixing is not None:
            mixed, _ = self.mixing(regions, regions, regions, need_weights=False)
            regions = self.norm(regions + mixed)
        keys = self.score.prepare(regions) if self.score is not None else regions
        if self.config.mode not in ("hard", "gumbel"):
            return Memory(regions, keys)
        if not self.training and self.config.inference == "expectation":
            return Memory(regions, keys)
        # Only hard training mixes the two; one region is looked at in all other cases.
        share = self.config.expected if self.training and self.config.mode == "hard" else 0.0
        draws = torch.rand(len(regions), 1, 1, generator=generator, device=regions.device)
        return Memory(regions, keys, draws < share)

    def forward(self, memory: Memory, hidden: Tensor, generator: torch.Generator | None = None) -> Glimpse:
        """Return a look (B, N, ...) at the regions for hidden states (B, N, H); `generator` draws the samples."""
        if self.score is None:
            batch, regions = memory.regions.shape[:2]
            alpha = hidden.new_full((batch, hidden.shape[1], regions), 1 / regions)  # (B, N, L)
            return Glimpse(alpha @ memory.regions, alpha)
        scores = self.score(memory.keys, hidden)  # (B, N, L)
        if self.config.mode == "local":
            scores = scores + self._window(hidden)
        alpha = scores.softmax(dim=-1)  # (B, N, L)
        if memory.expected is None:
            return Glimpse(alpha @ memory.regions, alpha)
        if self.config.mode == "gumbel" and self.training:
            chosen, sample = self._gumbel(scores, generator)
        elif self.training:
            chosen = torch.multinomial(alpha.detach().flatten(0, 1), 1, generator=generator).view(alpha.shape[:2])
            sample = F.one_hot(chosen, alpha.shape[-1]).to(alpha.dtype)  # (B, N, L)
        else:
            chosen = alpha.argmax(dim=-1)  # (B, N)
            sample = F.one_hot(chosen, alpha.shape[-1]).to(alpha.dtype)  # (B, N, L)
        weights = torch.where(memory.expected, alpha, sample)  # (B, N, L)
        return Glimpse(weights @ memory.regions, alpha, chosen)

    def _window(self, hidden: Tensor) -> Tensor:
        """Return the logarithm (B, N, L) of a Gaussian around a centre that the hidden state predicts."""
        extent = self.positions[-1]  # the last row and column
        centre: Tensor = self.centre(hidden).sigmoid() * extent  # (B, N, 2)
        distances = (centre.unsqueeze(2) - self.positions).square().sum(dim=-1)  # (B, N, L), squared
        return -distances / (2 * self.config.window**2)

    def _gumbel(self, scores: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return sampled regions (B, N), and (B, N, L) with their value and the relaxed samples' gradient."""
        uniform = torch.rand(scores.shape, generator=generator, device=scores.device, dtype=scores.dtype)
        noise = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
        relaxed = ((scores + noise) / self.temperature).softmax(dim=-1)  # (B, N, L)
        chosen = relaxed.argmax(dim=-1)  # (B, N)
        sample = F.one_hot(chosen, scores.shape[-1]).to(scores.dtype)
        return chosen, sample + relaxed - relaxed.detach()  # straight through (Jang et al., 2017)
