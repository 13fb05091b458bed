from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from captioner.model.config import FEEDS, GATES, MODES, SCORES, AttentionConfig, DecoderConfig, SearchConfig
from captioner.model.decoders.lstm import Decoder, Outputs, State
from captioner.model.randomness import Randomness
from captioner.model.search.beam import search
from captioner.model.search.sampling import roll_out

V, D, E, H, R, GRID = 11, 6, 4, 5, 3, (2, 2)
L = 4


def make(attention: AttentionConfig | None = None, seed: int = 0, **settings: object) -> Decoder:
    torch.manual_seed(seed)
    sizes: dict[str, object] = {"embedding": E, "hidden": H, "regions": R, "dropout": 0.0, **settings}
    config = DecoderConfig(**sizes)  # type: ignore[arg-type]
    return Decoder(config, attention or AttentionConfig(width=5), V, D, GRID).double()


def inputs(batch: int = 3, captions: int = 2, length: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(batch, L, D, generator=generator, dtype=torch.float64)
    return regions, torch.randint(1, V, (batch, captions, length + 1), generator=generator)


def step_by_step(
    decoder: Decoder, regions: Tensor, ids: Tensor, randomness: Randomness | None
) -> tuple[Tensor, Tensor, Tensor]:
    prepared, state = decoder.start(regions, ids.shape[1], randomness)
    logits, alpha, beta = [], [], []
    for word in ids[:, :, :-1].unbind(dim=2):
        words = decoder.embed(word, randomness=randomness)
        step = decoder.step(prepared, state, words.gates, randomness)
        state = step.state
        logits.append(decoder.logits(words.vectors, state.hidden, step.context, randomness))
        alpha.append(step.alpha)
        beta.append(step.beta)
    return torch.stack(logits, dim=2), torch.stack(alpha, dim=2), torch.stack(beta, dim=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False])
def test_teacher_forcing_equals_step_by_step(mode: str, training: bool) -> None:
    decoder = make(AttentionConfig(mode, width=5))
    regions, ids = inputs()
    whole: Outputs = decoder(regions, ids, Randomness([7], 3) if training else None)
    logits, alpha, beta = step_by_step(decoder, regions, ids, Randomness([7], 3) if training else None)
    assert whole.logits.shape == (3, 2, 5, V)
    assert whole.alpha.shape == (3, 2, 5, L)
    torch.testing.assert_close(whole.logits, logits)
    torch.testing.assert_close(whole.alpha, alpha)
    torch.testing.assert_close(whole.beta, beta)
    assert (whole.chosen is not None) == (training and mode in ("hard", "gumbel"))


@pytest.mark.parametrize("inference", ["expectation", "argmax"])
@pytest.mark.parametrize("mode", MODES)
def test_teacher_forcing_sampling_and_beams_share_one_step(mode: str, inference: str) -> None:
    """For the same words, logits and alpha are the same however the step is reached."""
    decoder = make(AttentionConfig(mode, width=5, inference=inference))
    regions, ids = inputs(captions=3)
    expected = decoder(regions, ids)
    with torch.no_grad():
        prepared, sampled = decoder.start(regions)  # as sampling and beams start: the captions are one at first
        assert prepared.word_gates is not None
        shuffled, parents = sampled, torch.zeros_like(ids[:, :, 0])  # (B, N)
        for place in range(ids.shape[2] - 1):
            words = decoder.embed(ids[:, :, place], prepared)
            by_row = decoder.step(prepared, sampled.expand(3) if place == 0 else sampled, words.gates)
            # A beam keeps its states in another order than its words, and more of them than are used.
            by_parent = decoder.step(prepared, shuffled, words.gates, parents=parents)
            for step in (by_row, by_parent):
                logits = decoder.logits(words.vectors, step.state.hidden, step.context)
                torch.testing.assert_close(logits, expected.logits[:, :, place])
                torch.testing.assert_close(step.alpha, expected.alpha[:, :, place])
                torch.testing.assert_close(step.beta, expected.beta[:, :, place])
            sampled = by_row.state
            order, parents = torch.tensor([2, 0, 1, 1]), torch.tensor([1, 3, 0]).expand(len(regions), -1)
            shuffled = State(by_parent.state.hidden[:, order], by_parent.state.cell[:, order], place + 1)


def test_every_way_to_captions_calls_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, (regions, ids) = make(), inputs()
    calls: list[int] = []
    step = Decoder.step
    monkeypatch.setattr(Decoder, "step", lambda *given, **options: (calls.append(1), step(*given, **options))[1])
    ways: list[Callable[[], object]] = [
        lambda: decoder(regions, ids),
        lambda: roll_out(decoder, regions, 2, 5, Randomness([1], 3)),
        lambda: search(decoder, regions, SearchConfig(beam=2, maximum_length=5)),
        lambda: search(decoder, regions, SearchConfig("sample", maximum_length=5), seeds=[1, 2, 3]),
    ]
    for way in ways:
        calls.clear()
        way()
        assert calls


@pytest.mark.parametrize("mode", ["soft", "local", "none"])
def test_image_major_equals_caption_by_caption(mode: str) -> None:
    decoder = make(AttentionConfig(mode, width=5))
    regions, ids = inputs()
    together = decoder(regions, ids)
    for image in range(3):
        for caption in range(2):
            alone = decoder(regions[image : image + 1], ids[image : image + 1, caption : caption + 1])
            torch.testing.assert_close(alone.logits[0, 0], together.logits[image, caption])
            torch.testing.assert_close(alone.alpha[0, 0], together.alpha[image, caption])


def test_padding_and_order_change_nothing() -> None:
    decoder = make()
    regions, ids = inputs()
    logits = decoder(regions, ids).logits
    padded = torch.cat([ids, torch.zeros(3, 2, 4, dtype=torch.long)], dim=2)
    torch.testing.assert_close(decoder(regions, padded).logits[:, :, :5], logits)
    torch.testing.assert_close(decoder(regions.flip(0), ids.flip(0)).logits.flip(0), logits)


def test_one_step_by_the_papers_equations() -> None:
    decoder = make(regions=0, normalise=False, gate="scalar", tied=False)
    regions, ids = inputs(batch=1, captions=1, length=1)
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
    regions, ids = inputs(batch=1, captions=1)
    prepared, state = decoder.start(regions)
    step = decoder.step(prepared, state, decoder.embed(ids[:, :, 0]).gates)
    context = decoder.attention(prepared.regions, state.hidden).context
    read = torch.cat([decoder.embedding(ids[0, :, 0]), context[0]], dim=-1)
    hidden, cells = cell(read, (state.hidden[0], state.cell[0]))
    torch.testing.assert_close(step.state.hidden[0], hidden)
    torch.testing.assert_close(step.state.cell[0], cells)


@pytest.mark.parametrize("feed", FEEDS)
def test_feeds_of_the_decoder_without_attention(feed: str) -> None:
    decoder = make(AttentionConfig("none", feed=feed), gate="none")
    regions, ids = inputs(batch=1, captions=1)
    prepared, state = decoder.start(regions)
    assert (state.hidden == 0).all() == (feed in ("every-step", "first-step"))
    contexts = []
    for word in ids.unbind(dim=2)[:3]:
        step = decoder.step(prepared, state, decoder.embed(word).gates)
        state = step.state
        contexts.append(bool((step.context != 0).any()))
    assert contexts == {"every-step": [True] * 3, "first-step": [True, False, False]}.get(feed, [False] * 3)
    changed = decoder(regions + 1 + torch.randn_like(regions), ids).logits
    assert (changed != decoder(regions, ids).logits).any()  # the image reaches the words, whatever the way


@pytest.mark.parametrize("gate", GATES)
def test_gates(gate: str) -> None:
    beta = make(gate=gate)(*inputs()).beta
    assert beta.shape == (3, 2, 5, R if gate == "vector" else 1)
    assert (beta == 1).all() == (gate == "none")
    assert ((beta > 0) & (beta <= 1)).all()


def test_tied_embeddings_are_one_matrix() -> None:
    tied, apart = make(tied=True), make(tied=False)
    assert tied.output.weight is tied.embedding.weight
    assert apart.output.weight is not apart.embedding.weight
    assert sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in tied.parameters()) == V * E


@pytest.mark.parametrize("mode", MODES)
def test_every_parameter_learns(mode: str) -> None:
    decoder = make(AttentionConfig(mode, width=5, expected=0.5))
    regions, ids = inputs(batch=8)
    outputs = decoder(regions, ids, Randomness([0], 8))
    outputs.logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


@pytest.mark.parametrize("kind", ["dropout", "region_dropout"])
def test_dropout_is_off_at_inference(kind: str) -> None:
    decoder = make(**{kind: 0.5})
    regions, ids = inputs()
    torch.testing.assert_close(decoder(regions, ids).logits, decoder(regions, ids).logits)
    first, again, other = (decoder(regions, ids, Randomness([seed], 3)).logits for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_saves_work_and_changes_nothing(mode: str) -> None:
    """Losses of a batch with captions of all lengths, and gradients, are those of reading everything to its end."""
    regions, ids = inputs(batch=3, captions=3, length=6)
    lengths = torch.tensor([[5, 3, 1], [4, 4, 2], [3, 1, 0]])  # an image may have fewer captions
    mask = torch.arange(6) < lengths.unsqueeze(-1)  # (B, N, T)
    found = []
    for told in (mask, None):
        decoder = make(AttentionConfig(mode, width=5), dropout=0.3)
        outputs = decoder(regions, ids, Randomness([7], 3), told)
        logits = outputs.logits if told is not None else outputs.logits[mask]
        (logits.square().sum() + (outputs.alpha[mask] ** 3).sum() + (outputs.beta[mask] ** 3).sum()).backward()
        assert outputs.alpha.shape == (3, 3, 6, L)
        found.append((logits, outputs.alpha[mask], [parameter.grad for parameter in decoder.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mode", ["soft", "hard", "gumbel"])
def test_images_shared_among_processes_see_the_same_numbers(mode: str) -> None:
    decoder = make(AttentionConfig(mode, width=5), dropout=0.5, region_dropout=0.3)
    regions, ids = inputs(batch=5)
    whole = decoder(regions, ids, Randomness([3, 4], 5))
    for rows in (slice(0, 2), slice(2, 5)):
        part = decoder(regions[rows], ids[rows], Randomness([3, 4], 5, rows))
        torch.testing.assert_close(part.logits, whole.logits[rows])


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
    regions, ids = inputs(batch=4, captions=3)
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
