"""The LSTM's arithmetic after its products, as one differentiable operation, and the gates of words from a table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from captioner.model.kernels.shared_rows import take_rows


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden state and cell (..., H) after one step, from the gates (..., 4H) and the cell before it.

    The gates are those of input, forgetting, candidate and output, end to end, before their activations. The cell's
    precision is that of the result: sums over many steps need more digits than products.

    The plain lines:

        i, f, g, o = gates.chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
    """
    hidden, after = _Cell.apply(gates.to(cell.dtype), cell)
    return hidden, after


class _Cell(Function):
    """Equations 2 and 3 of the paper; autograd's thirty small operations would cost as much as the products."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        width = cell.shape[-1]
        active = gates.clone()
        active[..., 2 * width : 3 * width] *= 2  # tanh(x) is 2 sigmoid(2 x) - 1, so that one sigmoid serves all four
        active.sigmoid_()
        active[..., 2 * width : 3 * width].mul_(2).sub_(1)
        input_gate, forget_gate, candidate, output_gate = active.chunk(4, dim=-1)
        after = (forget_gate * cell).addcmul_(input_gate, candidate)  # (..., H)
        squashed = (2 * after).sigmoid_().mul_(2).sub_(1)  # (..., H), tanh of the cell
        ctx.save_for_backward(active, cell, squashed)
        return output_gate * squashed, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hidden_gradient: Tensor, after_gradient: Tensor) -> tuple[Tensor, Tensor]:
        active, cell, squashed = ctx.saved_tensors
        input_gate, forget_gate, candidate, output_gate = active.chunk(4, dim=-1)
        through = hidden_gradient * output_gate
        after = after_gradient + through.addcmul_(through, squashed.square(), value=-1)  # (..., H)
        gradients = torch.empty_like(active)  # (..., 4H)
        of_input, of_forget, of_candidate, of_output = gradients.chunk(4, dim=-1)
        torch.mul(after, candidate, out=of_input)
        torch.mul(after, cell, out=of_forget)
        torch.mul(after, input_gate, out=of_candidate)
        torch.mul(hidden_gradient, squashed, out=of_output)
        slopes = active * (1 - active)  # of a sigmoid
        torch.mul(candidate, candidate, out=slopes.chunk(4, dim=-1)[2]).neg_().add_(1)  # of tanh
        return gradients.mul_(slopes), after.mul_(forget_gate)


class WordGates:
    """A linear layer's outputs for words, each computed when the word first turns up; a search says few, and often.

    It lasts no longer than the weights stay as they are: who starts a batch makes a new one.
    """

    def __init__(self, embedding: nn.Embedding, layer: nn.Linear) -> None:
        self.embedding, self.layer = embedding, layer
        self.table = layer.weight.new_empty(embedding.num_embeddings, layer.out_features)  # (V, 4H)
        self.known = torch.zeros(len(self.table), dtype=torch.bool, device=self.table.device)  # (V,)

    def __call__(self, words: Tensor) -> Tensor:
        """Return the gates (..., 4H) of words (...)."""
        new = torch.unique(words[~self.known[words]])
        if len(new):
            self.table[new] = self.layer(self.embedding(new)).to(self.table.dtype)
            self.known[new] = True
        return take_rows(self.table, words)  # the plain line: layer(embedding(words))
