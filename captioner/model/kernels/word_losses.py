"""The losses of words from their logits, as one differentiable operation that keeps nothing of the logits' size.

Autograd alone would write a tensor (W, V) in single precision for each of the conversion, the temperature, the words
left out and the log softmax, and another for the gradient of each. Here rows are gone through in blocks that fit a
core's cache, and computed again for the backward pass, which is cheaper than writing and reading them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from captioner.model.kernels.shared_matrix import at_least_single

BLOCK = 1 << 17  # logits at a time on a CPU: half a megabyte


@dataclass(frozen=True)
class Drawing:
    """How words are drawn of logits: at a temperature, and some of them never."""

    temperature: float = 1.0
    never: Sequence[int] = ()

    def scores(self, logits: Tensor) -> Tensor:
        """Return a copy of logits (..., V), in single precision at least, whose softmax words are drawn by."""
        if self.temperature == 1:
            scores = at_least_single(logits)
            scores = scores.clone() if scores is logits else scores
        else:
            scores = at_least_single(logits).div(self.temperature)
        for word in self.never:
            scores[..., word] = -math.inf
        return scores


def row_blocks(logits: Tensor) -> Iterator[slice]:
    """Yield slices that cover the rows of logits (W, V), few enough at a time for a core's cache."""
    rows = max(1, BLOCK // logits.shape[-1]) if logits.device.type == "cpu" else max(1, len(logits))
    for first in range(0, len(logits), rows):
        yield slice(first, min(first + rows, len(logits)))


def fused_word_losses(logits: Tensor, targets: Tensor, smoothing: float, drawing: Drawing) -> tuple[Tensor, Tensor]:
    """Return loss and negative log likelihood (W,) of target words (W,) under logits (W, V).

    The plain lines:

        log_probabilities = drawing.scores(logits).log_softmax(dim=-1)
        nll = -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = (1 - smoothing) * nll - smoothing * log_probabilities.mean(dim=-1)
    """
    loss, nll = _WordLosses.apply(logits, targets, smoothing, drawing)
    return (loss if smoothing else nll), nll


class _WordLosses(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, drawing: Drawing) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        totals, said, means = logits.new_zeros(3, len(logits), dtype=dtype)  # (W,), log of the sum of exponentials
        for rows in row_blocks(logits):
            scores = drawing.scores(logits[rows])  # (w, V)
            said[rows] = scores.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
            if smoothing:
                means[rows] = scores.mean(dim=-1)
            largest = scores.amax(dim=-1, keepdim=True)  # (w, 1)
            totals[rows] = scores.sub_(largest).exp_().sum(dim=-1).log_().add_(largest.squeeze(-1))
        ctx.save_for_backward(logits, targets, totals)
        ctx.smoothing, ctx.drawing = smoothing, drawing
        nll = totals - said
        return (1 - smoothing) * nll + smoothing * (totals - means), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, of_nll: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, totals = ctx.saved_tensors
        smoothing, temperature = ctx.smoothing, ctx.drawing.temperature
        of_all = ((of_loss + of_nll) / temperature).unsqueeze(-1)  # (W, 1), times the probabilities
        of_target = (((smoothing - 1) * of_loss - of_nll) / temperature).unsqueeze(-1)  # (W, 1)
        of_each = (of_loss * (smoothing / temperature / logits.shape[-1])).unsqueeze(-1)  # (W, 1)
        gradient = torch.empty_like(logits)  # (W, V)
        for rows in row_blocks(logits):
            scores = ctx.drawing.scores(logits[rows]).sub_(totals[rows].unsqueeze(-1)).exp_()  # (w, V)
            scores.mul_(of_all[rows])
            if smoothing:
                scores.sub_(of_each[rows])
            gradient[rows] = scores.scatter_add_(-1, targets[rows].unsqueeze(-1), of_target[rows])
        return gradient, None, None, None
