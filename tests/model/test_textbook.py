"""The fast model against the paper on one page: the same values and the same gradients, soft and hard."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.datasets.vocabulary import END, PAD, START
from captioner.model import losses, textbook
from captioner.model.config import GATES, AttentionConfig, DecoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.randomness import Randomness
from captioner.model.textbook import Textbook
from captioner.model.textbook_two_layers import TwoLayerTextbook

V, D, L, B, N = 11, 6, 4, 3, 2
LENGTHS = ((5, 3), (4, 4), (2, 1))  # words of each caption, the end included
PARTS = [
    {"layers": layers, "gate": gate, "deep_output": deep, "tied": deep, "regions": regions, "normalise": regions > 0}
    for layers, gate, deep, regions in product((1, 2), GATES, (True, False), (0, 5))
]
PLAIN = {"gate": "scalar", "regions": 0, "normalise": False}
every_part = pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(map(str, parts.values())))


def make(mode: str, parts: dict[str, Any], **attention: float) -> LSTMDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(5, 7, dropout=0.0, **parts)
    decoder = make_decoder(config, AttentionConfig(mode, width=3, **attention), V, D, (2, 2)).double()  # type: ignore[arg-type]
    assert isinstance(decoder, LSTMDecoder)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3)  # lively: otherwise every word is about as probable as any other
    return decoder


def make_page(decoder: LSTMDecoder) -> Textbook:
    return (TwoLayerTextbook if decoder.config.layers == 2 else Textbook).from_decoder(decoder)


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return regions (B, L, D), captions (B, N, T + 1) and where there is a word to predict (B, N, T)."""
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(B, L, D, generator=generator, dtype=torch.float64)
    ids = torch.full((B, N, max(map(max, LENGTHS)) + 1), PAD)
    for image, lengths in enumerate(LENGTHS):
        for caption, length in enumerate(lengths):
            words = torch.randint(END + 1, V, (length - 1,), generator=generator).tolist()
            ids[image, caption, : length + 1] = torch.tensor([START, *words, END])
    return regions, ids, ids[:, :, 1:] != PAD


def rows(tensor: Tensor) -> Tensor:
    """Return (B, N, ...) as C = B * N rows."""
    return tensor.flatten(0, 1)


def copies(regions: Tensor) -> Tensor:
    """Return regions (B, L, D) as (C, L, D), a copy for each caption."""
    return regions.repeat_interleave(N, dim=0)


def assert_same_gradients(decoder: LSTMDecoder, ours: Tensor, theirs: Tensor) -> None:
    names, parameters = zip(*decoder.named_parameters(), strict=True)
    found, expected = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (ours, theirs))
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
        assert one.abs().max() > 0, name


@every_part
def test_soft_attention_is_that_of_the_page(parts: dict[str, Any]) -> None:
    decoder = make("soft", parts)
    images, ids, mask = make_batch()
    page = make_page(decoder)
    logits, alpha, _ = page(copies(images), rows(ids))
    outputs = decoder(images, ids, mask=mask)
    torch.testing.assert_close(outputs.logits, logits[rows(mask)])
    torch.testing.assert_close(outputs.alpha[mask], alpha[rows(mask)])
    word_losses, _ = losses.word_losses(outputs.logits, ids[:, :, 1:][mask])
    ours = losses.cross_entropy(word_losses, B * N, reduction="sum")
    ours = ours + losses.doubly_stochastic_penalty(outputs.alpha, mask, reduction="sum")
    theirs = textbook.soft_loss(page, copies(images), rows(ids), rows(mask))
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(decoder, ours, theirs)


@every_part
def test_hard_attention_is_that_of_the_page(parts: dict[str, Any]) -> None:
    """On the same sampled regions, the surrogate has the value and the gradient of the page's learning rule."""
    decoder = make("hard", parts, expected=0.0)
    images, ids, mask = make_batch()
    outputs = decoder(images, ids, Randomness([3], B), mask)
    assert len(set(outputs.chosen[mask].tolist())) > 1
    page = make_page(decoder)
    looks = iter(rows(outputs.chosen).unbind(dim=1))  # T times (C,)
    logits, alpha, s = page(copies(images), rows(ids), lambda alpha: F.one_hot(next(looks), L).to(alpha.dtype))
    torch.testing.assert_close(outputs.logits, logits[rows(mask)])
    log_p = textbook.log_likelihood(logits, rows(ids), rows(mask))  # (C,)
    weights = {"b": -4.0, "lambda_r": 0.3, "lambda_e": 0.05}
    theirs = textbook.hard_loss(log_p, alpha, s, rows(mask), **weights)
    _, nll = losses.word_losses(outputs.logits, ids[:, :, 1:][mask])  # (W,)
    likelihood = -torch.zeros(mask.shape, dtype=nll.dtype).masked_scatter(mask, nll).sum(dim=-1)  # (B, N)
    surrogate = losses.reinforce_surrogate(
        outputs.alpha, outputs.chosen, likelihood, mask, baseline=-4.0, reward_scale=0.3, entropy_weight=0.05
    )
    ours = surrogate - likelihood.mean()
    torch.testing.assert_close(rows(likelihood), log_p)
    torch.testing.assert_close(ours, theirs)
    assert_same_gradients(decoder, ours, theirs)
    assert losses.moving_baseline(-4.0, likelihood.mean().item()) == pytest.approx(
        textbook.moving_baseline(-4.0, log_p)
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_images_that_expect_are_soft_and_the_others_hard(layers: int) -> None:
    decoder = make("hard", {**PLAIN, "layers": layers}, expected=0.5)
    images, ids, _ = make_batch()
    outputs = decoder(images, ids, Randomness([5], B))
    expected = outputs.expected.flatten().repeat_interleave(N).unsqueeze(1)  # (C, 1)
    assert 0 < expected.sum() < len(expected), "all images alike"
    looks = iter(rows(outputs.chosen).unbind(dim=1))

    def phi(alpha: Tensor) -> Tensor:
        return torch.where(expected, alpha, F.one_hot(next(looks), L).to(alpha.dtype))

    logits, alpha, _ = make_page(decoder)(copies(images), rows(ids), phi)
    torch.testing.assert_close(rows(outputs.logits), logits)
    torch.testing.assert_close(rows(outputs.alpha), alpha)


def test_samples_are_as_frequent_as_their_weights() -> None:
    torch.manual_seed(0)
    alpha = torch.tensor([0.1, 0.6, 0.0, 0.3]).repeat(20_000, 1).requires_grad_()
    s = textbook.hard(alpha)
    assert not s.requires_grad
    assert (s.sum(dim=1) == 1).all()
    torch.testing.assert_close(s.mean(dim=0), alpha[0].detach(), atol=0.015, rtol=0)
    assert textbook.soft(alpha) is alpha


@pytest.mark.parametrize("kind", [Textbook, TwoLayerTextbook])
def test_a_page_of_its_own_reads_captions(kind: type[Textbook]) -> None:
    torch.manual_seed(0)
    page = kind(D, 5, 7, V, 3).double()
    images, ids, mask = make_batch()
    for phi in (textbook.soft, textbook.hard):
        logits, alpha, _ = page(copies(images), rows(ids), phi)
        assert logits.shape == (B * N, ids.shape[2] - 1, V)
        torch.testing.assert_close(alpha.sum(dim=2), torch.ones(alpha.shape[:2], dtype=alpha.dtype))
        assert (textbook.log_likelihood(logits, rows(ids), rows(mask)) < 0).all()


@pytest.mark.parametrize(
    "attention", [AttentionConfig("local", width=3), AttentionConfig(score="cosine", width=3), AttentionConfig("none")]
)
def test_what_is_not_in_the_paper_is_refused(attention: AttentionConfig) -> None:
    decoder = LSTMDecoder(DecoderConfig(5, 7, 0), attention, V, D, (2, 2))
    with pytest.raises(ValueError, match=attention.mode):
        Textbook.from_decoder(decoder)


def test_each_page_is_of_its_own_number_of_layers() -> None:
    for layers, page in ((1, TwoLayerTextbook), (2, Textbook)):
        with pytest.raises(ValueError, match=f"^decoder.layers is {layers}; this textbook has {3 - layers}"):
            page.from_decoder(make("soft", {**PLAIN, "layers": layers}))
