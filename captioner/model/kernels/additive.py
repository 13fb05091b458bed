"""The additive score v . tanh(key + query) for all pairs of regions and queries, without a tanh for each pair.

With r = 1 / (1 + exp(2 key) exp(2 query)), tanh(key + query) is 1 - 2 r and its slope 4 (r - r^2). Exponentials are
taken once per key and once per query, so that a pair costs a multiplication and a division, a tenth of a tanh. Pairs
(B, N, L, A) are gone through in blocks that fit a core's cache and computed again for the backward pass, which is
cheaper than writing them to memory and reading them back.

The plain line: torch.tanh(keys.unsqueeze(1) + query.unsqueeze(2)) @ energy
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from captioner.model.kernels.shared_matrix import at_least_single, make_token

BLOCK = 1 << 19  # pairs at a time on a CPU: two megabytes
# exp(2 x) and its reciprocal are normal numbers up to here; tanh of a sum is wrong only where both terms lie beyond,
# at opposite ends.
LARGEST = 43.0


class AdditiveKeys:
    """Keys (B, L, A) and the energy (A,) that weighs them, the same for all steps of a batch.

    As with a `SharedMatrix`, the gradients of both are added up over the steps and handed on once.
    """

    def __init__(self, keys: Tensor, energy: Tensor, exponentials: Tensor | None = None) -> None:
        """Take keys and energy, and the exponentials of the keys where they are known."""
        self.keys, self.energy = keys, energy
        with torch.no_grad():
            self.exponentials = _exponentials(keys) if exponentials is None else exponentials  # (B, L, A)
        self.key_gradient: Tensor | None = None  # (B, L, A), still to be multiplied by 4 v
        self.energy_gradient: Tensor | None = None  # (A,)
        self.token = make_token(self, keys, energy)

    def __call__(self, query: Tensor) -> Tensor:
        """Return scores (B, N, L) of queries (B, N, A), in single precision at least."""
        if self.token is None:
            return self.scores(_exponentials(query))
        scores: Tensor = _Use.apply(query, self.token, self)
        return scores

    def select(self, index: Tensor) -> AdditiveKeys:
        """Return the keys of some images only."""
        exponentials = self.exponentials.index_select(0, index)  # (b, L, A)
        # Where nothing learns, nobody needs the keys themselves any more.
        keys = self.keys.index_select(0, index) if self.token is not None else exponentials  # (b, L, A)
        return AdditiveKeys(keys, self.energy, exponentials)

    def scores(self, queries: Tensor) -> Tensor:
        """Return scores (B, N, L) for exponentials of queries (B, N, A)."""
        batch, captions = queries.shape[:2]
        energy = self.energy.detach().to(queries.dtype)
        scores = queries.new_empty(batch, captions, self.keys.shape[1])
        for images, part in self._blocks(captions):
            reciprocals = self._reciprocals(queries, images, part)
            scores[images, part] = reciprocals @ energy
        return scores.mul_(-2).add_(energy.sum())

    def add_gradients(self, queries: Tensor, gradient: Tensor) -> Tensor:
        """Take in the gradient (B, N, L) of scores, and return that of the queries (B, N, A)."""
        if self.key_gradient is None or self.energy_gradient is None:
            self.key_gradient = torch.zeros_like(self.exponentials)
            self.energy_gradient = torch.zeros_like(self.exponentials[0, 0])
        of_queries = torch.empty_like(queries)
        for images, part in self._blocks(queries.shape[1]):
            pairs = self._reciprocals(queries, images, part)  # (b, n, L, A)
            weights = gradient[images, part]  # (b, n, L)
            self.energy_gradient.sub_(weights.reshape(-1) @ pairs.flatten(0, 2), alpha=2)
            pairs.addcmul_(pairs, pairs, value=-1).mul_(weights.unsqueeze(-1))  # a quarter of tanh's derivative
            torch.sum(pairs, dim=2, out=of_queries[images, part])
            self.key_gradient[images].add_(pairs.sum(dim=1))
        self.energy_gradient.add_(gradient.sum())
        return of_queries.mul_(4 * self.energy.detach().to(queries.dtype))

    def collect_gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of keys and energy from all steps, and forget these."""
        if self.key_gradient is None or self.energy_gradient is None:
            return None, None
        keys = self.key_gradient.mul_(4 * self.energy.detach()).to(self.keys.dtype)
        energy = self.energy_gradient.to(self.energy.dtype)
        self.key_gradient = self.energy_gradient = None
        return keys, energy

    def _reciprocals(self, queries: Tensor, images: slice, part: slice) -> Tensor:
        """Return 1 / (1 + exp(2 key) exp(2 query)) of some images and captions, (b, n, L, A)."""
        keys = self.exponentials[images].unsqueeze(1)  # (b, 1, L, A)
        return torch.addcmul(keys.new_ones(()), keys, queries[images, part].unsqueeze(2)).reciprocal_()

    def _blocks(self, captions: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of images and of captions that cover all pairs, few enough at a time for a core's cache."""
        batch, regions, width = self.exponentials.shape
        block = BLOCK if self.exponentials.device.type == "cpu" else batch * captions * regions * width
        images = max(1, block // (captions * regions * width))
        part = max(1, min(captions, block // (regions * width)))
        for image in range(0, batch, images):
            for caption in range(0, captions, part):
                yield slice(image, min(image + images, batch)), slice(caption, min(caption + part, captions))


def _exponentials(values: Tensor) -> Tensor:
    """Return exp(2 values), in single precision at least."""
    return at_least_single(values).clamp(-LARGEST, LARGEST).mul_(2).exp_()


class _Use(Function):
    """The scores of one step."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, _: Tensor, owner: AdditiveKeys) -> Tensor:
        queries = _exponentials(query)
        ctx.save_for_backward(queries)
        ctx.owner, ctx.dtype = owner, query.dtype
        return owner.scores(queries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (queries,) = ctx.saved_tensors
        of_query = ctx.owner.add_gradients(queries, gradient.to(queries.dtype))
        return of_query.to(ctx.dtype), gradient.new_zeros(()), None
