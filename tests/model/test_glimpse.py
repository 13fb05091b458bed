"""Looking as a decision: what is read around a point, and how where to look is learned."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.model import glimpse
from captioner.model.attention import Attention
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import LSTMDecoder, Outputs
from captioner.model.glimpse import Fixations, GlimpsePolicy, extents
from captioner.model.losses import glimpse_surrogate, rewards_to_go, value_loss, word_losses
from captioner.model.randomness import Randomness

D, H = 4, 5


def make_policy(grid: tuple[int, int], **settings: int) -> GlimpsePolicy:
    torch.manual_seed(0)
    return GlimpsePolicy(AttentionConfig("glimpse", **settings), D, H, grid).double()  # type: ignore[arg-type]


def at(*points: tuple[float, float]) -> Tensor:
    return torch.tensor([points], dtype=torch.float64)  # (1, N, 2)


@pytest.mark.parametrize(("scales", "patch"), [(1, 1), (1, 3), (2, 2), (3, 3)])
def test_weights_read_what_bilinear_sampling_reads(scales: int, patch: int) -> None:
    """Against torch's sampling of an image, place by place, with places outside moved to the edge."""
    rows, columns = 5, 7
    policy = make_policy((rows, columns), scales=scales, patch=patch)
    with torch.no_grad():
        policy.scales.copy_(torch.arange(scales))
    regions = torch.randn(1, rows * columns, D, dtype=torch.float64)
    points = at((0.0, 0.0), (2.3, 4.7), (4.0, 6.0), (-1.5, 9.0))
    image = regions.transpose(1, 2).view(1, D, rows, columns)
    shares = policy.scales.softmax(dim=0)
    expected = torch.zeros(4, D, dtype=torch.float64)
    for scale in range(scales):
        for down in range(patch):
            for across in range(patch):
                offset = torch.tensor([down, across], dtype=torch.float64) - (patch - 1) / 2
                place = points[0] + 2**scale * offset  # (N, 2), rows and columns
                unit = 2 * place / torch.tensor([rows - 1, columns - 1]) - 1
                grid = unit.flip(-1).view(1, 1, 4, 2)  # torch asks for x, then y
                seen = F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True)
                expected += shares[scale] * seen[0, :, 0].T / patch**2
    alpha = policy.weights(points, None)
    torch.testing.assert_close(alpha.sum(dim=-1), torch.ones(1, 4, dtype=torch.float64))
    torch.testing.assert_close((alpha @ regions)[0], expected)


def test_what_is_missing_has_no_weight_and_the_rest_sums_to_one() -> None:
    policy = make_policy((3, 3), scales=1, patch=1)
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 0, 0, 1]], dtype=torch.bool)
    alpha = policy.weights(at((1.0, 0.5), (1.0, 2.0), (0.0, 0.25)), mask)
    assert (alpha[:, :, ~mask[0]] == 0).all()
    torch.testing.assert_close(alpha.sum(dim=-1), torch.ones(1, 3, dtype=torch.float64))
    assert alpha[0, 0, 3] == 1  # half of the place is missing
    torch.testing.assert_close(alpha[0, 1, mask[0]], torch.full((4,), 0.25, dtype=torch.float64))  # all of it
    torch.testing.assert_close(alpha[0, 2, :2], torch.tensor([0.75, 0.25], dtype=torch.float64))


def test_points_lie_among_the_regions_that_are_there() -> None:
    policy = make_policy((4, 6))
    mask = torch.zeros(1, 4, 6, dtype=torch.bool)
    mask[:, 1:3, 2:5] = True
    read = torch.tensor([[[-50.0, -50.0], [50.0, 50.0], [0.0, 0.0]]], dtype=torch.float64)
    hidden = torch.zeros(1, 3, H, dtype=torch.float64)
    _, fixations = policy(read, hidden, lambda _: torch.zeros(()), mask.flatten(1), 0.1, None, 3)
    torch.testing.assert_close(fixations.points[0, :, 0], at((1.0, 2.0), (2.0, 4.0), (1.5, 3.0))[0])


def test_points_scatter_around_the_mean_as_the_deviation_says() -> None:
    attention = Attention(AttentionConfig("glimpse"), D, H, (9, 9)).double()
    attention.deviation = 0.05
    regions, hidden = torch.randn(1, 81, D, dtype=torch.float64), torch.randn(1, 1, H, dtype=torch.float64)
    many = hidden.expand(1, 20_000, H)
    prepared = attention.prepare(regions)
    middle = attention(prepared, hidden).fixations.points[0, 0, 0]
    points = attention(prepared, many, Randomness([1], 1)).fixations.points[0, :, 0]
    torch.testing.assert_close(points.mean(dim=0), middle, atol=0.01, rtol=0)
    torch.testing.assert_close(points.std(dim=0), torch.full((2,), 0.05 * 4, dtype=torch.float64), rtol=0.03, atol=0)
    again, other = (attention(prepared, many, Randomness([seed], 1)).fixations.points[0, :, 0] for seed in (1, 2))
    assert torch.equal(points, again)
    assert (points != other).any()


def test_a_second_glimpse_follows_from_what_the_first_has_seen() -> None:
    attention = Attention(AttentionConfig("glimpse", glimpses=2, scales=1), D, H, (5, 5)).double()
    regions, hidden = torch.randn(1, 25, D, dtype=torch.float64), torch.randn(1, 1, H, dtype=torch.float64)
    before, after = (
        attention(attention.prepare(each), hidden).fixations.points[0, 0] for each in (regions, regions + 1)
    )
    assert torch.equal(before[0], after[0])
    assert (before[1] != after[1]).all()


def test_the_deviation_falls_by_equal_factors() -> None:
    config = AttentionConfig("glimpse", deviation=0.4, final_deviation=0.1)
    assert [config.deviation_at(step, 5) for step in (0, 2, 4, 9)] == pytest.approx([0.4, 0.2, 0.1, 0.1])
    attention = Attention(config, D, H, (2, 2))
    attention.anneal(2, 5)
    assert attention.deviation == pytest.approx(0.2)
    assert extents(AttentionConfig("glimpse", scales=3, patch=3)) == (1.5, 3.0, 6.0)


# ------------------------------------------------------------------------------------------------ learning

V, GRID, STEPS = 7, (2, 3), 2
DEVIATION, SPACING, FARTHEST = 0.5, 0.5, 4.0
IDS = torch.tensor([1, 5, 4])  # (T + 1,)


def make_decoder() -> tuple[LSTMDecoder, Tensor]:
    torch.manual_seed(1)
    config = DecoderConfig(embedding=4, hidden=H, regions=4, dropout=0.0)
    attention = AttentionConfig("glimpse", scales=2, patch=2, deviation=DEVIATION)
    decoder = LSTMDecoder(config, attention, V, D, GRID).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3)  # lively: likelihoods that differ from point to point
    return decoder, torch.randn(1, GRID[0] * GRID[1], D, dtype=torch.float64)


@dataclass(frozen=True)
class Paths:
    """A caption read along each of P paths of points."""

    fixations: Fixations  # (1, P, T, ...)
    likelihood: Tensor  # (1, P, T), the logarithm for each word
    probability: Tensor  # (1, P), sums to one
    slope: Tensor  # (1, P, T, 2), of a path's log density with respect to the means


def every_path(decoder: LSTMDecoder, regions: Tensor) -> Paths:
    """Return a caption for each path of two points on a grid.

    It is so fine that Gaussians sum to one on it, wherever their means are: there a sum is the integral.
    """
    line = torch.arange(-FARTHEST, FARTHEST + SPACING / 2, SPACING, dtype=torch.float64)
    points = torch.cartesian_prod(*[line] * (2 * STEPS)).view(1, -1, STEPS, 2)  # (1, P, T, 2)
    slopes: list[Tensor] = []

    def choose(mean: Tensor, *_: object) -> Tensor:
        point = points[:, :, len(slopes)]
        slopes.append((point - mean) / DEVIATION**2)
        return point

    ids = IDS.expand(1, points.shape[1], -1)  # (1, P, T + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glimpse, "choose", choose)
        outputs = decoder(regions, ids, Randomness([0], 1))
    cell = SPACING**2 / (2 * torch.pi * DEVIATION**2)
    probability = (outputs.fixations.log_density.exp() * cell).prod(dim=-1)
    return Paths(outputs.fixations, log_likelihood(outputs, ids), probability, torch.stack(slopes, dim=2))


def log_likelihood(outputs: Outputs, ids: Tensor) -> Tensor:
    _, nll = word_losses(outputs.logits.flatten(0, 2), ids[:, :, 1:].flatten())
    return -nll.view(1, -1, STEPS)  # (1, N, T)


def gradients(loss: Tensor, decoder: LSTMDecoder) -> dict[str, Tensor]:
    names, parameters = zip(*decoder.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def test_the_mean_gradient_over_all_points_is_that_of_the_bound() -> None:
    """The exact gradient of the expected log likelihood, by quadrature, is that of what REINFORCE makes small."""
    decoder, regions = make_decoder()
    paths = every_path(decoder, regions)
    assert paths.probability.sum().item() == pytest.approx(1.0, abs=1e-7)
    exact = gradients(-(paths.probability * paths.likelihood.sum(dim=-1)).sum(), decoder)
    # The baseline is not zero, and for the second word it depends on the first point.
    assert paths.fixations.value[:, :, 1].std() > 0.01
    paths = every_path(decoder, regions)
    sure, mask = paths.probability.detach(), torch.ones_like(paths.likelihood, dtype=torch.bool)
    # The surrogate is a mean over captions: each is made to weigh as much as it is probable.
    weighted = paths.fixations.log_density * (sure.shape[1] * sure).unsqueeze(-1)
    surrogate = glimpse_surrogate(weighted, paths.fixations.value, paths.likelihood, mask, reward_scale=1.0)
    found = gradients(surrogate - (sure * paths.likelihood.sum(dim=-1)).sum(), decoder)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, exact[name], atol=1e-6, rtol=1e-5)
    learned = {name for name, gradient in exact.items() if gradient.abs().max() > 1e-4}
    assert {"attention.policy.reader.weight", "attention.policy.reader.bias", "attention.policy.scales"} <= learned


def test_the_learned_baseline_lowers_the_variance() -> None:
    """The exact variance, over all points, of the gradient with respect to where the policy means to look."""
    decoder, regions = make_decoder()
    ids = IDS.expand(1, 300, -1)  # (1, N, T + 1)
    mask = torch.ones(1, 300, STEPS, dtype=torch.bool)
    value = decoder.attention.policy.value
    optimiser = torch.optim.Adam(value.parameters(), lr=0.1)
    for seed in range(150):
        outputs = decoder(regions, ids, Randomness([seed], 1))
        optimiser.zero_grad()
        value_loss(outputs.fixations.value, log_likelihood(outputs, ids), mask).backward()
        optimiser.step()
    with torch.no_grad():
        paths = every_path(decoder, regions)
    sure = paths.probability[:, :, None, None]  # (1, P, 1, 1)
    rewards, words = rewards_to_go(paths.likelihood, torch.ones_like(paths.likelihood, dtype=torch.bool))
    whole = rewards[:, :, :1].expand_as(rewards)  # (1, P, T), of the caption, for every look
    advantages = {
        "none": rewards,
        "one number": whole - (sure[..., 0] * whole).sum(dim=1, keepdim=True),  # as hard attention has it
        "one per word": rewards - (sure[..., 0] * rewards).sum(dim=1, keepdim=True),  # the best that knows no more
        "learned": rewards - paths.fixations.value * words,
    }
    means, variances = {}, {}
    for name, advantage in advantages.items():
        estimates = advantage.unsqueeze(-1) * paths.slope  # (1, P, T, 2)
        means[name] = (sure * estimates).sum(dim=1, keepdim=True)
        variances[name] = (sure * (estimates - means[name]).square()).sum().item()
        torch.testing.assert_close(means[name], means["none"], atol=1e-6, rtol=1e-5)  # no bias
    # Nearly all of it comes from the mean reward; this is one caption of one image, with little else to know.
    assert variances["learned"] < 0.01 * variances["none"]
    assert variances["learned"] < 0.7 * variances["one number"]
    assert variances["learned"] < 1.1 * variances["one per word"]


def test_rewards_to_go_by_hand() -> None:
    likelihood = torch.tensor([[[-1.0, -2.0, -4.0], [-3.0, -5.0, -9.0]]])
    mask = torch.tensor([[[True, True, True], [True, True, False]]])
    rewards, words = rewards_to_go(likelihood, mask)
    assert rewards.tolist() == [[[-7, -6, -4], [-8, -5, 0]]]
    assert words.tolist() == [[[3, 2, 1], [2, 1, 0]]]
    right = torch.tensor([[[-7 / 3, -3, -4], [-4, -5, 77]]])
    assert value_loss(right, likelihood, mask).item() == pytest.approx(0.0, abs=1e-12)
    assert value_loss(right + 2, likelihood, mask).item() == pytest.approx(2.0)
