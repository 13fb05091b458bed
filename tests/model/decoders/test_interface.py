"""What is promised of every decoder: however a word is reached, it is read by the same step, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.decoder_kinds import KINDS, L, V, looked, make_inputs, make_kind
from helpers.toy_checkpoints import VOCABULARY, make_checkpoint
from torch import Tensor

from captioner.datasets.vocabulary import END, START
from captioner.model.checkpoint import load_checkpoint, save_checkpoint
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import Decoder, Outputs, State, make_decoder
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions
from captioner.model.search.beam import search
from captioner.model.search.sampling import roll_out
from captioner.model.search_settings import SearchConfig

SAMPLING = [kind for kind in KINDS if kind.endswith(("hard", "gumbel"))]
GLIMPSING = [kind for kind in KINDS if "glimpse" in kind]
every_kind = pytest.mark.parametrize("kind", KINDS)


def make_lively(kind: str, seed: int = 0) -> Decoder:
    """A decoder that prefers some words to others, and ends its captions."""
    decoder = make_kind(kind, seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(5)
        decoder.output.bias[END] = 2.0
    return decoder


def step_by_step(
    decoder: Decoder, regions: Tensor, ids: Tensor, randomness: Randomness | None
) -> tuple[Tensor, Tensor, Tensor]:
    prepared, state = decoder.start(regions, ids.shape[1], randomness)
    logits, alpha, beta = [], [], []
    for word in ids[:, :, :-1].unbind(dim=2):
        words = decoder.embed(word, randomness=randomness)
        step = decoder.step(prepared, state, words.projected, randomness)
        state = step.state
        logits.append(decoder.logits(words, step, randomness))
        alpha.append(step.alpha)
        beta.append(step.beta)
    return torch.stack(logits, dim=2), torch.stack(alpha, dim=2), torch.stack(beta, dim=2)


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_teacher_forcing_equals_step_by_step(kind: str, training: bool) -> None:
    decoder = make_kind(kind)
    regions, ids = make_inputs()
    whole: Outputs = decoder(regions, ids, Randomness([7], 3) if training else None)
    logits, alpha, beta = step_by_step(decoder, regions, ids, Randomness([7], 3) if training else None)
    assert whole.logits.shape == (3, 2, 5, V)
    assert whole.alpha.shape == (3, 2, 5, L)
    torch.testing.assert_close(whole.logits, logits)
    torch.testing.assert_close(whole.alpha, alpha)
    torch.testing.assert_close(whole.beta, beta)
    assert (whole.chosen is not None) == (training and kind in SAMPLING)
    assert (whole.fixations is not None) == (kind in GLIMPSING)


@pytest.mark.parametrize("inference", ["expectation", "argmax"])
@every_kind
def test_teacher_forcing_sampling_and_beams_share_one_step(kind: str, inference: str) -> None:
    """For the same words, logits and alpha are the same however the step is reached."""
    if inference == "argmax" and kind not in SAMPLING:
        pytest.skip("looks at all regions")
    decoder = make_kind(kind, attention={"inference": inference})
    regions, ids = make_inputs(captions=3)
    expected = decoder(regions, ids)
    with torch.no_grad():
        prepared, sampled = decoder.start(regions)  # as sampling and beams start: the captions are one at first
        shuffled, parents = sampled, torch.zeros_like(ids[:, :, 0])  # (B, N)
        for place in range(ids.shape[2] - 1):
            words = decoder.embed(ids[:, :, place], prepared)
            by_row = decoder.step(prepared, sampled.expand(3) if place == 0 else sampled, words.projected)
            # A beam keeps its states in another order than its words, and more of them than are used.
            by_parent = decoder.step(prepared, shuffled, words.projected, parents=parents)
            for step in (by_row, by_parent):
                logits = decoder.logits(words, step)
                torch.testing.assert_close(logits, expected.logits[:, :, place])
                torch.testing.assert_close(step.alpha, expected.alpha[:, :, place])
                torch.testing.assert_close(step.beta, expected.beta[:, :, place])
                if step.fixations is not None:
                    torch.testing.assert_close(step.fixations.points, expected.fixations.points[:, :, place])
            sampled = by_row.state
            order, parents = torch.tensor([2, 0, 1, 1]), torch.tensor([1, 3, 0]).expand(len(regions), -1)
            shuffled = State(tuple(each[:, order] for each in by_parent.state.tensors), place + 1)


@every_kind
def test_every_way_to_captions_calls_the_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, (regions, ids) = make_kind(kind), make_inputs()
    calls: list[int] = []
    name = "_read" if kind.startswith("transformer") else "step"  # a transformer's teacher forcing is one long step
    step = getattr(decoder, name)
    monkeypatch.setattr(decoder, name, lambda *given, **options: (calls.append(1), step(*given, **options))[1])
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


@every_kind
def test_a_beam_of_one_is_greedy(kind: str) -> None:
    regions, _ = make_inputs(batch=6)
    lengths = set()
    for seed in range(4):
        decoder = make_lively(kind, seed)
        greedy, mask = roll_out(decoder, regions, 1, 7)
        found = search(decoder, regions, SearchConfig(beam=1, maximum_length=7, minimum_length=0, no_repeat=0))
        for ids, words, (best,) in zip(greedy[:, 0].tolist(), mask[:, 0].sum(-1).tolist(), found, strict=True):
            assert [word for word in ids[1 : words + 1] if word != END] == list(best.ids)
            lengths.add(len(best.ids))
    assert len(lengths) > 1, "all captions are of one length"


@every_kind
def test_what_a_beam_says_is_as_probable_as_teacher_forcing_says(kind: str) -> None:
    decoder, (regions, _) = make_lively(kind, seed=1), make_inputs(batch=5)
    config = SearchConfig(beam=4, maximum_length=6, minimum_length=2)
    for image, found in enumerate(search(decoder, regions, config, best=3)):
        for caption in found:
            ids = torch.tensor([[[START, *caption.ids, END]]])
            outputs = decoder(regions[image : image + 1], ids)
            taken = outputs.logits[0, 0].log_softmax(dim=-1).gather(1, ids[0, 0, 1:, None]).squeeze(1)  # (T + 1,)
            torch.testing.assert_close(taken[:-1].exp(), caption.probabilities)
            torch.testing.assert_close(outputs.alpha[0, 0, :-1], caption.alpha)
            if outputs.fixations is not None:
                torch.testing.assert_close(outputs.fixations.points[0, 0, :-1], caption.points)
            else:
                assert caption.points is None


@every_kind
def test_image_major_equals_caption_by_caption(kind: str) -> None:
    decoder = make_kind(kind)
    regions, ids = make_inputs()
    together = decoder(regions, ids)
    for image in range(3):
        for caption in range(2):
            alone = decoder(regions[image : image + 1], ids[image : image + 1, caption : caption + 1])
            torch.testing.assert_close(alone.logits[0, 0], together.logits[image, caption])
            torch.testing.assert_close(alone.alpha[0, 0], together.alpha[image, caption])


@every_kind
def test_padding_and_order_change_nothing(kind: str) -> None:
    decoder = make_kind(kind)
    regions, ids = make_inputs()
    logits = decoder(regions, ids).logits
    padded = torch.cat([ids, torch.zeros(3, 2, 4, dtype=torch.long)], dim=2)
    torch.testing.assert_close(decoder(regions, padded).logits[:, :, :5], logits)
    torch.testing.assert_close(decoder(regions.flip(0), ids.flip(0)).logits.flip(0), logits)


@every_kind
def test_words_to_come_change_nothing(kind: str) -> None:
    decoder = make_kind(kind)
    regions, ids = make_inputs()
    whole = decoder(regions, ids)
    for place in range(1, 5):
        others = ids.clone()
        others[:, :, place:] = (ids[:, :, place:] + 1) % V
        changed = decoder(regions, others)
        assert torch.equal(changed.logits[:, :, :place], whole.logits[:, :, :place])
        assert torch.equal(changed.alpha[:, :, :place], whole.alpha[:, :, :place])
        assert (changed.logits[:, :, place] != whole.logits[:, :, place]).any()


@every_kind
def test_tied_embeddings_are_one_matrix(kind: str) -> None:
    tied, apart = make_kind(kind, tied=True), make_kind(kind, tied=False)
    assert tied.output.weight is tied.embedding.weight
    assert apart.output.weight is not apart.embedding.weight
    saved = sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in tied.parameters())
    assert saved == tied.embedding.weight.numel()


@every_kind
def test_every_parameter_learns(kind: str) -> None:
    decoder = make_kind(kind, attention={"expected": 0.5})
    regions, ids = make_inputs(batch=8)
    outputs = decoder(regions, ids, Randomness([0], 8))
    (outputs.logits.square().sum() + looked(outputs)).backward()
    gradients = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


@every_kind
@pytest.mark.parametrize("rate", ["dropout", "region_dropout"])
def test_dropout_is_off_at_inference(kind: str, rate: str) -> None:
    decoder = make_kind(kind, **{rate: 0.5})
    regions, ids = make_inputs()
    torch.testing.assert_close(decoder(regions, ids).logits, decoder(regions, ids).logits)
    first, again, other = (decoder(regions, ids, Randomness([seed], 3)).logits for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first != other).any()


@every_kind
def test_a_mask_saves_work_and_changes_nothing(kind: str) -> None:
    """Losses of a batch with captions of all lengths, and gradients, are those of reading everything to its end."""
    regions, ids = make_inputs(batch=3, captions=3, length=6)
    lengths = torch.tensor([[5, 3, 1], [4, 4, 2], [3, 1, 0]])  # an image may have fewer captions
    mask = torch.arange(6) < lengths.unsqueeze(-1)  # (B, N, T)
    found = []
    for told in (mask, None):
        decoder = make_kind(kind, dropout=0.3)
        outputs = decoder(regions, ids, Randomness([7], 3), told)
        logits = outputs.logits if told is not None else outputs.logits[mask]
        loss = logits.square().sum() + (outputs.alpha[mask] ** 3).sum() + (outputs.beta[mask] ** 3).sum()
        if outputs.fixations is not None:
            loss = loss + outputs.fixations.log_density[mask].sum() + outputs.fixations.value[mask].square().sum()
        loss.backward()
        assert outputs.alpha.shape == (3, 3, 6, L)
        found.append((logits, outputs.alpha[mask], [parameter.grad for parameter in decoder.parameters()]))
    torch.testing.assert_close(*found)


@every_kind
def test_images_shared_among_processes_see_the_same_numbers(kind: str) -> None:
    decoder = make_kind(kind, dropout=0.5, region_dropout=0.3)
    regions, ids = make_inputs(batch=5)
    whole = decoder(regions, ids, Randomness([3, 4], 5))
    for rows in (slice(0, 2), slice(2, 5)):
        part = decoder(regions[rows], ids[rows], Randomness([3, 4], 5, rows))
        torch.testing.assert_close(part.logits, whole.logits[rows])


@every_kind
def test_what_is_missing_has_no_weight_and_no_gradient(kind: str) -> None:
    decoder = make_kind(kind, regions=0)
    regions, ids = make_inputs()
    regions.requires_grad_()
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)  # (B, L)
    outputs = decoder(Regions(regions, mask), ids)
    assert (outputs.alpha[~mask[:, None, None].expand_as(outputs.alpha)] == 0).all()
    outputs.logits.square().sum().backward()
    assert (regions.grad[~mask] == 0).all()
    assert (regions.grad[mask] != 0).any(dim=-1).all()
    with torch.no_grad():
        whole = decoder(Regions(regions, torch.ones_like(mask)), ids)
        torch.testing.assert_close(whole.logits, decoder(regions, ids).logits)
        wild = regions.masked_fill(~mask.unsqueeze(-1), torch.nan)
        assert torch.equal(decoder(Regions(wild, mask), ids).logits, outputs.logits)
        if kind.endswith("local") or kind in GLIMPSING:
            return  # a window or a patch needs the whole grid
        for image in range(3):
            alone = decoder(regions[image : image + 1, mask[image]], ids[image : image + 1])
            torch.testing.assert_close(alone.logits[0], outputs.logits[image])


@every_kind
def test_searches_see_what_is_there_alone(kind: str) -> None:
    decoder, (regions, _) = make_lively(kind, seed=3), make_inputs(batch=5)
    mask = torch.ones(5, L, dtype=torch.bool)
    mask[1:3, 2:] = False
    config = SearchConfig(beam=3, maximum_length=6)
    found = search(decoder, Regions(regions, mask), config)
    again = search(decoder, Regions(regions.masked_fill(~mask.unsqueeze(-1), torch.nan), mask), config)
    assert [best.ids for (best,) in found] == [best.ids for (best,) in again]
    for (best,), there in zip(found, mask, strict=True):
        assert (best.alpha[:, ~there] == 0).all()


@every_kind
def test_half_precision_is_near_single(kind: str) -> None:
    regions, ids = make_inputs(batch=4, captions=3)
    losses, gradients = [], []
    for dtype in (None, torch.bfloat16):
        decoder = make_kind(kind).float()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            outputs = decoder(regions.float(), ids, Randomness([7], 4))
        assert outputs.alpha.dtype == torch.float32
        loss = outputs.logits.float().square().mean() + outputs.alpha.square().mean() + looked(outputs)
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in decoder.parameters()]))
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.98


@every_kind
def test_says_the_same_after_saving_and_loading(kind: str, tmp_path: Path) -> None:
    parts, attending = KINDS[kind]
    config = DecoderConfig(**{"embedding": 4, "hidden": 5, "regions": 3, **parts})
    attention = AttentionConfig(**{"width": 5, **attending})
    torch.manual_seed(0)
    decoder = make_decoder(config, attention, len(VOCABULARY), 6, (2, 2))
    checkpoint = make_checkpoint(decoder=config, attention=attention, weights=decoder.state_dict())
    save_checkpoint(tmp_path, checkpoint)
    loaded = load_checkpoint(tmp_path)
    assert loaded.digest == checkpoint.digest
    regions, captions = torch.randn(2, 4, 6), torch.randint(len(VOCABULARY), (2, 3, 5))  # (B, L, D), (B, N, T + 1)
    assert torch.equal(loaded.build_decoder()(regions, captions).logits, decoder.eval()(regions, captions).logits)
