from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import captioner.training.validation
from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import Vocabulary
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.search.beam import Hypothesis, beam_search
from captioner.model.search_settings import SearchConfig
from captioner.processes import Processes
from captioner.training.data import ValidationSet
from captioner.training.settings import LossConfig
from captioner.training.validation import Findings, validate

L, D = 4, 6
CAPTIONS = ("a dog runs over the grass", "a cat sleeps", "the horse eats", "a small bird", "the dog sleeps on a cat")
IMAGES = tuple(
    CaptionedImage(f"{number}.jpg", Path("x.jpg"), number, "val", (text, f"{text} there"), None)
    for number, text in enumerate(CAPTIONS)
)
VOCABULARY = Vocabulary.build((words for image in IMAGES for words in image.tokenized()), 1)
SEARCH = SearchConfig(beam=2, maximum_length=8)


class Cache:
    """Regions of the images, which also tells who asked for which."""

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self.known = {image.file_name: chance.normal(size=(L, D)).astype(np.float16) for image in IMAGES}
        self.asked: list[str] = []

    def regions(self, names: Sequence[str]) -> NDArray[np.float16]:
        self.asked += names
        return np.stack([self.known[name] for name in names])


def make_decoder() -> LSTMDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(embedding=5, hidden=6, regions=0, dropout=0.0)
    decoder = LSTMDecoder(config, AttentionConfig(width=5), len(VOCABULARY), D, (2, 2)).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4)  # lively: otherwise every caption is the same
    return decoder


def make_set() -> tuple[ValidationSet, Cache]:
    cache = Cache()
    return ValidationSet("toy", IMAGES, cache), cache  # type: ignore[arg-type]


def validate_toy(own: ValidationSet, processes: Processes | None = None, **options: Any) -> Findings:
    def read(images: Sequence[CaptionedImage]) -> Tensor:
        return torch.from_numpy(own.cache.regions([image.file_name for image in images])).float()

    options.setdefault("read", read)
    return validate(make_decoder(), VOCABULARY, own, SEARCH, processes or Processes(), **options)


@pytest.fixture(params=[64, 2, 1])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(captioner.training.validation, "BATCH", request.param)
    return int(request.param)


def test_scores_are_those_of_the_captions_that_are_searched_for(batch: int) -> None:
    own, cache = make_set()
    ticks: list[tuple[int, int]] = []
    found = validate_toy(own, tick=lambda done, total: ticks.append((done, total)))
    assert cache.asked == [image.file_name for image in IMAGES]
    assert ticks[-1] == (5, 5)
    assert len(ticks) == -(-5 // batch)
    regions = torch.from_numpy(np.stack(list(cache.known.values()))).float()
    captions = [" ".join(VOCABULARY.words(best.ids)) for (best,) in beam_search(make_decoder(), regions, SEARCH)]
    assert [" ".join(VOCABULARY.words(each.ids)) for each in found.hypotheses] == captions
    references = [[text, f"{text} there"] for text in CAPTIONS]
    corpus = bleu(captions, references).corpus
    assert [found.scores[f"bleu{length}"] for length in range(1, 5)] == pytest.approx((100 * corpus).tolist())
    assert found.scores["cider"] == pytest.approx(100 * CiderD(references).score(captions).mean())
    assert found.scores["words"] == pytest.approx(np.mean([len(text.split()) for text in captions]))
    assert found.scores["distinct"] == 100 * len(set(captions)) / 5
    moves = []
    for each in found.hypotheses:
        steps = [
            sum(abs(a - b) for a, b in zip(before, after, strict=True)) / 2
            for before, after in zip(each.alpha[:-1].tolist(), each.alpha[1:].tolist(), strict=True)
        ]
        if steps:
            moves.append(sum(steps) / len(steps))
    assert found.scores["movement"] == pytest.approx(np.mean(moves))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_is_that_of_the_references(batch: int, reduction: str) -> None:
    own, cache = make_set()
    images = (replace(IMAGES[0], captions=IMAGES[0].captions[:1]), *IMAGES[1:])  # not all have as many
    found = validate_toy(replace(own, images=images), loss=LossConfig(reduction=reduction, smoothing=0.1))
    decoder, losses, likelihoods = make_decoder(), [], []
    for image in images:
        regions = torch.from_numpy(cache.known[image.file_name]).float()[None]  # (1, L, D)
        for words in image.tokenized():
            ids = torch.tensor(VOCABULARY.encode(words))[None, None]  # (1, 1, T + 1)
            with torch.no_grad():
                scores = decoder(regions, ids).logits[0, 0].log_softmax(-1)  # (T, V)
            nll = -scores.gather(1, ids[0, 0, 1:, None])[:, 0]  # (T,)
            losses.append(0.9 * nll - 0.1 * scores.mean(-1))
            likelihoods.append(nll)
    count = len(losses) if reduction == "sum" else sum(map(len, losses))
    expected = float(torch.cat(losses).sum()) / count
    assert found.scores["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert found.scores["perplexity"] == pytest.approx(float(torch.cat(likelihoods).mean().exp()), rel=1e-5)


class Shared(Processes):
    """One of several processes whose results are known once all of them have been asked."""

    gathered: dict[int, Any]

    def gather(self, item: Any) -> list[Any]:
        self.gathered[self.rank] = item
        return [self.gathered.get(rank, []) for rank in range(self.count)]


@pytest.mark.parametrize("count", [2, 3, 7])
def test_processes_share_the_images_and_each_is_searched_for_once(batch: int, count: int) -> None:
    whole = validate_toy(make_set()[0])
    asked: list[str] = []
    ticks: list[int] = []
    gathered: dict[int, Any] = {}
    for rank in reversed(range(count)):
        own, cache = make_set()
        processes = Shared(rank, count)
        object.__setattr__(processes, "gathered", gathered)
        seen: list[int] = []
        found: Findings | None = None
        try:
            found = validate_toy(own, processes, tick=lambda done, total, seen=seen: seen.append(done))
        except IndexError:  # the others' captions are not there yet
            assert rank > 0
        asked += cache.asked
        ticks.append(len(seen))
    assert sorted(asked) == sorted(image.file_name for image in IMAGES)
    assert len(set(ticks)) == 1  # they wait for each other at every tick
    assert found is not None
    assert [each.ids for each in found.hypotheses] == [each.ids for each in whole.hypotheses]
    assert found.scores == pytest.approx(whole.scores)


def test_regions_may_come_from_elsewhere_and_a_tick_may_stop() -> None:
    own, cache = make_set()

    def read(images: Sequence[CaptionedImage]) -> Tensor:
        return torch.from_numpy(np.stack([2 * cache.known[image.file_name].astype(np.float32) for image in images]))

    other = validate_toy(own, read=read)
    assert cache.asked == []
    assert [each.log_prob for each in other.hypotheses] != [each.log_prob for each in validate_toy(own).hypotheses]

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        validate_toy(own, tick=stop)


def hypothesis(alpha: list[list[float]]) -> Hypothesis:
    count = len(alpha)
    return Hypothesis(
        tuple(range(4, 4 + count)), -1.0, -1.0, True, torch.ones(count), torch.tensor(alpha), torch.ones(count)
    )


@pytest.mark.parametrize(
    ("alphas", "movement", "collapsed"),
    [
        ([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]], 0.5, False),  # all of it moves, then nothing
        ([[[0.5, 0.5], [0.49, 0.51]], [[0.5, 0.5], [0.5, 0.5]]], 0.005, True),
        ([[[0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]], 0.5, False),  # a caption of one word tells nothing
        ([[[0.5, 0.5]]], -1.0, False),
    ],
)
def test_movement_tells_collapsed_attention(
    alphas: list[list[list[float]]], movement: float, collapsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [hypothesis(alpha) for alpha in alphas]
    monkeypatch.setattr(captioner.training.validation, "beam_search", lambda *arguments: [[each] for each in found])
    own = replace(make_set()[0], images=IMAGES[: len(found)])
    findings = validate_toy(own)
    assert findings.scores["movement"] == pytest.approx(movement)
    assert findings.is_collapsed == collapsed
