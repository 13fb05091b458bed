"""Caption scores in this process: BLEU, ROUGE-L and CIDEr-D as the COCO caption evaluation defines them.

Captions are strings of tokens between spaces; tokenising them is the caller's choice, and part of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captioner.evaluation.metrics.ngrams import LONGEST, Integers, Ngrams, count_ngrams, distinct, find, owners_of

CIDER_SIGMA = 6.0  # width, in words, of the penalty on a length unlike the reference's
CIDER_SCALE = 10.0
ROUGE_BETA = 1.2  # how much more recall counts than precision
# The COCO evaluation's guards against division by zero; they show in the score of a caption without any 4-gram.
BLEU_SMALL, BLEU_TINY = 1e-9, 1e-15

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bleu:
    """BLEU-1 to BLEU-4, 0..1: of all captions together (4,), and of each on its own (I, 4).

    `statistics` (I, 10) are what `bleu_of` makes the scores of, after adding up those of the images in question:
    n-grams that are in a reference too, by length, all n-grams by length, words, and words of the nearest reference.
    """

    corpus: Floats
    captions: Floats
    statistics: Floats


def bleu(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Bleu:
    """Score one candidate for each of I images against the image's references."""
    check_captions(candidates, references)
    images = owners_of(references)  # (C,) of the captions that are references
    total = len(candidates)
    counted = count_ngrams([*candidates, *(text for group in references for text in group)])
    statistics = np.zeros((total, 2 * LONGEST + 2))  # (I, 10)
    for place, level in enumerate(counted.levels):
        said = level.captions < total
        # An n-gram counts at most as often as in the reference that has the most of it.
        keys, numbers = np.unique(
            level.key(images[level.captions[~said] - total], level.grams[~said]), return_inverse=True
        )
        most = np.zeros(len(keys), dtype=np.int64)
        np.maximum.at(most, numbers, level.times[~said])
        places, present = find(level.keys[said], keys)
        found = np.minimum(level.times[said][present], most[places[present]])
        statistics[:, place] = np.bincount(level.captions[said][present], found, total)
        statistics[:, LONGEST + place] = np.maximum(counted.lengths[:total] - place, 0)
    statistics[:, -2] = counted.lengths[:total]
    statistics[:, -1] = _nearest(counted.lengths[:total], counted.lengths[total:], images)
    return Bleu(bleu_of(statistics.sum(axis=0)), bleu_of(statistics), statistics)


def _nearest(lengths: Integers, others: Integers, images: Integers) -> Integers:
    """Return the length (I,) of each image's reference that is nearest to the candidate's, the shorter of two."""
    order = np.lexsort((others, np.abs(others - lengths[images]), images))
    return others[order][np.searchsorted(images, np.arange(len(lengths)))]


def bleu_of(statistics: Floats) -> Floats:
    """Return BLEU-1 to BLEU-4 (..., 4), 0..1, of sums (..., 10) of the statistics of captions."""
    found, guessed = statistics[..., :LONGEST], statistics[..., LONGEST : 2 * LONGEST]
    precisions = (found + BLEU_TINY) / (guessed + BLEU_SMALL)
    means = np.cumprod(precisions, axis=-1) ** (1 / np.arange(1, LONGEST + 1))
    ratio = (statistics[..., -2:-1] + BLEU_TINY) / (statistics[..., -1:] + BLEU_SMALL)
    scores: Floats = means * np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return scores


def rouge_l(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Floats:
    """Return ROUGE-L (I,), 0..1, of one candidate for each of I images; the score of them all is the mean."""
    check_captions(candidates, references)
    return np.array([_rouge_l(text, group) for text, group in zip(candidates, references, strict=True)])


def _rouge_l(candidate: str, references: Sequence[str]) -> float:
    # At single spaces, as the COCO evaluation does: an empty caption has one word there, the empty one.
    words = candidate.split(" ")
    places: dict[str, int] = {}  # where a word stands, as bits
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        common = _common_subsequence(places, len(words), others)
        precision, recall = max(precision, common / len(words)), max(recall, common / len(others))
    if not precision or not recall:
        return 0.0
    return (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)


def _common_subsequence(places: dict[str, int], length: int, others: list[str]) -> int:
    """Return the length of the longest common subsequence, all of one row of its table at once as bits of a number."""
    # A bit is 0 where the row rises by one; adding lets each match consume the nearest rise to its left.
    row = everything = (1 << length) - 1
    for word in others:
        if matches := row & places.get(word, 0):
            row = (row + matches) | (row - matches)
    return length - (row & everything).bit_count()


class CiderD:
    """CIDEr-D against fixed references; made to score many candidates.

    `references` are those of each image; the number of images in which an n-gram occurs sets its weight. They are
    weighed when they are needed: the vectors of all captions of COCO would take gigabytes.
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        _check_references(references)
        self.references = references
        self.log_images = math.log(len(references)) if references else 0.0
        images = owners_of(references)
        counted = count_ngrams(text for group in references for text in group)
        self._words = counted.words
        self._keys: list[Integers] = []  # rising, one for each n-gram of a length
        self._log_frequencies: list[Floats] = []
        for level in counted.levels:
            different = len(level.heads)
            pairs = distinct(level.key(images[level.captions], level.grams))
            self._keys.append(level.heads * len(counted.words) + level.tails)
            self._log_frequencies.append(np.log(np.bincount(pairs % max(different, 1), minlength=different)))

    def score(self, candidates: Sequence[str], images: Sequence[int] | None = None) -> Floats:
        """Return the score (C,), 0..10, of each candidate; `images` tells whose references each is scored against."""
        images = range(len(self.references)) if images is None else images
        if len(images) != len(candidates):
            raise ValueError(f"{len(candidates)} candidates for {len(images)} images; expected one for each")
        needed = sorted(set(images))
        texts = [text for image in needed for text in self.references[image]]
        sizes = np.array([len(self.references[image]) for image in needed], dtype=np.int64)
        places = np.searchsorted(needed, np.asarray(images, dtype=np.int64)) if needed else np.zeros(0, dtype=np.int64)
        # Each candidate against each reference of its image, P pairs: their numbers among all captions here.
        candidate_of = np.repeat(np.arange(len(candidates)), sizes[places])  # (P,)
        firsts = len(candidates) + (np.cumsum(sizes) - sizes)[places]
        others = firsts[candidate_of] + _counting(sizes[places])  # (P,)
        similarities = self._similarities(count_ngrams([*candidates, *texts]), candidate_of, others)
        sums = np.bincount(candidate_of, similarities, len(candidates))  # (C,)
        scores: Floats = CIDER_SCALE * sums / (LONGEST * sizes[places])
        return scores

    def _similarities(self, counted: Ngrams, candidate_of: Integers, others: Integers) -> Floats:
        """Return how alike the captions of P pairs are, 0..4 (P,): cosines of all lengths, less for unlike lengths."""
        total = np.zeros(len(candidate_of))
        for level, logs in zip(counted.levels, self._find_logs(counted), strict=True):
            weights = level.times * (self.log_images - logs[level.grams])  # (E,)
            norms = np.sqrt(np.bincount(level.captions, weights * weights, len(counted.lengths)))
            bounds = np.searchsorted(level.captions, np.arange(len(counted.lengths) + 1))
            sizes = np.diff(bounds)[candidate_of]
            pairs = np.repeat(np.arange(len(candidate_of)), sizes)
            entries = bounds[candidate_of][pairs] + _counting(sizes)  # the n-grams of each pair's first caption
            places, present = find(level.key(others[pairs], level.grams[entries]), level.keys)
            places, entries, pairs = places[present], entries[present], pairs[present]
            # Clipped at the reference's weight, so that repeating a good word does not pay.
            shared = np.minimum(weights[entries], weights[places]) * weights[places]
            products = norms[candidate_of] * norms[others]
            total += np.bincount(pairs, shared, len(candidate_of)) / np.where(products > 0, products, 1.0)
        # The COCO evaluation takes the number of bigrams for the length.
        bigrams = np.maximum(counted.lengths - 1, 0)
        damped: Floats = total * np.exp(-((bigrams[candidate_of] - bigrams[others]) ** 2) / (2 * CIDER_SIGMA**2))
        return damped

    def _find_logs(self, counted: Ngrams) -> list[Floats]:
        """Return the logarithm of the number of images that have each n-gram (G,), by length; 0 for one of none."""
        # From the numbers of these captions to those of all references; -1 for what no reference has.
        words = np.array([self._words.get(word, -1) for word in counted.words], dtype=np.int64)
        known, found = np.zeros(1, dtype=np.int64), []
        for level, keys, logs in zip(counted.levels, self._keys, self._log_frequencies, strict=True):
            heads, tails = known[level.heads], words[level.tails]
            places, present = find(heads * len(self._words) + tails, keys)
            present &= (heads >= 0) & (tails >= 0)
            known = np.where(present, places, -1)
            found.append(np.where(present, logs[places], 0.0) if len(logs) else np.zeros(len(places)))
        return found


def _counting(sizes: Integers) -> Integers:
    """Return 0, 1, ... up to each size, one after another."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def check_captions(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise ValueError unless there is one candidate for each image, and a reference or more."""
    _check_references(references)
    if len(candidates) != len(references):
        raise ValueError(f"{len(candidates)} captions for {len(references)} images; expected one for each")


def _check_references(references: Sequence[Sequence[str]]) -> None:
    for index, group in enumerate(references):
        if not group:
            raise ValueError(f"image {index} has no reference captions")
