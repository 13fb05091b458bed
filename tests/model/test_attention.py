from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from captioner.model.attention import Attention, Glimpse
from captioner.model.config import MODES, SCORES, AttentionConfig
from captioner.model.randomness import Randomness
from captioner.model.scores import ConcatScore

B, N, D, H, A, GRID = 2, 3, 6, 6, 5, (2, 3)
L = GRID[0] * GRID[1]
EVERY = [(mode, score) for mode in MODES for score in SCORES]


def make(mode: str = "soft", score: str = "additive", **settings: object) -> Attention:
    torch.manual_seed(0)
    config = AttentionConfig(mode, score, width=A, **settings)  # type: ignore[arg-type]
    return Attention(config, D, H, GRID).double()


def inputs(batch: int = B, captions: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(batch, L, D, generator=generator, dtype=torch.float64)
    return regions, torch.randn(batch, captions, H, generator=generator, dtype=torch.float64)


def look(attention: Attention, regions: Tensor, hidden: Tensor, seed: int | None = 2) -> Glimpse:
    """Look as in training, or with no seed as in use."""
    draws = Randomness([seed], len(regions)) if seed is not None else None
    return attention(attention.prepare(regions, draws), hidden, draws)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("mode", "score"), EVERY)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inference", ["expectation", "argmax"])
def test_every_combination(mode: str, score: str, training: bool, inference: str) -> None:
    attention = make(mode, score, inference=inference)
    regions, hidden = inputs()
    glimpse = look(attention, regions, hidden, seed=2 if training else None)
    assert glimpse.context.shape == (B, N, D)
    assert glimpse.alpha.shape == (B, N, L)
    torch.testing.assert_close(glimpse.alpha.sum(dim=-1), torch.ones(B, N, dtype=torch.float64))
    assert (glimpse.alpha >= 0).all()
    samples = mode in ("hard", "gumbel") and (training or inference == "argmax")
    assert (glimpse.chosen is not None) == samples


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", ["soft", "local", "none"])
def test_gradients_by_finite_differences(mode: str, score: str) -> None:
    attention = make(mode, score)
    regions, hidden = (tensor.requires_grad_() for tensor in inputs())
    parameters = [parameter for parameter in attention.parameters() if parameter.requires_grad]

    def both(regions: Tensor, hidden: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        glimpse = look(attention, regions, hidden)
        return glimpse.context, glimpse.alpha

    assert torch.autograd.gradcheck(both, (regions, hidden, *parameters))


@pytest.mark.parametrize(("mode", "score"), EVERY)
def test_captions_of_an_image_do_not_see_each_other(mode: str, score: str) -> None:
    attention = make(mode, score, inference="argmax")
    regions, hidden = inputs()
    together = look(attention, regions, hidden, seed=None)
    for image in range(B):
        for caption in range(N):
            own = (regions[image : image + 1], hidden[image : image + 1, caption : caption + 1])
            alone = look(attention, *own, seed=None)
            torch.testing.assert_close(alone.context[0, 0], together.context[image, caption])
            torch.testing.assert_close(alone.alpha[0, 0], together.alpha[image, caption])


def test_additive_score_is_the_papers_formula() -> None:
    attention = make()
    regions, hidden = inputs()
    score = attention.score
    alpha = look(attention, regions, hidden).alpha
    energies = torch.stack(
        [score.energy(torch.tanh(score.region(regions[:, index, None]) + score.reader(hidden))) for index in range(L)],
        dim=2,
    )  # (B, N, L, 1)
    torch.testing.assert_close(alpha, energies.squeeze(-1).softmax(dim=-1))


def test_concat_score_is_one_matrix_on_both_end_to_end() -> None:
    score = ConcatScore(D, H, A).double()
    regions, hidden = inputs()
    matrix = torch.cat([score.region.weight, score.reader.weight], dim=1)  # (A, D + H)
    pairs = torch.cat(
        [regions.unsqueeze(1).expand(B, N, L, D), hidden.unsqueeze(2).expand(B, N, L, H)], dim=-1
    )  # (B, N, L, D + H)
    expected = score.energy(torch.tanh(pairs @ matrix.T + score.reader.bias)).squeeze(-1)
    torch.testing.assert_close(score(score.prepare(regions), score.reader(hidden)), expected)


def test_dot_scores_by_hand() -> None:
    regions = torch.zeros(1, L, D, dtype=torch.float64)
    regions[0, 4, 2] = 3.0
    hidden = torch.zeros(1, 1, H, dtype=torch.float64)
    hidden[0, 0, 2] = 2.0
    for score, value in (("dot", 6.0), ("scaled-dot", 6.0 / D**0.5)):
        attention = make("soft", score)
        assert attention.score(attention.score.prepare(regions), hidden)[0, 0, 4].item() == pytest.approx(value)
    with pytest.raises(ValueError, match="of one width, not 6 and 7"):
        Attention(AttentionConfig(score="dot"), 6, 7, GRID)


def test_soft_context_is_the_expectation() -> None:
    regions, hidden = inputs()
    glimpse = look(make(), regions, hidden)
    torch.testing.assert_close(glimpse.context[1, 2], (glimpse.alpha[1, 2, :, None] * regions[1]).sum(dim=0))


def test_no_attention_is_the_mean_region() -> None:
    regions, hidden = inputs()
    glimpse = look(make("none"), regions, hidden)
    torch.testing.assert_close(glimpse.context, regions.mean(dim=1, keepdim=True).expand(B, N, D))


def test_hard_samples_follow_the_weights_and_look_at_one_region() -> None:
    attention = make("hard", expected=0.0)
    regions, hidden = inputs(batch=1, captions=1)
    glimpse = look(attention, regions, hidden.expand(1, 20_000, H))
    counts = torch.bincount(glimpse.chosen.flatten(), minlength=L) / 20_000
    torch.testing.assert_close(counts, glimpse.alpha[0, 0].float(), atol=0.015, rtol=0)
    torch.testing.assert_close(glimpse.context[0, 7], regions[0, glimpse.chosen[0, 7]])


def test_hard_mixes_samples_and_expectations_by_image() -> None:
    attention = make("hard", expected=0.5)
    regions, hidden = inputs(batch=200)
    draws = Randomness([0], len(regions))
    memory = attention.prepare(regions, draws)
    glimpse = attention(memory, hidden, draws)
    share = memory.expected.double().mean().item()
    assert 0.4 < share < 0.6
    expectation = glimpse.alpha @ regions
    agrees = (glimpse.context - expectation).abs().amax(dim=-1) < 1e-12  # (B, N)
    assert (agrees == memory.expected.squeeze(-1)).all()  # all captions of an image alike


def test_samples_repeat_with_the_seed() -> None:
    for mode in ("hard", "gumbel"):
        attention = make(mode)
        regions, hidden = inputs(batch=20)
        first, again, other = (look(attention, regions, hidden, seed).chosen for seed in (3, 3, 4))
        assert (first == again).all()
        assert (first != other).any()


def test_gumbel_looks_at_one_region_and_passes_the_relaxed_gradient() -> None:
    attention = make("gumbel")
    regions, hidden = inputs(batch=1, captions=1)
    hidden = hidden.requires_grad_()
    glimpse = look(attention, regions, hidden)
    torch.testing.assert_close(glimpse.context[0, 0], regions[0, glimpse.chosen[0, 0]])
    glimpse.context.sum().backward()
    assert hidden.grad.abs().max() > 0
    many = look(attention, regions, hidden.detach().expand(1, 20_000, H))
    counts = torch.bincount(many.chosen.flatten(), minlength=L) / 20_000
    torch.testing.assert_close(counts, many.alpha[0, 0].float(), atol=0.015, rtol=0)  # the Gumbel-max trick


def test_location_scores_of_fewer_regions_are_the_first() -> None:
    regions, hidden = inputs()
    attention = Attention(AttentionConfig("soft", "location"), D, H, (1, L + 2)).double()
    scores = attention.score.reader(hidden)  # (B, N, L + 2)
    torch.testing.assert_close(look(attention, regions, hidden).alpha, scores[..., :L].softmax(dim=-1))
    fewer = Attention(AttentionConfig("soft", "location"), D, H, (1, L - 1)).double()
    with pytest.raises(ValueError, match=f"at most {L - 1} regions, not {L}"):
        look(fewer, regions, hidden)


def test_local_window_falls_off_from_its_centre() -> None:
    attention = Attention(AttentionConfig("local", "location", window=0.5), D, H, (5, 7)).double()
    torch.nn.init.zeros_(attention.score.reader.weight)
    torch.nn.init.zeros_(attention.score.reader.bias)  # the window alone
    torch.nn.init.zeros_(attention.centre.weight)
    with torch.no_grad():
        attention.centre.bias.copy_(torch.tensor([0.0, 50.0]))  # half-way down, at the right edge
    alpha = look(attention, torch.zeros(1, 35, D, dtype=torch.float64), inputs(1, 1)[1]).alpha.view(5, 7)
    assert alpha.argmax() == 2 * 7 + 6
    expected = torch.exp(-torch.tensor([4.0, 1.0, 0.0, 1.0, 4.0], dtype=torch.float64) / (2 * 0.25))
    torch.testing.assert_close(alpha[:, 6] / alpha[2, 6], expected)


def test_self_attention_lets_regions_see_each_other() -> None:
    regions, hidden = inputs()
    for heads, moved in ((0, False), (2, True)):
        attention = make(heads=heads)
        before = attention.prepare(regions).features.matrix[0, 0]
        changed = regions.clone()
        changed[0, 5] += 1
        assert torch.equal(before, attention.prepare(changed).features.matrix[0, 0]) != moved
        assert look(attention, regions, hidden).context.shape == (B, N, D)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "firm"}, "attention mode is 'firm'; choose from soft, hard, gumbel, local, glimpse, none"),
        ({"score": "sum"}, "attention score is 'sum'; choose from additive, dot"),
        ({"inference": "guess"}, "attention inference is 'guess'; choose from expectation, argmax"),
        ({"width": 0}, "attention width is 0"),
        ({"expected": 1.5}, "attention expected is 1.5"),
        ({"window": 0.0}, "attention window is 0.0"),
        ({"temperature": 0.0}, "attention temperature is 0.0"),
        ({"final_temperature": -1.0}, "attention final_temperature is -1.0"),
        ({"heads": -1}, "attention heads is -1"),
        ({"glimpses": 0}, "attention glimpses is 0; it must be at least 1"),
        ({"scales": 9}, "attention scales is 9; it must be at most 8"),
        ({"patch": 0}, "attention patch is 0; it must be at least 1"),
        ({"deviation": 0.0}, "attention deviation is 0.0; it must be above 0"),
        ({"final_deviation": 3.0}, "attention final_deviation is 3.0; it must be at most 2"),
    ],
)
def test_bad_settings_name_the_value_and_the_choices(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        replace(AttentionConfig(), **values)  # type: ignore[arg-type]
