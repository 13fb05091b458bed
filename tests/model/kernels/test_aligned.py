from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner.model.kernels.aligned import aligned_linear

E = 6


@pytest.mark.parametrize("words", [11, 16])  # rows that fill no whole cache line, and that do
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_gradients_are_those_of_the_layer(words: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(E, words, dtype=dtype)
    inputs = torch.randn(4, 3, E, dtype=dtype, requires_grad=True)  # (B, N, E)
    weights = torch.randn(4, 3, words, dtype=dtype)  # (B, N, V)
    found = []
    for outputs in (aligned_linear(layer, inputs), layer(inputs)):
        found.append((outputs, *torch.autograd.grad((outputs**2 * weights).sum(), (inputs, *layer.parameters()))))
    ours, plain = found
    assert ours[0].shape == plain[0].shape == (4, 3, words)
    torch.testing.assert_close(ours, plain)
    assert ours[0].stride(1) * dtype.itemsize % 64 == 0


def test_scores_may_be_changed_in_place() -> None:
    layer = nn.Linear(E, 11)
    outputs = aligned_linear(layer, torch.randn(4, 3, E))  # (B, N, V)
    outputs[0][:, [1, 2]] = -torch.inf
    outputs.softmax(dim=-1)[..., 0].sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


def test_half_precision_is_left_to_the_layer() -> None:
    layer = nn.Linear(E, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert aligned_linear(layer, torch.randn(2, E)).dtype == torch.bfloat16
