from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from captioner.evaluation.analysis.length_curves import LengthCurves, length_curves, split_by_length
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu

TEXT = "a dog runs along the wide sandy beach with one red ball in its mouth under blue sky today"
WORDS = TEXT.split()


def make_references(images: int = 40, seed: int = 0) -> list[list[str]]:
    """Return two references of each image, from 5 to 15 words in the mean, in no order."""
    chance = np.random.default_rng(seed)
    lengths = chance.permutation(np.linspace(5, 15, images).round().astype(int))
    return [[" ".join(chance.permutation(WORDS)[:length]) for _ in range(2)] for length in lengths]


def spoil(text: str, words: int) -> str:
    """Return a caption whose last words are others."""
    kept = text.split()
    return " ".join(kept[: len(kept) - words] + ["something"] * words)


@pytest.fixture(scope="module")
def references() -> list[list[str]]:
    return make_references()


@pytest.fixture(scope="module")
def curves(references: list[list[str]]) -> LengthCurves:
    """Two models that differ only where references are long."""
    good = [own[0] for own in references]
    tiring = [text if len(text.split()) < 10 else spoil(text, 5) for text in good]
    return length_curves({"tiring": tiring, "steady": good}, references, buckets=4, resamples=200)


def test_buckets_hold_each_image_once_by_the_length_of_its_references(references: list[list[str]]) -> None:
    members = split_by_length(references, 4)
    assert sorted(np.concatenate(members).tolist()) == list(range(40))
    lengths = np.array([np.mean([len(text.split()) for text in own]) for own in references])
    for shorter, longer in pairwise(members):
        assert lengths[shorter].max() < lengths[longer].min()
    assert all(5 <= len(rows) <= 15 for rows in members)


def test_the_mean_over_references_counts() -> None:
    references = [["a b c d e f g", "a"], ["a b c", "a b c"], ["a b c d e", "a b c d e"]]  # 4, 3 and 5 words
    assert [rows.tolist() for rows in split_by_length(references, 3)] == [[1], [0], [2]]


def test_images_of_one_length_share_a_bucket() -> None:
    assert [rows.tolist() for rows in split_by_length([["a b"]] * 6, 3)] == [[0, 1, 2, 3, 4, 5]]
    two = split_by_length([["a b"]] * 5 + [["a b c"]], 3)
    assert [rows.tolist() for rows in two] == [[0, 1, 2, 3, 4], [5]]


def test_a_bucket_scores_what_its_images_score_alone(references: list[list[str]], curves: LengthCurves) -> None:
    good = [own[0] for own in references]
    tiring = [text if len(text.split()) < 10 else spoil(text, 5) for text in good]
    cider = CiderD(references).score(tiring)
    for rows, bucket, scored in zip(
        split_by_length(references, 4), curves.buckets, curves.models["tiring"], strict=True
    ):
        alone = bleu([tiring[row] for row in rows], [references[row] for row in rows])
        assert scored.scores["bleu4"] == pytest.approx(100 * alone.corpus[3])
        assert scored.scores["cider"] == pytest.approx(100 * cider[rows].mean())
        assert scored.words == pytest.approx(np.mean([len(tiring[row].split()) for row in rows]))
        assert bucket.images == len(rows)
        assert bucket.shortest <= bucket.words <= bucket.longest


def test_intervals_hold_the_scores_and_draws_are_paired(curves: LengthCurves) -> None:
    for scored in curves.models.values():
        for own in scored:
            for metric, score in own.scores.items():
                assert own.intervals[metric].low - 1e-9 <= score <= own.intervals[metric].high + 1e-9
    first = curves.models["steady"][0].against["bleu4"]
    # The same captions on the same resamples: no difference, and none by chance.
    assert (first.value, first.interval.low, first.interval.high) == (0.0, 0.0, 0.0)
    assert curves.models["tiring"][0].against == {}


def test_a_lead_that_grows_with_length_is_seen(curves: LengthCurves) -> None:
    trend = curves.trends["steady"]["bleu4"]
    last = curves.models["steady"][-1].against["bleu4"]
    assert trend.value == pytest.approx(last.value - curves.models["steady"][0].against["bleu4"].value)
    assert trend.interval.low > 0
    assert trend.p < 0.05
    assert "steady minus tiring" in curves.to_text()
    assert "the lead grows with length" in curves.to_text()


def test_equal_models_have_no_trend(references: list[list[str]]) -> None:
    good = [own[1] for own in references]
    curves = length_curves({"one": good, "other": list(good)}, references, buckets=2, resamples=50)
    assert curves.trends["other"]["cider"].value == 0.0
    assert "the lead does not surely change" in curves.to_text()


def test_results_are_the_same_each_time_and_plain(references: list[list[str]]) -> None:
    good = {"one": [own[1] for own in references]}
    first = length_curves(good, references, buckets=3, resamples=20, seed=3)
    assert first == length_curves(good, references, buckets=3, resamples=20, seed=3)
    assert first.trends == {}
    plain = json.loads(json.dumps(first.to_dict(), allow_nan=False))
    assert [bucket["images"] for bucket in plain["buckets"]] == [bucket.images for bucket in first.buckets]


def test_empty_and_short_captions_are_scored(references: list[list[str]]) -> None:
    curves = length_curves({"silent": [""] * 40, "terse": ["dog"] * 40}, references, buckets=2, resamples=20)
    assert [own.words for own in curves.models["silent"]] == [0.0, 0.0]
    assert all(own.scores["bleu4"] < 1e-3 for scored in curves.models.values() for own in scored)
    json.dumps(curves.to_dict(), allow_nan=False)


def test_one_bucket_has_no_trend() -> None:
    curves = length_curves({"one": ["a b"], "other": ["a c"]}, [["a b c"]], buckets=1, resamples=5)
    assert (len(curves.buckets), curves.trends) == (1, {})
    assert "minus" not in curves.to_text()


def test_refuses_what_it_cannot_split(references: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="buckets is 0; expected from 1 to 40"):
        split_by_length(references, 0)
    with pytest.raises(ValueError, match="buckets is 41"):
        split_by_length(references, 41)
    with pytest.raises(ValueError, match="0 models"):
        length_curves({}, references)
    with pytest.raises(ValueError, match="1 captions for 40 images"):
        length_curves({"one": ["a dog"]}, references)
