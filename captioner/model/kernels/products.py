"""Matrix products in single precision by the library that is faster on this processor.

torch takes those of Intel's MKL, which on AMD's processors leaves AVX-512 unused. oneDNN, which torch brings along and
takes for bfloat16, uses it on all of them, and is more than twice as fast there. Both compute in single precision, in
another order, so that the last digits differ.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from captioner.model.kernels.precision import OLDER

CPU_FILE = Path("/proc/cpuinfo")
SMALL = 1 << 14  # elements of a matrix that is not worth the choice; the rows do not matter, which differ with batches


@cache
def prefers_onednn() -> bool:
    """Tell whether products in single precision are better done by oneDNN than by what torch takes."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    if torch.backends.cpu.get_cpu_capability() in OLDER or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in CPU_FILE.read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux
        return False


class Linear(nn.Linear):
    """A linear layer whose product is the faster one; to everything else it is torch's own."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (..., O) of inputs (..., I)."""
        return linear(inputs, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs (..., I) times a weight (O, I) transposed, (..., O), plus a bias (O,).

    The plain line: F.linear(inputs, weight, bias)
    """
    if not is_for_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    learns = torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad)
    outputs: Tensor = (_Linear.apply if learns else _onednn)(inputs.flatten(0, -2), weight, bias)  # (R, O)
    return outputs.view(*inputs.shape[:-1], -1)  # (..., O)


def product(inputs: Tensor, matrix: Tensor) -> Tensor:
    """Return inputs (R, I) times a matrix (I, O), (R, O), where autograd does not look.

    The plain line: inputs @ matrix
    """
    return _onednn(inputs, matrix.t(), None) if is_for_onednn(inputs, matrix) else inputs @ matrix


def weight_gradient(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient (O, I) of a weight, of those (R, O) of the outputs and the inputs (R, I).

    The plain line: gradient.t() @ inputs
    """
    if gradient.shape[1] > inputs.shape[1] and is_for_onednn(inputs, gradient):
        return product(inputs.t(), gradient).t()  # what is on the left is copied; this copies less
    return product(gradient.t(), inputs)


def is_for_onednn(inputs: Tensor, matrix: Tensor) -> bool:
    """Tell whether a product is one that oneDNN does: on a CPU, in single precision, and not a small one."""
    single = inputs.dtype == matrix.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    large = matrix.numel() >= SMALL and inputs.numel() > 0
    return single and large and inputs.device.type == "cpu" and prefers_onednn()


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return inputs (R, I) times a weight (O, I) transposed, (R, O), plus a bias (O,)."""
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return outputs


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _onednn(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(gradient, weight) if of_inputs else None,
            weight_gradient(gradient, inputs) if of_weight else None,
            gradient.sum(dim=0) if of_bias else None,
        )
