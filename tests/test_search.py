from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from captioner.config import AttentionConfig, DecoderConfig, SearchConfig
from captioner.decoder import Decoder
from captioner.search import Hypothesis, beam_search, greedy_search
from captioner.vocabulary import END, START, UNKNOWN

V, D, L = 8, 6, 4
WORDS = [word for word in range(V) if word > UNKNOWN]
PLAIN = SearchConfig(beam=3, minimum_length=0, maximum_length=4, no_repeat=0)


def make(seed: int = 0, mode: str = "soft") -> Decoder:
    torch.manual_seed(seed)
    config = DecoderConfig(embedding=5, hidden=6, regions=0, dropout=0.0)
    decoder = Decoder(config, AttentionConfig(mode, width=5), V, D, (2, 2)).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4)  # lively: otherwise every word is about as probable as any other
    return decoder


def some_regions(batch: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, L, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forced_log_probs(decoder: Decoder, regions: Tensor, ids: tuple[int, ...], ended: bool) -> Tensor:
    """Return the log probability of each word, and of the end, when the caption is read out to the decoder."""
    caption = torch.tensor([[[START, *ids, *([END] if ended else [])]]])
    with torch.no_grad():
        logits = decoder(regions[None], caption).logits[0, 0]  # (T, V)
    return logits.log_softmax(dim=-1).gather(1, caption[0, 0, 1:, None]).squeeze(1)


def exhaustive(decoder: Decoder, regions: Tensor, config: SearchConfig) -> list[tuple[float, tuple[int, ...]]]:
    scored = []
    for length in range(config.minimum_length, config.maximum_length + 1):
        for ids in itertools.product(WORDS, repeat=length):
            log_prob = forced_log_probs(decoder, regions, ids, ended=True).sum().item()
            scored.append((log_prob / (length + 1) ** config.length_power, ids))
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_is_exhaustive(power: float, seed: int) -> None:
    decoder, regions = make(seed), some_regions(2)
    # At most 4 ** 3 beams with five ways to go on each: nothing is ever left out.
    config = replace(PLAIN, beam=5 * 4**3, maximum_length=4, length_power=power)
    found = beam_search(decoder, regions, config, best=5)
    for image in range(2):
        expected = exhaustive(decoder, regions[image], config)[:5]
        assert [hypothesis.ids for hypothesis in found[image]] == [ids for _, ids in expected]
        for hypothesis, (score, _) in zip(found[image], expected, strict=True):
            assert hypothesis.score == pytest.approx(score)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "config", [PLAIN, SearchConfig(maximum_length=12), SearchConfig(maximum_length=9, no_repeat=1)]
)
def test_beam_one_is_greedy(seed: int, config: SearchConfig) -> None:
    decoder, regions = make(seed), some_regions(6, seed)
    greedy = greedy_search(decoder, regions, config)
    beams = beam_search(decoder, regions, replace(config, beam=1))
    for ours, (theirs,) in zip(greedy, beams, strict=True):
        assert ours.ids == theirs.ids
        assert ours.ended == theirs.ended
        assert ours.log_prob == pytest.approx(theirs.log_prob)
        torch.testing.assert_close(ours.alpha, theirs.alpha)
        torch.testing.assert_close(ours.beta, theirs.beta)


def check_hypothesis(decoder: Decoder, regions: Tensor, hypothesis: Hypothesis, config: SearchConfig) -> None:
    """The scores, attention and gates of a hypothesis are those of reading it out."""
    forced = forced_log_probs(decoder, regions, hypothesis.ids, hypothesis.ended)
    assert hypothesis.log_prob == pytest.approx(forced.sum().item())
    length = len(hypothesis.ids)
    assert hypothesis.score == pytest.approx(hypothesis.log_prob / (length + 1) ** config.length_power)
    torch.testing.assert_close(hypothesis.probabilities, forced[:length].exp())
    with torch.no_grad():
        outputs = decoder(regions[None], torch.tensor([[[START, *hypothesis.ids, END]]]))
    torch.testing.assert_close(hypothesis.alpha, outputs.alpha[0, 0, :length])
    torch.testing.assert_close(hypothesis.beta, outputs.beta[0, 0, :length].mean(dim=-1))


@pytest.mark.parametrize("mode", ["soft", "hard", "local", "none"])
def test_scores_and_attention_are_the_teacher_forced_ones(mode: str) -> None:
    decoder, regions = make(3, mode), some_regions(5)
    config = SearchConfig(beam=3, maximum_length=8)
    for image, hypotheses in enumerate(beam_search(decoder, regions, config, best=3)):
        assert len(hypotheses) == 3
        assert len({hypothesis.ids for hypothesis in hypotheses}) == 3
        assert sorted((h.score for h in hypotheses), reverse=True) == [h.score for h in hypotheses]
        for hypothesis in hypotheses:
            check_hypothesis(decoder, regions[image], hypothesis, config)


@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_the_batch(seed: int) -> None:
    decoder, regions = make(seed), some_regions(9, seed)
    config = SearchConfig(beam=4, maximum_length=10)
    together = beam_search(decoder, regions, config, best=2)
    lengths = {len(hypotheses[0].ids) for hypotheses in together}
    assert len(lengths) > 1, "all images end together: nothing leaves the batch early"
    for image in range(9):
        (alone,) = beam_search(decoder, regions[image : image + 1], config, best=2)
        assert [h.ids for h in alone] == [h.ids for h in together[image]]
        assert [h.log_prob for h in alone] == pytest.approx([h.log_prob for h in together[image]])


def test_lengths_and_forbidden_words_are_obeyed() -> None:
    regions = some_regions(8)
    for seed in range(4):
        decoder = make(seed)
        config = SearchConfig(beam=3, minimum_length=3, maximum_length=6, no_repeat=2)
        for hypotheses in beam_search(decoder, regions, config, best=3):
            for hypothesis in hypotheses:
                assert 3 <= len(hypothesis.ids) <= 6
                assert set(hypothesis.ids) <= set(WORDS)
                pairs = list(itertools.pairwise(hypothesis.ids))
                assert len(pairs) == len(set(pairs))
        with torch.no_grad():
            decoder.output.bias[UNKNOWN] = 20.0
        spoken = beam_search(decoder, regions, replace(config, unknown=True, no_repeat=0))
        assert any(UNKNOWN in hypothesis.ids for (hypothesis,) in spoken)


def test_an_image_on_which_no_beam_ends_still_gets_its_best_caption() -> None:
    decoder, regions = make(), some_regions(3)
    with torch.no_grad():
        decoder.output.bias[END] = -math.inf
    config = replace(PLAIN, maximum_length=3, beam=64)
    for image, (hypothesis,) in enumerate(beam_search(decoder, regions, config)):
        assert not hypothesis.ended
        best = max(
            itertools.product(WORDS, repeat=3),
            key=lambda ids: forced_log_probs(decoder, regions[image], ids, ended=False).sum().item(),
        )
        assert hypothesis.ids == best
        check_hypothesis(decoder, regions[image], hypothesis, config)
        assert not greedy_search(decoder, regions, config)[image].ended


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam": 0}, "search beam is 0; it must be at least 1"),
        ({"length_power": -0.1}, "search length_power is -0.1"),
        ({"maximum_length": 0}, "search maximum_length is 0"),
        ({"minimum_length": 9, "maximum_length": 8}, "search maximum_length is 8"),
    ],
)
def test_bad_settings_name_the_value(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        SearchConfig(**values)  # type: ignore[arg-type]


def test_more_captions_than_beams_is_an_error() -> None:
    with pytest.raises(ValueError, match="best is 4; a beam of 3 gives 1 to 3 captions"):
        beam_search(make(), some_regions(1), PLAIN, best=4)
