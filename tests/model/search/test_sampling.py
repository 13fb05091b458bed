from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers.toy_decoder import make_decoder, some_regions
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.model.decoder import Decoder
from captioner.model.kernels import word_losses
from captioner.model.kernels.word_losses import Drawing
from captioner.model.randomness import Randomness
from captioner.model.search.beam import search
from captioner.model.search.next_words import ContentWords
from captioner.model.search.sampling import NEVER_DRAWN, draw, draw_words, pick, roll_out, sample
from captioner.model.search_settings import SearchConfig


def allowed(logits: Tensor) -> Tensor:
    """Return probabilities (..., V) among the words that may be said."""
    logits = logits.clone()
    logits[..., [PAD, START, UNKNOWN]] = -torch.inf
    return logits.softmax(dim=-1)


def test_numbers_pick_words_by_their_share() -> None:
    row = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    expected = [1, 1, 3, 3, 4, 4]
    for scale in (1.0, 3.0, 0.1):
        assert pick((scale * row).expand(6, 6), numbers[:, None]).tolist() == expected


@pytest.mark.parametrize("captions", [1, 3])  # of which there are logits; one for all three, or each its own
def test_words_are_drawn_in_blocks_as_by_the_plain_line(captions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_losses, "BLOCK", 4 * 11)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, captions, 11, generator=generator, dtype=torch.float64)  # (B, N, V)
    uniform = torch.rand(5, 3, generator=generator)  # (B, N)
    drawing = Drawing(0.5, NEVER_DRAWN)
    expected = pick(drawing.scores(logits).softmax(dim=-1), uniform.unsqueeze(-1))  # (B, N)
    assert draw(logits, uniform, drawing).equal(expected)
    assert len(expected.unique()) > 2


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("maximum", [1, 3, 20])
def test_captions_are_laid_out_for_the_decoder(drawn: bool, maximum: int) -> None:
    decoder, regions = make_decoder(), some_regions(6)
    ids, mask = roll_out(decoder, regions, 4, maximum, Randomness([3], 6) if drawn else None)
    assert ids.dtype == torch.int64
    assert ids.shape[:2] == (6, 4)
    assert mask.shape == (6, 4, ids.shape[2] - 1)
    assert ids.shape[2] - 1 == mask.sum(dim=2).max() <= maximum
    assert (ids[:, :, 0] == START).all()
    for caption, told in zip(ids.flatten(0, 1).tolist(), mask.flatten(0, 1).tolist(), strict=True):
        words = caption[1:]
        length = words.index(END) + 1 if END in words else maximum
        assert told == [place < length for place in range(len(words))]
        assert set(words[length:]) <= {PAD}
        assert not {PAD, START, UNKNOWN} & set(words[:length])
    lengths = mask.sum(dim=2)
    assert (lengths[:, 1:] <= lengths[:, :-1]).all()
    if maximum == 20 and drawn:
        assert len(set(lengths.flatten().tolist())) > 2, "too alike to show anything"
    assert len(decoder(regions, ids, mask=mask).logits) == mask.sum()


def test_without_draws_each_word_is_the_most_probable() -> None:
    decoder, regions = make_decoder(2), some_regions(5)
    ids, mask = roll_out(decoder, regions, 2, 12)
    best = allowed(decoder(regions, ids, mask=mask).logits).argmax(dim=-1)
    assert torch.equal(best, ids[:, :, 1:][mask])


def every_caption(decoder: Decoder, regions: Tensor, maximum: int) -> tuple[Tensor, Tensor]:
    """Return all captions (C, T + 1) of at most so many words and markers, and their probabilities (B, C)."""
    words = (END, *range(UNKNOWN + 1, decoder.output.out_features))
    every = [
        ids
        for length in range(1, maximum + 1)
        for ids in itertools.product(words, repeat=length)
        if END not in ids[:-1] and (length == maximum or ids[-1] == END)
    ]
    table = torch.tensor([[START, *ids, *[PAD] * (maximum - len(ids))] for ids in every])  # (C, T + 1)
    tables = table.expand(len(regions), -1, -1)
    with torch.no_grad():
        probabilities = (
            allowed(decoder(regions, tables).logits).gather(3, tables[..., 1:, None]).squeeze(3)
        )  # (B, C, T)
    expected = probabilities.masked_fill(table[:, 1:] == PAD, 1.0).prod(dim=2)  # (B, C)
    torch.testing.assert_close(expected.sum(dim=1), torch.ones(len(regions), dtype=torch.float64))
    return table, expected


def check_frequencies(counts: Tensor, probabilities: Tensor) -> None:
    """Pearson's statistic, over the captions (C,) that are expected more than five times."""
    means = counts.sum() * probabilities
    kept = means > 5
    statistic = ((counts - means)[kept] ** 2 / means[kept]).sum().item()
    freedom = int(kept.sum()) - 1
    assert freedom >= 4, "too few captions to tell anything"
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_captions_are_as_frequent_as_they_are_probable() -> None:
    decoder, regions = make_decoder(1, words=6), some_regions(2)
    table, expected = every_caption(decoder, regions, 3)
    ids, _ = roll_out(decoder, regions, 4000, 3, Randomness([5], 2))
    found = (ids[:, :, None] == table).all(dim=-1).sum(dim=1)  # (B, C)
    for counts, probabilities in zip(found, expected, strict=True):
        assert counts.sum() == 4000
        check_frequencies(counts, probabilities)


def test_a_low_temperature_draws_what_is_most_probable() -> None:
    decoder, regions = make_decoder(1, words=6), some_regions(2)
    drawn, _ = roll_out(decoder, regions, 3, 6, Randomness([5], 2), temperature=1e-4)
    greedy, _ = roll_out(decoder, regions, 3, 6)
    assert torch.equal(drawn, greedy)


def test_images_shared_among_processes_get_the_same_captions() -> None:
    decoder, regions = make_decoder(), some_regions(5)
    whole, _ = roll_out(decoder, regions, 3, 10, Randomness([3, 4], 5))
    again, _ = roll_out(decoder, regions, 3, 10, Randomness([3, 4], 5))
    other, _ = roll_out(decoder, regions, 3, 10, Randomness([3, 5], 5))
    assert torch.equal(whole, again)
    assert whole.shape != other.shape or not torch.equal(whole, other)
    for rows in (slice(0, 2), slice(2, 5)):
        part, _ = roll_out(decoder, regions[rows], 3, 10, Randomness([3, 4], 5, rows))
        width = max(part.shape[2], whole.shape[2])
        padded = [torch.nn.functional.pad(ids, (0, width - ids.shape[2]), value=PAD) for ids in (part, whole[rows])]
        assert torch.equal(*padded)


SAMPLE = SearchConfig("sample", minimum_length=0, maximum_length=8, no_repeat=0)


def test_samples_are_as_frequent_as_they_are_probable() -> None:
    decoder, regions = make_decoder(1, words=6), some_regions(2)
    # After two words only the end may follow: what is left of a roll-out of three without its third word.
    table, expected = every_caption(decoder, regions, 3)
    stems = [tuple(word for word in ids[:2] if word not in (END, PAD)) for ids in table[:, 1:].tolist()]
    different = sorted(set(stems))
    config = replace(SAMPLE, maximum_length=2)
    for drawn, probabilities in zip(sample(decoder, regions, config, [3, 4], 4000), expected, strict=True):
        counts = Counter(hypothesis.ids for hypothesis in drawn)
        sums = [
            sum(p for stem, p in zip(stems, probabilities.tolist(), strict=True) if stem == ids) for ids in different
        ]
        check_frequencies(torch.tensor([counts[ids] for ids in different]), torch.tensor(sums))


@pytest.mark.parametrize("seed", range(3))
def test_the_one_best_word_is_greedy(seed: int) -> None:
    decoder, regions = make_decoder(seed), some_regions(5)
    greedy = [best for (best,) in search(decoder, regions, replace(SAMPLE, method="beam", beam=1))]
    for values in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        drawn = sample(decoder, regions, replace(SAMPLE, **values), [1, 2, 3, 4, 5], 2)  # type: ignore[arg-type]
        for best, (one, other) in zip(greedy, drawn, strict=True):
            assert one.ids == other.ids == best.ids
            assert one.log_prob == pytest.approx(best.log_prob)
            torch.testing.assert_close(one.alpha, best.alpha)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [0.1, 0.2, 0.4, 0.3]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.04 / 0.3, 0.16 / 0.3, 0.09 / 0.3]),
        ({"temperature": 2.0}, [0.1**0.5, 0.2**0.5, 0.4**0.5, 0.3**0.5]),
        ({"top_k": 2}, [0, 0, 4 / 7, 3 / 7]),
        ({"top_k": 9}, [0.1, 0.2, 0.4, 0.3]),
        ({"top_p": 0.39}, [0, 0, 1, 0]),
        ({"top_p": 0.41}, [0, 0, 4 / 7, 3 / 7]),
        ({"top_p": 0.71}, [0, 2 / 9, 4 / 9, 3 / 9]),
        ({"top_p": 0.56, "top_k": 2}, [0, 0, 1, 0]),  # four sevenths of what top_k leaves
        ({"top_p": 0.58, "top_k": 2}, [0, 0, 4 / 7, 3 / 7]),
    ],
)
def test_words_are_drawn_as_the_settings_say(values: dict[str, float], expected: list[float]) -> None:
    """Numbers evenly spaced from 0 to 1 fall to each word as often as it is probable."""
    count = 7919
    numbers = ((torch.arange(count) + 0.5) / count).expand(1, -1)  # (1, N)
    scores = torch.tensor([0.1, 0.2, 0.4, 0.3, 0.0]).log().expand(1, count, -1)  # (1, N, V)
    drawn = draw_words(scores, numbers, replace(SAMPLE, **values))  # type: ignore[arg-type]
    found = torch.bincount(drawn.flatten(), minlength=5) / count
    shares = torch.tensor([*expected, 0.0]) / sum(expected)
    torch.testing.assert_close(found, shares, atol=1.5 / count, rtol=0)


def test_samples_follow_their_seed_alone() -> None:
    decoder, regions = make_decoder(), some_regions(6)
    seeds = [11, 12, 13, 14, 11, 11]
    regions[4] = regions[0]
    together = search(decoder, regions, SAMPLE, 4, seeds)
    words = [[hypothesis.ids for hypothesis in drawn] for drawn in together]
    assert words == [[hypothesis.ids for hypothesis in drawn] for drawn in search(decoder, regions, SAMPLE, 4, seeds)]
    assert words[0] == words[4]
    assert any(len(set(ids)) > 1 for ids in words), "all captions of an image are alike"
    for image, seed in enumerate(seeds):
        (alone,) = sample(decoder, regions[image : image + 1], SAMPLE, [seed], 4)
        assert [hypothesis.ids for hypothesis in alone] == words[image]
        (fewer,) = sample(decoder, regions[image : image + 1], SAMPLE, [seed], 2)
        assert not Counter(hypothesis.ids for hypothesis in fewer) - Counter(words[image])
    (other,) = sample(decoder, regions[:1], SAMPLE, [99], 4)
    assert [hypothesis.ids for hypothesis in other] != words[0]


def test_samples_under_a_limit_are_as_frequent_as_what_is_left_is_probable() -> None:
    decoder, regions = make_decoder(1, words=7), some_regions(1)
    # Words 4 and 5 are one content word; 6 is none.
    content = ContentWords(torch.tensor([0, 0, 0, 0, 1, 1, 0]), torch.tensor([[PAD, PAD], [4, 5]]))
    config = replace(SAMPLE, maximum_length=3, content_limit=1)
    expected: dict[tuple[int, ...], float] = {}

    def follow(said: tuple[int, ...], probability: float) -> None:
        if len(said) == 3:
            expected[said] = probability
            return
        with torch.no_grad():
            logits = decoder(regions, torch.tensor([[[START, *said, PAD]]])).logits[0, 0, -1]
        once = 4 in said or 5 in said
        shares = logits[[END, 6] if once else [END, 4, 5, 6]].softmax(dim=0).tolist()
        expected[said] = probability * shares.pop(0)
        for word, share in zip((6,) if once else (4, 5, 6), shares, strict=True):
            follow((*said, word), probability * share)

    follow((), 1.0)
    (drawn,) = sample(decoder, regions, config, [3], 4000, content)
    counts = Counter(hypothesis.ids for hypothesis in drawn)
    assert counts.keys() <= expected.keys()
    for ids, probability in expected.items():
        assert counts[ids] / 4000 == pytest.approx(probability, abs=0.03)
    assert sum(expected.values()) == pytest.approx(1)
    assert max(expected.values()) < 0.9, "too sure to tell anything"


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_samples_carry_what_reading_them_out_gives(mode: str) -> None:
    decoder, regions = make_decoder(2, mode), some_regions(4)
    config = replace(SAMPLE, minimum_length=2, maximum_length=6, no_repeat=2, temperature=3.0, top_k=3)
    for image, drawn in enumerate(sample(decoder, regions, config, range(4), 5)):
        assert [hypothesis.score for hypothesis in drawn] == sorted((h.score for h in drawn), reverse=True)
        for hypothesis in drawn:
            ids, length = hypothesis.ids, len(hypothesis.ids)
            assert 2 <= length <= 6
            assert hypothesis.ended
            assert len(set(itertools.pairwise(ids))) == length - 1
            caption = torch.tensor([[[START, *ids, END]]])
            with torch.no_grad():
                outputs = decoder(regions[image : image + 1], caption)
            forced = outputs.logits[0, 0].log_softmax(dim=-1).gather(1, caption[0, 0, 1:, None]).squeeze(1)
            assert hypothesis.log_prob == pytest.approx(forced.sum().item())
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / (length + 1) ** config.length_power)
            torch.testing.assert_close(hypothesis.probabilities, forced[:length].exp())
            torch.testing.assert_close(hypothesis.alpha, outputs.alpha[0, 0, :length])
            torch.testing.assert_close(hypothesis.beta, outputs.beta[0, 0, :length].mean(dim=-1))


def test_a_sample_that_nothing_may_follow_is_cut_off() -> None:
    decoder, regions = make_decoder(), some_regions(2)
    with torch.no_grad():
        decoder.output.bias[END] = -torch.inf
    for drawn in sample(decoder, regions, replace(SAMPLE, maximum_length=3), [1, 2], 3):
        for hypothesis in drawn:
            assert not hypothesis.ended
            assert len(hypothesis.ids) == len(hypothesis.probabilities) == 3
            assert hypothesis.log_prob == pytest.approx(hypothesis.probabilities.log().sum().item())


def test_seeds_are_asked_for() -> None:
    decoder, regions = make_decoder(), some_regions(3)
    with pytest.raises(ValueError, match="seeds is None; sampling needs one number for each image"):
        search(decoder, regions, SAMPLE)
    with pytest.raises(ValueError, match="there are 2 seeds for 3 images; sampling needs one for each"):
        search(decoder, regions, SAMPLE, seeds=[1, 2])
    with pytest.raises(ValueError, match="best is 0; it must be at least 1"):
        search(decoder, regions, SAMPLE, best=0, seeds=[1, 2, 3])
    assert sample(decoder, some_regions(0), SAMPLE, []) == []
