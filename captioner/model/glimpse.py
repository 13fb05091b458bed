"""Looking as a decision (after Mnih et al., 2014): a policy chooses a point of the image, and sees only what is near.

For each word the eye rests on G points, one after the other. The policy is a Gaussian:

    mean_g  = tanh(W_g h + U seen_(g-1))      where to look, from -1 to 1 down and across, given the hidden state h
    point_g ~ N(mean_g, deviation^2)          in training; in use the point is the mean
    value   = 4 (w h - 1)                     what the policy expects of the words to come: the baseline of REINFORCE

Around a point the eye reads a patch of k x k places at several scales, 1, 2, 4, ... cells apart: sharp in the middle,
coarse around it. A place between cells is read by bilinear interpolation, which weighs its four neighbours; reading is
linear in the regions, and so a whole glimpse is one row of weights alpha over them. A patch is made of rows and
columns, and so are its weights: alpha of a cell is the weight of its row times that of its column. A place outside of
the image is moved to its edge.

No gradient passes through a point: where to look is learned from what came of it alone, see
`captioner.model.losses.glimpse_surrogate`. How much each scale counts is learned as any weight is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.model.config import AttentionConfig
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import at_least_single
from captioner.model.randomness import Randomness

# About minus the log likelihood of a word while a model learns: the value starts there, and is learned in steps of that
# size. From zero it would take hundreds of steps of Adam, which remembers how large the first errors were.
NATS = 4.0


@dataclass(frozen=True)
class Fixations:
    """Where the eye rested for a word, and how that came about; with T steps joined, each is (B, N, T, ...)."""

    points: Tensor  # (B, N, G, 2), row and column in cells: 0 is the middle of the first
    log_density: Tensor  # (B, N), of the points under the policy, but for a constant
    value: Tensor  # (B, N), the baseline: the mean log likelihood that is expected of the words to come
    extents: tuple[float, ...]  # (S,), how far the patch of each scale reaches from a point, in cells

    def map(self, change: Callable[[Tensor], Tensor]) -> Fixations:
        """Return fixations whose tensors have all been changed alike."""
        return Fixations(change(self.points), change(self.log_density), change(self.value), self.extents)


class GlimpsePolicy(nn.Module):
    """Chooses points by hidden states (B, N, H) and reads regions (B, L, D) around them; `grid` is (rows, columns)."""

    rows: Tensor
    columns: Tensor
    offsets: Tensor

    def __init__(self, config: AttentionConfig, region_width: int, hidden_width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.glimpses, self.extents = config.glimpses, extents(config)
        self.reader = Linear(hidden_width, 2 * config.glimpses)
        self.seen = Linear(region_width, 2, bias=False) if config.glimpses > 1 else None
        self.value = Linear(hidden_width, 1)  # plus one, and in units of NATS
        self.scales = nn.Parameter(torch.zeros(config.scales))  # (S,), their shares before the softmax
        for name, count in zip(("rows", "columns"), grid, strict=True):
            self.register_buffer(name, torch.arange(float(count)), persistent=False)  # (rows,), (columns,)
        steps = torch.arange(config.patch) - (config.patch - 1) / 2  # (k,)
        distances = 2.0 ** torch.arange(config.scales)  # (S,)
        self.register_buffer("offsets", distances[:, None] * steps, persistent=False)  # (S, k), in cells

    def forward(
        self,
        read: Tensor,
        hidden: Tensor,
        look: Callable[[Tensor], Tensor],
        mask: Tensor | None,
        deviation: float,
        randomness: Randomness | None,
        captions: int,
    ) -> tuple[Tensor, Fixations]:
        """Return alpha (B, N, L) and the points that it is read around, for hidden states (B, N, H).

        `read` (B, N, 2G) is what the reader makes of them, `look` makes contexts (B, N, D) of weights (B, N, L), and
        the mask (B, L) is True where there is a region. Noise is drawn for `captions` of each image.
        """
        first, last = self._edges(mask)  # (B or 1, 1, 2)
        noise = None
        if randomness is not None:
            noise = randomness.normal(captions, self.glimpses, 2, device=read.device)[:, : read.shape[1]]
        means = at_least_single(read).reshape(*read.shape[:2], self.glimpses, 2).unbind(dim=2)  # G times (B, N, 2)
        weights: list[Tensor] = []
        points: list[Tensor] = []
        log_density = means[0].new_zeros(means[0].shape[:-1])  # (B, N)
        for place, mean in enumerate(means):
            if weights and self.seen is not None:
                mean = mean + at_least_single(self.seen(look(weights[-1])))
            mean = mean.tanh()
            point = choose(mean.detach(), noise[:, :, place] if noise is not None else None, deviation)  # (B, N, 2)
            log_density = log_density - (point - mean).square().sum(dim=-1) / (2 * deviation**2)
            points.append(first + (point + 1) / 2 * (last - first))  # (B, N, 2)
            weights.append(self.weights(points[-1], mask))
        alpha = torch.stack(weights).mean(dim=0)  # (B, N, L)
        expected = at_least_single(self.value(hidden.detach().to(self.value.weight.dtype))).squeeze(-1)  # (B, N)
        value = NATS * (expected - 1)  # (B, N)
        return alpha, Fixations(torch.stack(points, dim=2), log_density, value, self.extents)

    def weights(self, points: Tensor, mask: Tensor | None) -> Tensor:
        """Return the weights (B, N, L) with which regions are read around points (B, N, 2), each row's sum one."""
        first, last = self._edges(mask)  # (B or 1, 1, 2)
        rows, columns = (
            _line_weights(cells, points[..., axis], self.offsets, first[..., axis], last[..., axis])
            for axis, cells in enumerate((self.rows, self.columns))
        )  # (B, N, S, rows), (B, N, S, columns)
        shares = self.scales.softmax(dim=0).unsqueeze(-1)  # (S, 1)
        # Not a matrix product, which autocast would make one of half precision.
        alpha = ((shares * rows).unsqueeze(-1) * columns.unsqueeze(-2)).sum(dim=2).flatten(2)  # (B, N, L)
        if mask is not None:
            alpha = alpha.masked_fill(~mask.unsqueeze(1), 0)
            none = alpha.sum(dim=-1, keepdim=True) == 0  # (B, N, 1): all that is near is missing
            alpha = torch.where(none, mask.unsqueeze(1).to(alpha.dtype), alpha)
        return alpha / alpha.sum(dim=-1, keepdim=True)

    def _edges(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the first and the last row and column (B or 1, 1, 2) of which there is a region."""
        if mask is None:
            first = torch.stack([self.rows[0], self.columns[0]])  # (2,)
            return first.view(1, 1, 2), torch.stack([self.rows[-1], self.columns[-1]]).view(1, 1, 2)
        there = mask.reshape(-1, len(self.rows), len(self.columns))  # (B, rows, columns)
        lines = ((there.any(dim=2), self.rows), (there.any(dim=1), self.columns))
        first = torch.stack([cells.where(some, math.inf).amin(dim=1) for some, cells in lines], dim=-1)  # (B, 2)
        last = torch.stack([cells.where(some, -math.inf).amax(dim=1) for some, cells in lines], dim=-1)  # (B, 2)
        return first.unsqueeze(1), last.unsqueeze(1)


def choose(mean: Tensor, noise: Tensor | None, deviation: float) -> Tensor:
    """Return the point (B, N, 2) that noise (B, N, 2) makes of a mean, which is the point where there is none."""
    return mean if noise is None else mean + deviation * noise.to(mean.dtype)


def extents(config: AttentionConfig) -> tuple[float, ...]:
    """Return how far the patch of each scale reaches from its point, in cells."""
    return tuple(config.patch * 2.0**scale / 2 for scale in range(config.scales))


def _line_weights(cells: Tensor, places: Tensor, offsets: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the weights (B, N, S, C) of C rows, or columns, that patches at places (B, N) with offsets (S, k) have."""
    read = places[..., None, None] + offsets  # (B, N, S, k)
    read = read.maximum(first[..., None, None]).minimum(last[..., None, None])
    near = 1 - (read.unsqueeze(-1) - cells).abs()  # (B, N, S, k, C), bilinear: the two nearest share a place
    return near.clamp_min(0).mean(dim=-2)  # (B, N, S, C)
