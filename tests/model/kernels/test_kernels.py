"""The operations with a gradient of their own, against what autograd makes of the plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from captioner.model.kernels import additive
from captioner.model.kernels.additive import AdditiveKeys
from captioner.model.kernels.lstm import lstm_cell
from captioner.model.kernels.shared_matrix import SharedMatrix
from captioner.model.randomness import Randomness

B, N, L, A = 3, 4, 5, 6


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(value: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, tensors))


@pytest.mark.parametrize("batched", [False, True])
def test_a_shared_matrix_collects_the_gradient_of_all_steps(batched: bool) -> None:
    matrix = randn(B, L, A) if batched else randn(L, A)
    bias = None if batched else randn(A, seed=1)
    first = randn(B, N, L, seed=2)
    tensors = [matrix, first] if bias is None else [matrix, first, bias]

    def chain(multiply: object) -> Tensor:
        """Three steps, the later ones on fewer captions and fed by the earlier."""
        total = torch.zeros((), dtype=torch.float64)
        inputs = first
        for captions in (4, 3, 1):
            outputs = multiply(inputs[:, :captions])  # type: ignore[operator]
            total = total + (outputs**3).sum()
            inputs = outputs[..., :L].tanh()
        return total

    shared = SharedMatrix(matrix, bias)
    plain = chain(lambda inputs: inputs @ matrix + (0 if bias is None else bias))
    torch.testing.assert_close(chain(shared), plain)
    torch.testing.assert_close(gradients(chain(shared), *tensors), gradients(plain, *tensors))


def test_a_shared_matrix_without_gradients_is_a_product() -> None:
    matrix, inputs = randn(L, A), randn(B, N, L, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(SharedMatrix(matrix)(inputs), inputs @ matrix)
    selected = SharedMatrix(randn(B, L, A).detach()).select(torch.tensor([2, 0]))
    assert selected.matrix.shape == (2, L, A)


@pytest.mark.parametrize("block", [1, 2 * L * A, 2 * N * L * A, 1 << 18])
def test_additive_scores_and_gradients(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "BLOCK", block)
    keys, energy, query = randn(B, L, A), randn(A, seed=1), randn(B, N, A, seed=2)

    def total(score: object) -> Tensor:
        first = score(query)  # type: ignore[operator]
        second = score(query[:, :2] * 2 + first[:, :2, :1])  # type: ignore[operator]
        return (first**3).sum() + second.softmax(dim=-1)[..., 0].sum()

    plain = total(lambda query: torch.tanh(keys.unsqueeze(1) + query.unsqueeze(2)) @ energy)
    ours = AdditiveKeys(keys, energy)
    torch.testing.assert_close(total(ours), plain)
    torch.testing.assert_close(gradients(total(ours), keys, energy, query), gradients(plain, keys, energy, query))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 300.0])
def test_additive_scores_of_large_and_small_sums(scale: float) -> None:
    keys = (scale * randn(B, L, A)).detach().float()
    energy, query = randn(A, seed=1).detach().float(), randn(B, N, A, seed=2).detach().float()
    expected = torch.tanh(keys.unsqueeze(1) + query.unsqueeze(2)) @ energy
    torch.testing.assert_close(AdditiveKeys(keys, energy)(query), expected, atol=2e-6, rtol=2e-6)


def test_half_precision_keys_give_finite_scores_and_gradients() -> None:
    keys = randn(B, L, A).detach().bfloat16().requires_grad_()
    energy, query = randn(A, seed=1).detach().float().requires_grad_(), randn(B, N, A, seed=2).detach().bfloat16()
    scores = AdditiveKeys(keys, energy)(query)
    assert scores.dtype == torch.float32
    scores.square().sum().backward()
    assert keys.grad.dtype == torch.bfloat16
    assert keys.grad.isfinite().all()


def test_the_cell_by_finite_differences_and_by_formula() -> None:
    gates, memory = randn(B, N, 4 * A), randn(B, N, A, seed=1)
    assert torch.autograd.gradcheck(lstm_cell, (gates, memory))
    entry, forget, candidate, output = gates.chunk(4, dim=-1)
    after = forget.sigmoid() * memory + entry.sigmoid() * candidate.tanh()
    torch.testing.assert_close(lstm_cell(gates, memory), (output.sigmoid() * after.tanh(), after))


def test_draws_repeat_with_the_seed_and_drop_the_share_they_are_told() -> None:
    values = torch.ones(50, 40, 30)
    for rate in (0.0, 0.25, 0.5):
        dropped = Randomness([1, 2], 50).dropout(values, rate)
        assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.01)
        assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
        assert torch.equal(dropped, Randomness([1, 2], 50).dropout(values, rate))
    uniform = Randomness([3], 10_000).uniform(2)
    assert uniform.shape == (10_000, 2)
    assert 0 <= uniform.min() < 0.001 < 0.999 < uniform.max() < 1
    rows = slice(20, 30)
    own = Randomness([1, 2], 50, rows).dropout(values[rows], 0.5)
    assert torch.equal(own, Randomness([1, 2], 50).dropout(values, 0.5)[rows])
