"""The gradient of hard attention through a whole decoder, against the exact one over all paths of attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from captioner.model import attention
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import LSTMDecoder, Outputs
from captioner.model.losses import reinforce_surrogate, word_losses
from captioner.model.randomness import Randomness

V, D, L, STEPS = 7, 4, 3, 3
IDS = torch.tensor([[[1, 5, 4, 2]]])  # (1, 1, T + 1)
MASK = torch.ones(1, 1, STEPS, dtype=torch.bool)


def make() -> tuple[LSTMDecoder, Tensor]:
    torch.manual_seed(0)
    config = DecoderConfig(embedding=4, hidden=5, regions=4, dropout=0.0)
    decoder = LSTMDecoder(config, AttentionConfig("hard", width=3, expected=0.0), V, D, (1, L)).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3)  # lively: weights and likelihoods that differ from path to path
    return decoder, torch.randn(1, L, D, dtype=torch.float64)


def forced(
    decoder: LSTMDecoder, regions: Tensor, patch: pytest.MonkeyPatch
) -> Iterator[tuple[Outputs, Tensor, Tensor]]:
    """Yield the outputs, the log likelihood (1, 1) of the caption and the log probability for each path of regions."""
    for path in itertools.product(range(L), repeat=STEPS):
        regions_left = iter(path)
        patch.setattr(attention, "_sample", lambda *_: torch.tensor([[next(regions_left)]]))  # noqa: B023
        outputs = decoder(regions, IDS, Randomness([0], 1), MASK)
        assert outputs.chosen.flatten().tolist() == list(path)
        likelihood = -word_losses(outputs.logits, IDS[:, :, 1:][MASK])[1].sum().view(1, 1)
        taken = outputs.alpha.gather(-1, outputs.chosen.unsqueeze(-1))  # (1, 1, T, 1)
        yield outputs, likelihood, taken.log().sum()


@pytest.mark.parametrize("baseline", [0.0, -4.0])
def test_the_mean_gradient_over_all_paths_is_that_of_the_bound(
    baseline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, regions = make()
    parameters = list(decoder.parameters())
    exact = [torch.zeros_like(parameter) for parameter in parameters]
    mean = [torch.zeros_like(parameter) for parameter in parameters]
    whole = 0.0
    for _, likelihood, log_path in forced(decoder, regions, monkeypatch):
        # The bound is the sum over paths of p(path) log p(caption | path): its own gradient, without any trick.
        for total, gradient in zip(exact, gradients(-log_path.exp() * likelihood.sum(), parameters), strict=True):
            total += gradient
        whole += log_path.exp().item()
    assert whole == pytest.approx(1.0)
    for outputs, likelihood, log_path in forced(decoder, regions, monkeypatch):
        settings = {"baseline": baseline, "reward_scale": 1.0, "entropy_weight": 0.0}
        surrogate = reinforce_surrogate(outputs.alpha, outputs.chosen, likelihood, MASK, **settings)
        for total, gradient in zip(mean, gradients(surrogate - likelihood.mean(), parameters), strict=True):
            total += log_path.exp().item() * gradient
    for found, expected in zip(mean, exact, strict=True):
        torch.testing.assert_close(found, expected)
    names = [name for name, _ in decoder.named_parameters()]
    learned = {name for name, gradient in zip(names, exact, strict=True) if gradient.abs().max() > 1e-6}
    assert {"attention.score.energy.weight", "attention.score.reader.weight"} <= learned


def gradients(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return [torch.zeros_like(parameter) if gradient is None else gradient for parameter, gradient in pairs]
