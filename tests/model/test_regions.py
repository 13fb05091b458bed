"""Regions that may be missing: exactly no weight and no gradient, in every mode, and nothing else changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START
from captioner.model import losses, textbook
from captioner.model.config import MODES, SCORES, AttentionConfig, DecoderConfig
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions, mean_region
from captioner.model.search.beam import beam_search, search
from captioner.model.search.sampling import roll_out
from captioner.model.search_settings import SearchConfig
from captioner.model.textbook import Textbook

B, N, T, V, D, GRID = 3, 2, 4, 11, 6, (2, 3)
L = GRID[0] * GRID[1]
MASK = torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]], dtype=torch.bool)
EVERY = [(mode, score, 0) for mode in MODES for score in SCORES] + [("soft", "additive", 2), ("none", "additive", 3)]


def make(mode: str = "soft", score: str = "additive", heads: int = 0, **attention: object) -> LSTMDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(5, 6, 6, dropout=0.2)
    settings = AttentionConfig(mode, score, width=3, heads=heads, **attention)  # type: ignore[arg-type]
    decoder = LSTMDecoder(config, settings, V, D, GRID).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3)  # lively
    return decoder


def make_batch() -> tuple[Tensor, Tensor]:
    """Return features (B, L, D) and captions (B, N, T + 1)."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(B, L, D, generator=generator, dtype=torch.float64)
    ids = torch.randint(END + 1, V, (B, N, T + 1), generator=generator)
    ids[:, :, 0], ids[:, :, -1] = START, END
    return features, ids


def loss_of(decoder: LSTMDecoder, regions: Tensor | Regions, ids: Tensor, randomness: Randomness | None) -> Tensor:
    """Return a loss with every part: cross entropy, penalty, and the surrogate of hard attention."""
    outputs = decoder(regions, ids, randomness)
    words = torch.ones_like(ids[:, :, 1:], dtype=torch.bool)
    word_losses, nll = losses.word_losses(outputs.logits.flatten(0, 2), ids[:, :, 1:].flatten())
    mask = Regions.of(regions).mask
    loss = losses.cross_entropy(word_losses, B * N, reduction="sum")
    loss = loss + losses.doubly_stochastic_penalty(outputs.alpha, words, reduction="sum", regions=mask)
    if outputs.chosen is None:
        return loss
    settings = {"baseline": -4.0, "reward_scale": 0.3, "entropy_weight": 0.05}
    likelihood = -nll.view(B, N, T).sum(dim=-1)
    return loss + losses.reinforce_surrogate(outputs.alpha, outputs.chosen, likelihood, words, **settings)


@pytest.mark.parametrize(("mode", "score", "heads"), EVERY)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_missing_has_no_weight_and_no_gradient(mode: str, score: str, heads: int, training: bool) -> None:
    decoder = make(mode, score, heads, inference="argmax")
    features, ids = make_batch()
    features.requires_grad_()

    def draws() -> Randomness | None:
        return Randomness([2], B) if training else None

    outputs = decoder(Regions(features, MASK), ids, draws())
    missing = ~MASK[:, None, None].expand_as(outputs.alpha)
    assert (outputs.alpha[missing] == 0).all()
    torch.testing.assert_close(outputs.alpha.sum(dim=-1), torch.ones(B, N, T, dtype=torch.float64))
    if outputs.chosen is not None:
        assert MASK[torch.arange(B)[:, None, None], outputs.chosen].all(), "a region that is missing was chosen"
    loss = loss_of(decoder, Regions(features, MASK), ids, draws())
    (of_features, *of_weights) = torch.autograd.grad(loss, [features, *decoder.parameters()], allow_unused=True)
    assert (of_features[~MASK] == 0).all()
    assert (of_features[MASK] != 0).any()
    # Whatever stands where there is no region, values and gradients are the same to the bit.
    wild = features.detach().masked_fill(~MASK.unsqueeze(-1), math.nan).requires_grad_()
    again = loss_of(decoder, Regions(wild, MASK), ids, draws())
    assert torch.equal(again, loss)
    (_, *others) = torch.autograd.grad(again, [wild, *decoder.parameters()], allow_unused=True)
    for one, other in zip(of_weights, others, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize(("mode", "score", "heads"), EVERY)
@pytest.mark.parametrize("training", [True, False])
def test_a_mask_of_all_regions_changes_no_bit(mode: str, score: str, heads: int, training: bool) -> None:
    decoder = make(mode, score, heads, inference="argmax").float()
    features, ids = make_batch()
    features = features.float()
    whole = Regions(features, torch.ones(B, L, dtype=torch.bool))
    plain, masked = (
        loss_of(decoder, each, ids, Randomness([2], B) if training else None) for each in (features, whole)
    )
    if heads:  # torch computes attention with a mask in another order
        torch.testing.assert_close(masked, plain)
        return
    assert torch.equal(masked, plain)
    parameters = [parameter for parameter in decoder.parameters() if parameter.requires_grad]
    found, expected = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (masked, plain))
    for one, other in zip(found, expected, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("score", [score for score in SCORES if score != "location"])
@pytest.mark.parametrize(("mode", "heads"), [("soft", 0), ("soft", 2), ("hard", 0), ("none", 0)])
def test_a_masked_image_is_one_of_fewer_regions(mode: str, heads: int, score: str) -> None:
    """Padding changes nothing: an image is the same alone, without places for what it has not."""
    decoder = make(mode, score, heads)
    features, ids = make_batch()
    outputs = decoder(Regions(features, MASK), ids)
    for image in range(B):
        alone = decoder(features[image : image + 1, MASK[image]], ids[image : image + 1])
        torch.testing.assert_close(outputs.logits[image], alone.logits[0])
        torch.testing.assert_close(outputs.alpha[image][..., MASK[image]], alone.alpha[0])
        words = torch.ones(1, N, T, dtype=torch.bool)
        for reduction in losses.REDUCTIONS:
            kept = outputs.alpha[image : image + 1]
            masked = losses.doubly_stochastic_penalty(kept, words, reduction=reduction, regions=MASK[image : image + 1])
            torch.testing.assert_close(
                masked, losses.doubly_stochastic_penalty(alone.alpha, words, reduction=reduction)
            )


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_the_fast_model_is_the_page_with_the_same_mask(mode: str) -> None:
    decoder = make(mode, expected=0.0)
    decoder.config = DecoderConfig(5, 6, 6, dropout=0.0)
    features, ids = make_batch()
    outputs = decoder(Regions(features, MASK), ids, Randomness([3], B))
    ours = loss_of(decoder, Regions(features, MASK), ids, Randomness([3], B))
    page = Textbook.from_decoder(decoder)
    rows, there = (each.repeat_interleave(N, dim=0) for each in (features, MASK))  # (C, L, D), (C, L)
    y, words = ids.flatten(0, 1), torch.ones(B * N, T, dtype=torch.bool)  # (C, T + 1), (C, T)
    if mode == "soft":
        logits, alpha, _ = page(rows, y, there=there)
        theirs = textbook.soft_loss(page, rows, y, words, there=there)
    else:
        looks = iter(torch.eye(L, dtype=torch.float64)[outputs.chosen.flatten(0, 1)].unbind(dim=1))  # T times (C, L)
        logits, alpha, s = page(rows, y, lambda _: next(looks), there)
        log_p = textbook.log_likelihood(logits, y, words)
        theirs = textbook.hard_loss(log_p, alpha, s, words, b=-4.0, lambda_r=0.3, lambda_e=0.05)
        theirs = theirs + textbook.doubly_stochastic_penalty(alpha, words, there).mean()
    torch.testing.assert_close(outputs.logits.flatten(0, 1), logits)
    torch.testing.assert_close(outputs.alpha.flatten(0, 1), alpha)
    torch.testing.assert_close(ours, theirs)
    found, expected = (torch.autograd.grad(loss, list(decoder.parameters())) for loss in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_samples_never_fall_on_what_is_missing() -> None:
    """Not even where rounding leaves the sum of all weights below the number that was drawn."""
    from captioner.model.attention import _sample

    class Highest(Randomness):
        def uniform(self, *shape: int, device: torch.device | None = None) -> Tensor:
            return torch.full((self.images, *shape), 1 - 2**-24)

    alpha = torch.where(MASK, 0.99 / MASK.sum(dim=1, keepdim=True), 0).unsqueeze(1)  # (B, 1, L)
    assert _sample(alpha, MASK, Highest([0], B), 1).flatten().tolist() == [4, 5, 2]
    assert _sample(alpha, None, Highest([0], B), 1).flatten().tolist() == [5, 5, 5]


def test_a_local_window_lies_among_the_regions_that_are_there() -> None:
    decoder = make("local")
    features, ids = make_batch()
    mask = torch.tensor([[1, 1, 0, 0, 0, 0]] * B, dtype=torch.bool)  # the left of the first row
    attention = decoder.attention
    window = attention._window(torch.full((B, 1, 2), 30.0, dtype=torch.float64), mask)  # at the far end
    assert (window[:, 0, 1] > -1e-9).all()  # the last of those that are there
    assert (
        decoder(Regions(features, mask), ids).alpha[..., :2].sum(dim=-1).allclose(torch.ones((), dtype=torch.float64))
    )


@pytest.mark.parametrize("settings", [{"beam": 3}, {"beam": 4, "groups": 2}, {"method": "sample"}])
def test_searches_find_what_they_find_of_fewer_regions(settings: dict[str, object]) -> None:
    decoder = make("hard", expected=0.0).eval()
    features, _ = make_batch()
    config = SearchConfig(maximum_length=6, **settings)  # type: ignore[arg-type]
    best = 1 if "method" in settings else 2
    together = search(decoder, Regions(features, MASK), config, best, seeds=[1, 2, 3])
    for image in range(B):
        (alone,) = search(decoder, features[image : image + 1, MASK[image]], config, best, seeds=[image + 1])
        assert [found.ids for found in together[image]] == [found.ids for found in alone]
        for one, other in zip(together[image], alone, strict=True):
            torch.testing.assert_close(one.alpha[:, MASK[image]], other.alpha)
            assert (one.alpha[:, ~MASK[image]] == 0).all()


def test_roll_outs_and_greedy_search_agree() -> None:
    decoder = make()
    features, _ = make_batch()
    ids, _ = roll_out(decoder, Regions(features, MASK), 1, 6)
    greedy = beam_search(
        decoder, Regions(features, MASK), SearchConfig(beam=1, maximum_length=6, no_repeat=0, minimum_length=0)
    )
    for row, (found,) in zip(ids[:, 0].tolist(), greedy, strict=True):
        assert [word for word in row[1:] if word not in (PAD, END)][: len(found.ids)] == list(found.ids)


def test_the_mean_region_is_that_of_those_there() -> None:
    features, _ = make_batch()
    expected = torch.stack([features[image, MASK[image]].mean(dim=0) for image in range(B)])
    torch.testing.assert_close(mean_region(features, MASK), expected)
    assert torch.equal(mean_region(features, torch.ones_like(MASK)), mean_region(features, None))


def test_masks_that_do_not_fit_are_refused() -> None:
    features, _ = make_batch()
    with pytest.raises(ValueError, match=r"int64 \(3, 6\).*bool"):
        Regions(features, MASK.long())
    with pytest.raises(ValueError, match=r"bool \(3, 5\).*\(3, 6, 6\)"):
        Regions(features, MASK[:, :5])
    with pytest.raises(ValueError, match="no regions at all"):
        Regions(features, MASK & False)
