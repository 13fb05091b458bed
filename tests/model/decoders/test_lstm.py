from __future__ import annotations

import pytest
import torch
from helpers.decoder_kinds import make_inputs

from captioner.model.config import FEEDS, GATES, SCORES, AttentionConfig, DecoderConfig
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.randomness import Randomness

V, D, E, H, R, GRID = 11, 6, 4, 5, 3, (2, 2)


def make(attention: AttentionConfig | None = None, seed: int = 0, **settings: object) -> LSTMDecoder:
    torch.manual_seed(seed)
    sizes: dict[str, object] = {"embedding": E, "hidden": H, "regions": R, "dropout": 0.0, **settings}
    config = DecoderConfig(**sizes)  # type: ignore[arg-type]
    return LSTMDecoder(config, attention or AttentionConfig(width=5), V, D, GRID).double()


def test_one_step_by_the_papers_equations() -> None:
    decoder = make(regions=0, normalise=False, gate="scalar", tied=False)
    regions, ids = make_inputs(batch=1, captions=1, length=1)
    outputs = decoder(regions, ids)
    annotation = regions[0]  # (L, D)
    mean = annotation.mean(dim=0)
    hidden, cell = decoder.initial_hidden(mean), decoder.initial_memory(mean)
    score = decoder.attention.score
    energies = score.energy(torch.tanh(score.region(annotation) + score.reader(hidden)))  # eq. 4
    alpha = energies.squeeze(-1).softmax(dim=0)  # eq. 5
    beta = decoder.gate(hidden).sigmoid()
    context = beta * (alpha[:, None] * annotation).sum(dim=0)  # eq. 13, gated
    word = decoder.embedding(ids[0, 0, 0])
    gates = decoder.from_word(word) + decoder.from_context(context) + decoder.from_hidden(hidden)
    input_gate, forget, candidate, output = gates.view(4, H)
    cell = forget.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    hidden = output.sigmoid() * cell.tanh()
    logits = decoder.output(word + decoder.output_hidden(hidden) + decoder.output_context(context))  # eq. 7
    torch.testing.assert_close(outputs.alpha[0, 0, 0], alpha)
    torch.testing.assert_close(outputs.beta[0, 0, 0], beta)
    torch.testing.assert_close(outputs.logits[0, 0, 0], logits)


def test_the_lstm_is_torchs() -> None:
    decoder = make(gate="none")
    cell = torch.nn.LSTMCell(E + R, H).double()
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([decoder.from_word.weight, decoder.from_context.weight], dim=1))
        cell.weight_hh.copy_(decoder.from_hidden.weight)
        cell.bias_ih.copy_(decoder.from_word.bias)
        cell.bias_hh.zero_()
    regions, ids = make_inputs(batch=1, captions=1)
    prepared, state = decoder.start(regions)
    step = decoder.step(prepared, state, decoder.embed(ids[:, :, 0]).projected)
    context = decoder.attention(prepared.regions, state.tensors[0]).context
    read = torch.cat([decoder.embedding(ids[0, :, 0]), context[0]], dim=-1)
    hidden, cells = cell(read, (state.tensors[0][0], state.tensors[1][0]))
    torch.testing.assert_close(step.state.tensors[0][0], hidden)
    torch.testing.assert_close(step.state.tensors[1][0], cells)


@pytest.mark.parametrize("feed", FEEDS)
def test_feeds_of_the_decoder_without_attention(feed: str) -> None:
    decoder = make(AttentionConfig("none", feed=feed), gate="none")
    regions, ids = make_inputs(batch=1, captions=1)
    prepared, state = decoder.start(regions)
    assert (state.tensors[0] == 0).all() == (feed in ("every-step", "first-step"))
    contexts = []
    for word in ids.unbind(dim=2)[:3]:
        step = decoder.step(prepared, state, decoder.embed(word).projected)
        state = step.state
        contexts.append(bool((step.context != 0).any()))
    assert contexts == {"every-step": [True] * 3, "first-step": [True, False, False]}.get(feed, [False] * 3)
    changed = decoder(regions + 1 + torch.randn_like(regions), ids).logits
    assert (changed != decoder(regions, ids).logits).any()  # the image reaches the words, whatever the way


@pytest.mark.parametrize("gate", GATES)
def test_gates(gate: str) -> None:
    beta = make(gate=gate)(*make_inputs()).beta
    assert beta.shape == (3, 2, 5, R if gate == "vector" else 1)
    assert (beta == 1).all() == (gate == "none")
    assert ((beta > 0) & (beta <= 1)).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden": 0}, "decoder hidden is 0; it must be at least 1"),
        ({"regions": -1}, "decoder regions is -1; it must be at least 0"),
        ({"gate": "open"}, "decoder gate is 'open'; choose from none, scalar, vector"),
        ({"dropout": 1.0}, "decoder dropout is 1.0"),
        ({"region_dropout": -0.1}, "decoder region_dropout is -0.1"),
    ],
)
def test_bad_settings_name_the_value_and_the_choices(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        DecoderConfig(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_half_precision_is_near_single(mode: str, score: str) -> None:
    attention = AttentionConfig(mode, score, width=8)
    regions, ids = make_inputs(batch=4, captions=3)
    losses, gradients = [], []
    for kind in (None, torch.bfloat16):
        decoder = make(attention, regions=5).float()  # dot scores want the regions as wide as the hidden state
        with torch.autocast("cpu", dtype=kind, enabled=kind is not None):
            outputs = decoder(regions.float(), ids, Randomness([7], 4))
        assert outputs.alpha.dtype == torch.float32
        loss = outputs.logits.float().square().mean() + outputs.alpha.square().mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in decoder.parameters()]))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98
