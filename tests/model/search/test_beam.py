from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from helpers.toy_decoder import V, make_decoder, some_regions
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.model.config import MODES
from captioner.model.decoder import Decoder
from captioner.model.search.beam import beam_search, search
from captioner.model.search.hypotheses import Hypothesis
from captioner.model.search.next_words import ContentWords, NotFinite, top_totals
from captioner.model.search_settings import SearchConfig

WORDS = [word for word in range(V) if word > UNKNOWN]
PLAIN = SearchConfig(beam=3, minimum_length=0, maximum_length=4, no_repeat=0)


# Words 4 and 5 are one content word, 6 is another, 7 may be said at will.
CONTENT = ContentWords(torch.tensor([0, 0, 0, 0, 1, 1, 2, 0]), torch.tensor([[PAD, PAD], [4, 5], [6, PAD]]))


def content_counts(words: tuple[int, ...]) -> list[int]:
    return [sum(word in (4, 5) for word in words), words.count(6)]


def forced_log_probs(decoder: Decoder, regions: Tensor, captions: list[tuple[int, ...]], ended: bool) -> Tensor:
    """Return the log probability (C, T) of each word, and of the end, when captions of one length are read out."""
    ids = torch.tensor([[[START, *words, *([END] if ended else [])] for words in captions]])  # (1, C, T + 1)
    with torch.no_grad():
        logits = decoder(regions[None], ids).logits[0]  # (C, T, V)
    return logits.log_softmax(dim=-1).gather(2, ids[0, :, 1:, None]).squeeze(2)


def exhaustive(decoder: Decoder, regions: Tensor, config: SearchConfig) -> list[tuple[float, tuple[int, ...]]]:
    scored = []
    for length in range(config.minimum_length, config.maximum_length + 1):
        captions = list(itertools.product(WORDS, repeat=length))
        log_probs = forced_log_probs(decoder, regions, captions, ended=True).sum(dim=1)
        scores = log_probs / (length + 1) ** config.length_power
        scored += list(zip(scores.tolist(), captions, strict=True))
    return sorted(scored, reverse=True)


Beam = tuple[float, tuple[int, ...]]  # log probability or score, and words


class Textbook:
    """Diverse beam search as it is written down: one image, one beam after the other, captions as lists of words."""

    def __init__(self, decoder: Decoder, regions: Tensor, config: SearchConfig) -> None:
        self.decoder, self.regions, self.config = decoder, regions, config
        self.width = config.beam // config.groups

    def search(self, best: int) -> list[list[Beam]]:
        """Return scores and words of the captions that ended, the best first, group by group."""
        live: list[list[Beam]] = [[(0.0, ())] for _ in range(self.config.groups)]
        ended: list[list[Beam]] = [[] for _ in live]
        for length in range(self.config.maximum_length + 1):
            said: list[int] = []
            for group, beams in enumerate(live):
                ways = sorted(self.ways(beams), key=lambda way: way[0] - self.config.diversity * said.count(way[2]))
                ways = ways[::-1]
                scale = (length + 1) ** self.config.length_power
                ended[group] += [(total / scale, words) for total, words, word in ways[: self.width] if word == END]
                going = [(total, (*words, word)) for total, words, word in ways if word != END][: self.width]
                live[group] = [] if self.over(going, ended[group], min(best, self.width)) else going
                said += [words[-1] for _, words in live[group]]
        return [sorted(group, reverse=True) for group in ended]

    def ways(self, beams: list[Beam]) -> Iterator[tuple[float, tuple[int, ...], int]]:
        """Yield every caption that is one word, or the end, longer: its log probability, the words before, the word."""
        if not beams:
            return
        with torch.no_grad():
            ids = torch.tensor([[[START, *words, PAD] for _, words in beams]])
            log_probs = self.decoder(self.regions[None], ids).logits[0, :, -1].log_softmax(dim=-1).tolist()
        for (total, words), row in zip(beams, log_probs, strict=True):
            yield from ((total + row[word], words, word) for word in (END, *WORDS) if self.allowed(words, word))

    def allowed(self, words: tuple[int, ...], word: int) -> bool:
        if word == END:
            return len(words) >= self.config.minimum_length
        longer, span = (*words, word), self.config.no_repeat
        limit = self.config.content_limit
        if limit and max(content_counts(longer)) > limit:
            return False
        runs = [longer[start : start + span] for start in range(len(longer) - span + 1)]
        return len(longer) <= self.config.maximum_length and (not span or len(runs) == len(set(runs)))

    def over(self, going: list[Beam], ended: list[Beam], need: int) -> bool:
        if len(ended) < need or not going:
            return False
        bound = max(total for total, _ in going) / (self.config.maximum_length + 1) ** self.config.length_power
        return len(ended) >= self.width or bound <= sorted(ended, reverse=True)[need - 1][0]


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_is_exhaustive(power: float, seed: int) -> None:
    decoder, regions = make_decoder(seed), some_regions(2)
    # At most 4 ** 3 beams with five ways to go on each: nothing is ever left out.
    config = replace(PLAIN, beam=5 * 4**3, maximum_length=4, length_power=power)
    found = beam_search(decoder, regions, config, best=5)
    for image in range(2):
        expected = exhaustive(decoder, regions[image], config)[:5]
        assert [hypothesis.ids for hypothesis in found[image]] == [ids for _, ids in expected]
        for hypothesis, (score, _) in zip(found[image], expected, strict=True):
            assert hypothesis.score == pytest.approx(score)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_content_words_are_said_so_often_and_no_caption_else_is_lost(limit: int, seed: int) -> None:
    decoder, regions = make_decoder(seed), some_regions(2)
    config = replace(PLAIN, beam=5 * 4**3, maximum_length=4, content_limit=limit)
    found = beam_search(decoder, regions, config, best=5, content=CONTENT)
    for image in range(2):
        everything = exhaustive(decoder, regions[image], config)
        expected = [pair for pair in everything if max(content_counts(pair[1])) <= limit][:5]
        assert [hypothesis.ids for hypothesis in found[image]] == [ids for _, ids in expected]
        for hypothesis, (score, _) in zip(found[image], expected, strict=True):
            assert hypothesis.score == pytest.approx(score)


def test_a_limit_needs_the_words() -> None:
    with pytest.raises(ValueError, match="content_limit is 1; it needs the words of the vocabulary"):
        beam_search(make_decoder(), some_regions(1), replace(PLAIN, content_limit=1))


def test_content_words_are_found_in_a_vocabulary() -> None:
    found = ContentWords.find(["<pad>", "<start>", "<end>", "<unk>", "a", "dogs", "dog", "of", "red"])
    assert found.groups.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 2]
    assert found.members.tolist() == [[PAD, PAD], [5, 6], [8, PAD]]
    nothing = ContentWords.find(["<pad>", "<start>", "<end>", "<unk>", "a"])
    assert nothing.members.tolist() == [[PAD]]


@pytest.mark.parametrize(
    "values",
    [
        {"beam": 1},
        {"beam": 2, "no_repeat": 1},
        {"beam": 5, "length_power": 0.0},
        {"beam": 3, "minimum_length": 3},
        {"beam": 4, "groups": 2},
        {"beam": 4, "groups": 2, "diversity": 0.0},
        {"beam": 3, "groups": 3, "diversity": 2.0},
        {"beam": 6, "groups": 2, "diversity": 5.0, "no_repeat": 2},
        {"beam": 3, "content_limit": 1},
        {"beam": 4, "groups": 2, "content_limit": 1, "minimum_length": 2},
        {"beam": 5, "content_limit": 2},
    ],
)
@pytest.mark.parametrize("best", [1, 2])
def test_beams_are_those_of_the_textbook(values: dict[str, float], best: int) -> None:
    config = SearchConfig(**{"maximum_length": 6, **values})  # type: ignore[arg-type]
    best, count = min(best, config.beam), 0
    for seed in range(3):
        decoder, regions = make_decoder(seed), some_regions(3, seed)
        for image, found in enumerate(beam_search(decoder, regions, config, best, CONTENT)):
            groups = Textbook(decoder, regions[image], config).search(best)
            places = itertools.zip_longest(*(group[: config.beam // config.groups] for group in groups))
            mixed = [each for place in places for each in sorted(filter(None, place), reverse=True)]
            expected = list(dict.fromkeys(ids for _, ids in mixed))[:best]
            assert [hypothesis.ids for hypothesis in found] == expected
            count += len(expected)
    assert count >= 9 * best - 2, "too few captions to tell anything"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", [{}, {"maximum_length": 12}, {"maximum_length": 9, "no_repeat": 1}])
def test_beam_one_is_greedy(seed: int, values: dict[str, int]) -> None:
    decoder, regions = make_decoder(seed), some_regions(6, seed)
    config = replace(SearchConfig(), **values)
    for image, (ours,) in enumerate(search(decoder, regions, replace(config, beam=1))):
        words: tuple[int, ...] = ()
        textbook = Textbook(decoder, regions[image], config)
        while not words or words[-1] != END:
            words = (*words, max(textbook.ways([(0.0, words)]))[2])
        assert (*ours.ids, END) == words
        assert ours.ended
        check_hypothesis(decoder, regions[image], ours, config)


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_differ_and_each_gives_its_best_first(groups: int) -> None:
    decoder, regions = make_decoder(1), some_regions(6)
    config = SearchConfig(beam=4, groups=groups, diversity=50.0, maximum_length=8)
    for image, found in enumerate(search(decoder, regions, config, best=4)):
        assert len({hypothesis.ids for hypothesis in found}) == 4
        # Four beams and four words: no two groups begin alike, and each is heard before any is heard again.
        first = found[:groups]
        assert len({hypothesis.ids[0] for hypothesis in first}) == groups
        assert first == sorted(first, key=lambda hypothesis: -hypothesis.score)
        for hypothesis in found:
            check_hypothesis(decoder, regions[image], hypothesis, config)


def test_groups_without_diversity_are_all_one_smaller_beam() -> None:
    decoder, regions = make_decoder(2), some_regions(6)
    config = SearchConfig(beam=6, groups=3, diversity=0.0, maximum_length=8)
    grouped = beam_search(decoder, regions, config, best=6)
    plain = beam_search(decoder, regions, replace(config, beam=2, groups=1), best=2)
    assert [[hypothesis.ids for hypothesis in found] for found in grouped] == [
        [hypothesis.ids for hypothesis in found] for found in plain
    ]


def check_hypothesis(decoder: Decoder, regions: Tensor, hypothesis: Hypothesis, config: SearchConfig) -> None:
    """The scores, attention and gates of a hypothesis are those of reading it out."""
    (forced,) = forced_log_probs(decoder, regions, [hypothesis.ids], hypothesis.ended)
    assert hypothesis.log_prob == pytest.approx(forced.sum().item())
    length = len(hypothesis.ids)
    assert hypothesis.score == pytest.approx(hypothesis.log_prob / (length + 1) ** config.length_power)
    torch.testing.assert_close(hypothesis.probabilities, forced[:length].exp())
    with torch.no_grad():
        outputs = decoder(regions[None], torch.tensor([[[START, *hypothesis.ids, END]]]))
    torch.testing.assert_close(hypothesis.alpha, outputs.alpha[0, 0, :length])
    torch.testing.assert_close(hypothesis.beta, outputs.beta[0, 0, :length].mean(dim=-1))


@pytest.mark.parametrize("inference", ["expectation", "argmax"])
@pytest.mark.parametrize("mode", MODES)
def test_scores_and_attention_are_the_teacher_forced_ones(mode: str, inference: str) -> None:
    decoder, regions = make_decoder(3, mode, inference), some_regions(5)
    config = SearchConfig(beam=3, maximum_length=8)
    for image, hypotheses in enumerate(beam_search(decoder, regions, config, best=3)):
        assert len(hypotheses) == 3
        assert len({hypothesis.ids for hypothesis in hypotheses}) == 3
        assert sorted((h.score for h in hypotheses), reverse=True) == [h.score for h in hypotheses]
        for hypothesis in hypotheses:
            check_hypothesis(decoder, regions[image], hypothesis, config)


@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_the_batch(seed: int) -> None:
    decoder, regions = make_decoder(seed), some_regions(9, seed)
    config = SearchConfig(beam=4, maximum_length=10)
    together = beam_search(decoder, regions, config, best=2)
    lengths = {len(hypotheses[0].ids) for hypotheses in together}
    assert len(lengths) > 1, "all images end together: nothing leaves the batch early"
    for image in range(9):
        (alone,) = beam_search(decoder, regions[image : image + 1], config, best=2)
        assert [h.ids for h in alone] == [h.ids for h in together[image]]
        assert [h.log_prob for h in alone] == pytest.approx([h.log_prob for h in together[image]])


@pytest.mark.parametrize(("config", "best"), [(SearchConfig(beam=3, maximum_length=5), 3), (PLAIN, 1)])
def test_a_caption_that_nothing_may_follow_is_cut_off(config: SearchConfig, best: int) -> None:
    """No word may come twice, there are four, and a caption of five was asked for."""
    decoder, regions = make_decoder(), some_regions(3)
    config = replace(config, minimum_length=5, maximum_length=5, no_repeat=1)
    for image, found in enumerate(beam_search(decoder, regions, config, best=best)):
        assert len(found) == best
        for hypothesis in found:
            assert sorted(hypothesis.ids) == WORDS
            assert not hypothesis.ended
            check_hypothesis(decoder, regions[image], hypothesis, config)


def test_weights_that_change_are_seen() -> None:
    """Nothing of one search is kept for the next."""
    decoder, regions = make_decoder(), some_regions(3)
    before = search(decoder, regions, PLAIN)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.data.mul_(-1)
    after = search(decoder, regions, PLAIN)
    assert [found.ids for (found,) in before] != [found.ids for (found,) in after]
    for image, (hypothesis,) in enumerate(after):
        check_hypothesis(decoder, regions[image], hypothesis, PLAIN)


@pytest.mark.parametrize("words", [10, 63, 64, 700])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("count", [1, 7, 20])
def test_top_totals_are_those_of_topk(words: int, beams: int, count: int) -> None:
    generator = torch.Generator().manual_seed(words)
    totals, scores = torch.randn(5, beams, generator=generator), torch.randn(5, beams, words, generator=generator)
    scores[1, :, 3:] = -math.inf
    scores[2, :, : words - 4] = -math.inf
    totals[3, 1:] = -math.inf
    sums = (totals.unsqueeze(-1) + scores).flatten(1)  # (B, k * V)
    values, places = top_totals(totals, scores, count)
    expected, _ = sums.topk(min(count, sums.shape[1]), dim=1)
    assert torch.equal(values, expected)
    assert torch.equal(sums.gather(1, places), expected)
    assert all(len(set(row)) == len(row) for row in places.tolist())


def test_no_images_give_no_captions() -> None:
    assert beam_search(make_decoder(), some_regions(0), PLAIN) == []


def test_lengths_and_forbidden_words_are_obeyed() -> None:
    regions = some_regions(8)
    for seed in range(4):
        decoder = make_decoder(seed)
        config = SearchConfig(beam=3, minimum_length=3, maximum_length=6, no_repeat=2)
        for hypotheses in beam_search(decoder, regions, config, best=3):
            for hypothesis in hypotheses:
                assert 3 <= len(hypothesis.ids) <= 6
                assert set(hypothesis.ids) <= set(WORDS)
                pairs = list(itertools.pairwise(hypothesis.ids))
                assert len(pairs) == len(set(pairs))
        with torch.no_grad():
            decoder.output.bias[UNKNOWN] = 20.0
        spoken = beam_search(decoder, regions, config)
        assert not any(UNKNOWN in hypothesis.ids for (hypothesis,) in spoken)


def test_an_image_on_which_no_beam_ends_still_gets_its_best_caption() -> None:
    decoder, regions = make_decoder(), some_regions(3)
    with torch.no_grad():
        decoder.output.bias[END] = -math.inf
    config = replace(PLAIN, maximum_length=3, beam=64)
    for image, (hypothesis,) in enumerate(beam_search(decoder, regions, config)):
        assert not hypothesis.ended
        best = max(
            itertools.product(WORDS, repeat=3),
            key=lambda ids: forced_log_probs(decoder, regions[image], [ids], ended=False).sum().item(),
        )
        assert hypothesis.ids == best
        check_hypothesis(decoder, regions[image], hypothesis, config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam": 0}, "search beam is 0; it must be at least 1"),
        ({"length_power": -0.1}, "search length_power is -0.1"),
        ({"maximum_length": 0}, "search maximum_length is 0"),
        ({"minimum_length": 9, "maximum_length": 8}, "search maximum_length is 8"),
        ({"method": "guess"}, "search method is 'guess'; choose from beam, sample"),
        ({"groups": 0}, "search groups is 0; it must be at least 1"),
        ({"groups": 2}, "search groups is 2; it must divide the beam of 5"),
        ({"diversity": -1.0}, "search diversity is -1.0; it must be at least 0"),
        ({"temperature": 0.0}, "search temperature is 0.0; it must be above 0"),
        ({"top_k": -1}, "search top_k is -1; it must be at least 0"),
        ({"top_p": 0.0}, "search top_p is 0.0; it must be above 0 and at most 1"),
    ],
)
def test_bad_settings_name_the_value(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        SearchConfig(**values)  # type: ignore[arg-type]


def test_more_captions_than_beams_is_an_error() -> None:
    with pytest.raises(ValueError, match="best is 4; a beam of 3 gives 1 to 3 captions"):
        beam_search(make_decoder(), some_regions(1), PLAIN, best=4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("place", ["embedding.weight", "output.bias", "from_hidden.weight", "from_context.weight"])
@pytest.mark.parametrize(("method", "groups"), [("beam", 1), ("beam", 2), ("sample", 1)])
def test_a_search_ends_whatever_the_scores_are(value: float, place: str, method: str, groups: int) -> None:
    decoder, steps = make_decoder(), []
    with torch.no_grad():
        decoder.get_parameter(place).view(-1)[-1] = value
    config = SearchConfig(method, beam=4, groups=groups, maximum_length=6)
    found: list[list[Hypothesis]] = []
    with suppress(NotFinite):
        found = search(decoder, some_regions(3), config, seeds=[1, 2, 3], check=lambda: steps.append(1))
    assert all(found)
    assert len(steps) <= config.maximum_length + 1


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_a_search_under_way_can_be_ended(method: str) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise TimeoutError("late")

    config = SearchConfig(method, minimum_length=10, maximum_length=20, no_repeat=0)
    with pytest.raises(TimeoutError, match="late"):
        search(make_decoder(), some_regions(2), config, seeds=[1, 2], check=check)
    assert len(calls) == 3
