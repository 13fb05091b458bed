"""BLEU and CIDEr-D against values worked out by hand and against the COCO caption evaluation itself."""

from __future__ import annotations

import io
import math
import os
import random
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu as OfficialBleu
from pycocoevalcap.cider.cider import Cider as OfficialCider

from captioner.datasets import load_dataset
from captioner.metrics import CiderD, bleu


def official(candidates: list[str], references: list[list[str]]) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Return corpus BLEU (4,), BLEU of each (I, 4), mean CIDEr and CIDEr of each (I,) of the COCO evaluation."""
    truth = dict(enumerate(references))
    results = {index: [caption] for index, caption in enumerate(candidates)}
    with redirect_stdout(io.StringIO()):
        corpus, each = OfficialBleu(4).compute_score(truth, results)
        mean, scores = OfficialCider().compute_score(truth, results)
    return np.array(corpus), np.array(each).T, float(mean), np.array(scores)


def check_against_the_official(candidates: list[str], references: list[list[str]]) -> None:
    corpus, each, mean, scores = official(candidates, references)
    ours = bleu(candidates, references)
    np.testing.assert_allclose(ours.corpus, corpus, atol=1e-6, rtol=0)
    np.testing.assert_allclose(ours.captions, each, atol=1e-6, rtol=0)
    cider = CiderD(references).score(candidates)
    np.testing.assert_allclose(cider, scores, atol=1e-6, rtol=0)
    assert cider.mean() == pytest.approx(mean, abs=1e-6)


def random_captions(chance: random.Random, count: int) -> list[str]:
    words = ["a", "the", "dog", "cat", "man", "runs", "sits", "on", "in", "grass", "red", "big", "with", "ball"]
    return [" ".join(chance.choices(words, k=chance.choice([0, 1, 2, 3, 5, 8, 12, 20]))) for _ in range(count)]


def test_equals_the_official_scores_on_random_captions() -> None:
    chance = random.Random(0)
    references = [random_captions(chance, chance.choice([1, 2, 5])) for _ in range(1200)]
    check_against_the_official(random_captions(chance, 1200), references)


@pytest.mark.skipif("CAPTIONER_FLICKR8K" not in os.environ, reason="CAPTIONER_FLICKR8K names no Flickr8k folder")
def test_equals_the_official_scores_on_flickr8k() -> None:
    images = load_dataset(Path(os.environ["CAPTIONER_FLICKR8K"])).split("test")
    tokens = [[" ".join(words) for words in image.tokenized()] for image in images]
    check_against_the_official([captions[0] for captions in tokens], [captions[1:] for captions in tokens])


def test_bleu_by_hand() -> None:
    scores = bleu(["the cat the cat sat"], [["the cat sat on the mat", "a cat sat"]])
    # Words: the 2 of 2, cat 1 of 2, sat 1: 4/5. Bigrams: "the cat" 1 of 2, "cat sat" 1, "cat the" 0: 2/4.
    # Trigrams: "the cat sat" of three. Nearest reference: 6 words against 5.
    penalty = math.exp(1 - 6 / 5)
    expected = [0.8, math.sqrt(0.8 * 0.5), (0.8 * 0.5 / 3) ** (1 / 3)]
    np.testing.assert_allclose(scores.corpus[:3], penalty * np.array(expected), atol=1e-6)
    assert scores.corpus[3] < 1e-3


def test_cider_by_hand() -> None:
    references = [["a b"], ["c d"], ["e f"]]
    scorer = CiderD(references)
    # Its own reference: every vector equal, but there are no 3- and 4-grams: half of ten.
    np.testing.assert_allclose(scorer.score(["a b", "d c", "x y"]), [5.0, 2.5, 0.0])
    # One word short: the word's cosine is 1 / sqrt(2), no bigram, and the length differs by one bigram.
    short = 10 / 4 / math.sqrt(2) * math.exp(-1 / 72)
    np.testing.assert_allclose(scorer.score(["a"], images=[0]), [short])
    np.testing.assert_allclose(scorer.score(["a b", "a b"], images=[1, 0]), [0.0, 5.0])


def test_perfect_captions_score_highest() -> None:
    references = [["a dog runs on the grass"], ["two men sit by a lake"]]
    perfect = [own[0] for own in references]
    np.testing.assert_allclose(bleu(perfect, references).corpus, 1.0, atol=1e-6)
    np.testing.assert_allclose(CiderD(references).score(perfect), 10.0)


def test_counts_that_do_not_match_are_said_so() -> None:
    with pytest.raises(ValueError, match="2 captions for 1 images"):
        bleu(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="image 1 has no reference captions"):
        bleu(["a", "b"], [["a"], []])
    with pytest.raises(ValueError, match="1 candidates for 2 images"):
        CiderD([["a"], ["b"]]).score(["a"])
    with pytest.raises(ValueError, match="image 0 has no reference captions"):
        CiderD([[]])
