from __future__ import annotations

import pytest
import torch

from captioner.model.kernels import word_losses as kernel
from captioner.model.kernels.word_losses import Drawing, fused_word_losses

W, V = 23, 11
NEVER = (0, 3)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 4 * V)  # of four rows, the last of three


@pytest.mark.parametrize(
    ("smoothing", "drawing"), [(0.0, Drawing()), (0.1, Drawing()), (0.1, Drawing(0.5)), (0.0, Drawing(0.5, NEVER))]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_and_gradients_are_those_of_the_plain_lines(
    smoothing: float, drawing: Drawing, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = 4 * torch.randn(W, V, generator=generator, dtype=torch.float64)  # (W, V)
    targets = torch.randint(4, V, (W,), generator=generator)  # (W,)
    weights = torch.randn(2, W, generator=generator, dtype=torch.float64)  # (2, W)
    ours, plain = (values.to(dtype).requires_grad_() for _ in range(2))
    loss, nll = fused_word_losses(ours, targets, smoothing, drawing)
    scores = plain if dtype == torch.float64 else plain.float()  # (W, V)
    scores = (scores / drawing.temperature).index_fill(-1, torch.tensor(drawing.never, dtype=torch.int64), -torch.inf)
    log_probabilities = scores.log_softmax(dim=-1)  # (W, V)
    expected_nll = -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (W,)
    expected = expected_nll
    if smoothing:
        expected = (1 - smoothing) * expected_nll - smoothing * log_probabilities.mean(dim=-1)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected_nll)
    weights = weights.to(nll.dtype)
    (weights[0] @ loss + weights[1] @ nll).backward()
    (weights[0] @ expected + weights[1] @ expected_nll).backward()
    torch.testing.assert_close(ours.grad, plain.grad)


def test_logits_that_are_no_numbers_give_losses_that_are_none() -> None:
    logits = torch.zeros(2, V)  # (W, V)
    logits[0, 5] = torch.nan
    logits[1, 5] = torch.inf
    _, nll = fused_word_losses(logits, torch.tensor([1, 1]), 0.0, Drawing())
    assert nll.isnan().all()


def test_scores_leave_the_logits_as_they_are() -> None:
    logits = torch.ones(2, V)
    scores = Drawing(never=NEVER).scores(logits)
    assert scores[:, NEVER].isneginf().all()
    assert (logits == 1).all()
