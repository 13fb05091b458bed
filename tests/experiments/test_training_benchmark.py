"""The training benchmark: both sides compute the same, and its count of multiply-adds is torch's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from captioner.datasets.vocabulary import END, PAD, START
from captioner.model.config import GATES, AttentionConfig, DecoderConfig
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.textbook import Textbook, soft_loss

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
from training_steps import CAPTIONS_PER_IMAGE, Batch, Case, multiply_adds, our_loss, sample_lengths

V, L, D, E, H, A = 11, 4, 6, 5, 7, 3
PAPER = {"regions": 0, "normalise": False, "embedding": E, "hidden": H, "tied": False, "dropout": 0.0}


def make(attention: AttentionConfig | None = None, **settings: object) -> LSTMDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(**{**PAPER, **settings})  # type: ignore[arg-type]
    return LSTMDecoder(config, attention or AttentionConfig(width=A), V, D, (1, L)).double()


def make_batch(captions: int = 20) -> Batch:
    batch = next(Case(L, D, V, "scalar").batches(1, captions))
    return Batch(batch.regions.double(), batch.caption_ids)


@pytest.mark.parametrize("gate", GATES)
def test_both_sides_have_one_loss_and_one_gradient(gate: str) -> None:
    decoder, batch = make(gate=gate), make_batch()
    ours, theirs = our_loss(decoder, batch, 0.0), soft_loss(Textbook.from_decoder(decoder), *batch.rows())
    torch.testing.assert_close(ours, theirs)
    parameters = list(decoder.parameters())
    torch.testing.assert_close(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters))


@pytest.mark.parametrize("settings", [{"gate": "scalar"}, {"gate": "vector"}, {"regions": 3, "gate": "vector"}])
def test_multiply_adds_are_those_of_a_step_without_padding(settings: dict[str, object]) -> None:
    decoder, batch = make(**settings), make_batch().first(3)  # no caption is shorter
    assert batch.mask.all()
    with FlopCounterMode(display=False) as counter:
        our_loss(decoder, batch, 0.0).backward()
    # Of the energies, torch counts only what is done as a product of matrices, not of a matrix and a vector.
    left_out, rest = divmod(
        multiply_adds(decoder, batch) - counter.get_total_flops() // 2, batch.mask.sum().item() * L * A
    )
    assert rest == 0
    assert 0 <= left_out <= 3


def test_batches_are_like_those_of_training() -> None:
    lengths = torch.tensor(sample_lengths(2000), dtype=torch.float64)
    assert lengths.mean().item() == pytest.approx(10.8, abs=0.1)
    assert lengths.std().item() == pytest.approx(3.8, abs=0.1)
    assert lengths.min() == 3
    batches = list(Case(L, D, V, "scalar").batches(3, 20))
    for batch in batches:
        counts = batch.mask.sum(dim=-1)  # (B, N)
        assert counts.shape == (4, CAPTIONS_PER_IMAGE)
        assert torch.equal(counts, counts.sort(dim=1, descending=True).values)
        assert counts.max() == batch.mask.shape[-1]
        assert (batch.caption_ids[:, :, 0] == START).all()
        assert ((batch.caption_ids == END).sum(dim=-1) == 1).all()
        assert torch.equal(batch.caption_ids.gather(-1, counts.unsqueeze(-1)).squeeze(-1), torch.full((4, 5), END))
        assert torch.equal((batch.caption_ids != PAD).sum(dim=-1), counts + 1)
    assert batches[0].mask.shape[-1] < batches[1].mask.shape[-1] < batches[2].mask.shape[-1]
