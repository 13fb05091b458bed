"""The scores of all words, in rows that begin where a cache line does.

Few vocabularies have a number of words that fills whole cache lines. The product of a linear layer writes its rows end
to end, so that most of them begin in the middle of a line, and takes up to twice as long in single precision. Here rows
are a little further apart than they are long; the numbers are the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from captioner.model.kernels.products import is_for_onednn, linear

LINE = 64  # bytes of a cache line


def aligned_linear(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Return what a linear layer makes of inputs (..., E), (..., V). The plain line: layer(inputs)"""
    aligned = layer.out_features * inputs.dtype.itemsize % LINE == 0
    if is_for_onednn(inputs, layer.weight):  # which does not mind where rows begin
        return linear(inputs, layer.weight, layer.bias)
    if aligned or inputs.device.type != "cpu" or torch.is_autocast_enabled("cpu") or inputs.dtype != layer.weight.dtype:
        outputs: Tensor = layer(inputs)
        return outputs
    rows: Tensor = _Product.apply(inputs.flatten(0, -2), layer.weight, layer.bias)  # (R, V)
    return rows.view(*inputs.shape[:-1], -1)  # (..., V)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        words, step = len(weight), LINE // inputs.dtype.itemsize
        # Not the left of a wider tensor: who changes a view in place would be refused.
        outputs = inputs.new_empty_strided((len(inputs), words), (-(-words // step) * step, 1))  # (R, V)
        torch.addmm(bias, inputs, weight.t(), out=outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            gradient @ weight if of_inputs else None,
            gradient.t() @ inputs if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )
