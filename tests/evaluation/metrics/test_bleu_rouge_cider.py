"""BLEU, ROUGE-L and CIDEr-D against values worked out by hand and against the COCO caption evaluation itself."""

from __future__ import annotations

import io
import math
import os
import random
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from helpers.cases import MORE
from pycocoevalcap.bleu.bleu import Bleu as OfficialBleu
from pycocoevalcap.cider.cider import Cider as OfficialCider
from pycocoevalcap.rouge.rouge import Rouge as OfficialRouge

from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu, bleu_of, rouge_l


def check_against_the_official(candidates: list[str], references: list[list[str]]) -> None:
    """Compare the scores of all captions together and of each with those of the COCO evaluation."""
    truth = dict(enumerate(references))
    results = {index: [caption] for index, caption in enumerate(candidates)}
    with redirect_stdout(io.StringIO()):
        bleu_corpus, bleu_each = OfficialBleu(4).compute_score(truth, results)
        rouge_mean, rouge_each = OfficialRouge().compute_score(truth, results)
        cider_mean, cider_each = OfficialCider().compute_score(truth, results)
    ours = bleu(candidates, references)
    np.testing.assert_allclose(ours.corpus, bleu_corpus, atol=1e-9, rtol=0)
    np.testing.assert_allclose(ours.captions, np.array(bleu_each).T, atol=1e-9, rtol=0)
    for each, mean, own in (
        (rouge_each, rouge_mean, rouge_l(candidates, references)),
        (cider_each, cider_mean, CiderD(references).score(candidates)),
    ):
        np.testing.assert_allclose(own, each, atol=1e-9, rtol=0)
        assert own.mean() == pytest.approx(mean, abs=1e-9)


CASES = 1200 * MORE


def random_captions(chance: random.Random, count: int) -> list[str]:
    words = ["a", "the", "dog", "cat", "man", "runs", "sits", "on", "in", "grass", "red", "big", "with", "ball"]
    return [" ".join(chance.choices(words, k=chance.choice([0, 1, 2, 3, 5, 8, 12, 20]))) for _ in range(count)]


def test_equals_the_official_scores_on_random_captions() -> None:
    chance = random.Random(0)
    references = [random_captions(chance, chance.choice([1, 2, 5])) for _ in range(CASES)]
    check_against_the_official(random_captions(chance, CASES), references)


@pytest.mark.skipif("CAPTIONER_FLICKR8K" not in os.environ, reason="CAPTIONER_FLICKR8K names no Flickr8k folder")
def test_equals_the_official_scores_on_flickr8k() -> None:
    images = load_dataset(Path(os.environ["CAPTIONER_FLICKR8K"])).split("test")
    tokens = [[" ".join(words) for words in image.tokenized()] for image in images]
    for left_out in range(2):
        others = [captions[:left_out] + captions[left_out + 1 :] for captions in tokens]
        check_against_the_official([captions[left_out] for captions in tokens], others)


def test_equals_the_official_scores_however_words_are_spaced() -> None:
    texts = ["", " ", "a", "a  b", " a b", "a b ", "a\u00a0b c", "\u65e5\u672c\u8a9e a", "a a a a a a"]
    references = [[texts[(start + step) % len(texts)] for step in (0, 1, 4)] for start in range(len(texts))]
    for shift in range(len(texts)):
        check_against_the_official(texts[shift:] + texts[:shift], references)


def test_captions_without_any_word() -> None:
    # Where no reference has a word either, the COCO evaluation fails; a score of nothing is nought.
    np.testing.assert_array_equal(CiderD([["", ""], [""]]).score(["", "a"]), [0.0, 0.0])
    check_against_the_official(["", ""], [["a dog"], ["two dogs run"]])
    check_against_the_official(["a dog"], [["a dog"]])
    assert CiderD([]).score([]).shape == (0,)


def test_cider_of_many_candidates_for_an_image_is_that_of_each() -> None:
    chance = random.Random(1)
    scorer = CiderD([random_captions(chance, chance.choice([1, 2, 5])) for _ in range(30)])
    candidates, images = random_captions(chance, 50), chance.choices(range(30), k=50)
    each = [scorer.score([text], images=[image])[0] for text, image in zip(candidates, images, strict=True)]
    np.testing.assert_allclose(scorer.score(candidates, images), each, atol=1e-12)


def test_bleu_of_some_images_follows_from_their_statistics() -> None:
    chance = random.Random(2)
    references, candidates = [random_captions(chance, 5) for _ in range(40)], random_captions(chance, 40)
    statistics = bleu(candidates, references).statistics
    some = [3, 3, 7, 20, 39]  # one of them twice
    again = bleu([candidates[index] for index in some], [references[index] for index in some])
    np.testing.assert_array_equal(bleu_of(statistics[some].sum(axis=0)), again.corpus)


def test_bleu_by_hand() -> None:
    scores = bleu(["the cat the cat sat"], [["the cat sat on the mat", "a cat sat"]])
    # Words: the 2 of 2, cat 1 of 2, sat 1: 4/5. Bigrams: "the cat" 1 of 2, "cat sat" 1, "cat the" 0: 2/4.
    # Trigrams: "the cat sat" of three. Nearest reference: 6 words against 5.
    penalty = math.exp(1 - 6 / 5)
    expected = [0.8, math.sqrt(0.8 * 0.5), (0.8 * 0.5 / 3) ** (1 / 3)]
    np.testing.assert_allclose(scores.corpus[:3], penalty * np.array(expected), atol=1e-6)
    assert scores.corpus[3] < 1e-3


def test_rouge_by_hand() -> None:
    # "the cat sat" of 5 words and of 6, "cat sat" of 3: the best precision and the best recall, of different ones.
    precision, recall = 3 / 5, 2 / 3
    expected = (1 + 1.44) * precision * recall / (recall + 1.44 * precision)
    references = [["the cat sat on the mat", "a cat sat"], ["dogs run"], [""]]
    np.testing.assert_allclose(rouge_l(["the cat the cat sat", "a b", ""], references), [expected, 0.0, 1.0])


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
    np.testing.assert_allclose(rouge_l(perfect, references), 1.0)
    np.testing.assert_allclose(CiderD(references).score(perfect), 10.0)


def test_counts_that_do_not_match_are_said_so() -> None:
    with pytest.raises(ValueError, match="2 captions for 1 images"):
        bleu(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="image 1 has no reference captions"):
        bleu(["a", "b"], [["a"], []])
    with pytest.raises(ValueError, match="1 captions for 2 images"):
        rouge_l(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="1 candidates for 2 images"):
        CiderD([["a"], ["b"]]).score(["a"])
    with pytest.raises(ValueError, match="image 0 has no reference captions"):
        CiderD([[]])
