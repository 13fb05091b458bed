"""Matrices that every step of a caption multiplies with; their gradient is one product for all steps together.

Autograd alone would compute a gradient as large as the matrix at each step and add them up: thin products that are
bound by memory. Here each step only notes what it multiplied and what came back, and the last to be needed in the
backward pass, the node that handed out the matrix, multiplies the notes of all steps at once.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from captioner.model.kernels.products import linear, product, weight_gradient


class Shared(Protocol):
    """What many steps use, and whose gradients are complete once the last of them has been gone back through."""

    def collect_gradients(self) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors that its token was made of, from all steps, and forget these."""


def make_token(owner: Shared, *tensors: Tensor | None) -> Tensor | None:
    """Return a token that each step must take as an input and return a gradient of zero for, None without gradients.

    The gradients of `tensors` are asked of the owner when those of all steps have been computed.
    """
    if not torch.is_grad_enabled() or not any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return None
    token: Tensor = _Owner.apply(owner, *tensors)
    return token


class _Owner(Function):
    """Hands out a token; its backward runs once the backward of every use of the token has."""

    @staticmethod
    def forward(ctx: Any, owner: Shared, *tensors: Tensor | None) -> Tensor:
        ctx.owner = owner
        return next(tensor for tensor in tensors if tensor is not None).new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.owner.collect_gradients()


class SharedMatrix:
    """A matrix (..., I, O), the same for all steps of a batch, with an optional bias (O,).

    With leading dimensions it is a matrix for each image, and so are the inputs. The plain line: inputs @ matrix + bias
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        self.matrix = matrix = _as_autocast(matrix)
        self.bias = bias = _as_autocast(bias) if bias is not None else None
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.token = make_token(self, matrix, bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return inputs (..., N, I) times the matrix, (..., N, O), plus the bias."""
        inputs = inputs.to(self.matrix.dtype)
        if self.token is None:
            return _product(inputs, self.matrix, self.bias)
        outputs: Tensor = _Use.apply(inputs, self.token, self)
        return outputs

    def select(self, index: Tensor) -> SharedMatrix:
        """Return the matrices of some images only."""
        return SharedMatrix(self.matrix.index_select(0, index), self.bias)

    def collect_gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of matrix and bias from the notes of all steps, and forget these."""
        if not self.inputs:
            return None, None
        inputs, gradients = torch.cat(self.inputs, dim=-2), torch.cat(self.gradients, dim=-2)
        self.inputs.clear()
        self.gradients.clear()
        matrix = None
        if self.matrix.requires_grad:
            # Transposed twice: the result lies in memory as the weight of a linear layer does, whose transpose this is.
            flat = self.matrix.dim() == 2
            of_weight = weight_gradient(gradients, inputs) if flat else gradients.transpose(-1, -2) @ inputs
            matrix = of_weight.transpose(-1, -2)
        bias = gradients.flatten(0, -2).sum(dim=0) if self.bias is not None else None
        return matrix, bias


def at_least_single(values: Tensor) -> Tensor:
    """Return values in single precision where they are in half, for what needs more digits or a larger range."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _as_autocast(values: Tensor) -> Tensor:
    """Return values in the precision that products have here, as autocast knows nothing of the operations here."""
    device = values.device.type
    if values.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return values.to(torch.get_autocast_dtype(device))
    return values


def _product(inputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    if matrix.dim() > 2:
        return inputs @ matrix
    return linear(inputs.flatten(0, -2), matrix.t(), bias).view(*inputs.shape[:-1], -1)


class _Use(Function):
    """One step's product."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, _: Tensor, shared: SharedMatrix) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.shared = shared
        return _product(inputs, shared.matrix, shared.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (inputs,) = ctx.saved_tensors
        shared = ctx.shared
        flat = shared.matrix.dim() == 2
        shared.inputs.append(inputs.flatten(0, -2) if flat else inputs)
        shared.gradients.append(gradient.flatten(0, -2) if flat else gradient)
        of_inputs = None
        if ctx.needs_input_grad[0]:
            transposed = shared.matrix.transpose(-1, -2)  # (..., O, I)
            if flat:
                of_inputs = product(gradient.flatten(0, -2), transposed).view(inputs.shape)
            else:
                of_inputs = gradient @ transposed
        return of_inputs, gradient.new_zeros(()), None
