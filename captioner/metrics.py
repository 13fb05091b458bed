"""Caption scores in this process: BLEU and CIDEr-D as the COCO caption evaluation defines them.

Captions are strings of tokens between spaces; tokenising them is the caller's choice, and part of the protocol.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 4  # words of an n-gram
CIDER_SIGMA = 6.0  # width, in words, of the penalty on a length unlike the reference's
CIDER_SCALE = 10.0
# The COCO evaluation's guards against division by zero; they show in the score of a caption without any 4-gram.
BLEU_SMALL, BLEU_TINY = 1e-9, 1e-15

Scores = NDArray[np.float64]
Ngram = tuple[str, ...]


def count_ngrams(caption: str) -> list[Counter[Ngram]]:
    """Return how often each n-gram occurs, a counter for each length from 1 to 4."""
    words = caption.split()
    return [Counter(zip(*(words[start:] for start in range(length)), strict=False)) for length in range(1, LONGEST + 1)]


@dataclass(frozen=True)
class Bleu:
    """BLEU-1 to BLEU-4, 0..1: of all captions together (4,), and of each on its own (I, 4)."""

    corpus: Scores
    captions: Scores


def bleu(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Bleu:
    """Score one candidate for each of I images against the image's references."""
    _check_references(references)
    if len(candidates) != len(references):
        raise ValueError(f"{len(candidates)} captions for {len(references)} images; expected one for each")
    found = np.zeros((len(candidates), LONGEST))  # n-grams that a reference has too, clipped to its count
    guessed = np.zeros((len(candidates), LONGEST))
    lengths = np.zeros((len(candidates), 2))  # of the candidate and of the reference nearest in length
    for index, (candidate, own) in enumerate(zip(candidates, references, strict=True)):
        counts = [count_ngrams(reference) for reference in own]
        for level, grams in enumerate(count_ngrams(candidate)):
            guessed[index, level] = grams.total()
            for gram, count in grams.items():
                found[index, level] += min(count, max(levels[level][gram] for levels in counts))
        length = len(candidate.split())
        nearest = min((abs(len(reference.split()) - length), len(reference.split())) for reference in own)[1]
        lengths[index] = length, nearest
    corpus = _bleu(found.sum(axis=0, keepdims=True), guessed.sum(axis=0, keepdims=True), lengths.sum(axis=0)[None])
    return Bleu(corpus[0], _bleu(found, guessed, lengths))


def _bleu(found: Scores, guessed: Scores, lengths: Scores) -> Scores:
    """Return the geometric means of the precisions up to each length, with the penalty for brevity."""
    precisions = (found + BLEU_TINY) / (guessed + BLEU_SMALL)
    means = np.cumprod(precisions, axis=1) ** (1 / np.arange(1, LONGEST + 1))
    ratio = (lengths[:, :1] + BLEU_TINY) / (lengths[:, 1:] + BLEU_SMALL)
    penalty = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    scores: Scores = means * penalty
    return scores


@dataclass(frozen=True)
class _Weighted:
    """One caption as vectors of weighted n-grams, one for each length."""

    vectors: list[dict[Ngram, float]]
    norms: list[float]
    length: int


class CiderD:
    """CIDEr-D against fixed references; made to score many candidates.

    `references` are those of each image; the number of images in which an n-gram occurs sets its weight. They are
    weighed when they are needed: the vectors of all captions of COCO would take gigabytes.
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        _check_references(references)
        self.references = references
        frequencies: Counter[Ngram] = Counter()
        for own in references:
            frequencies.update({gram for text in own for grams in count_ngrams(text) for gram in grams})
        self.log_images = math.log(len(references)) if references else 0.0
        self.log_frequencies = {gram: math.log(count) for gram, count in frequencies.items()}

    def score(self, candidates: Sequence[str], images: Sequence[int] | None = None) -> Scores:
        """Return the score (C,), 0..10, of each candidate; `images` tells whose references each is held against."""
        images = range(len(self.references)) if images is None else images
        if len(images) != len(candidates):
            raise ValueError(f"{len(candidates)} candidates for {len(images)} images; expected one for each")
        weighed = {image: [self._weigh(text) for text in self.references[image]] for image in set(images)}
        pairs = zip(candidates, images, strict=True)
        return np.array([self._score(self._weigh(text), weighed[image]) for text, image in pairs])

    def _weigh(self, caption: str) -> _Weighted:
        known, log_images, levels = self.log_frequencies, self.log_images, count_ngrams(caption)
        vectors = [
            {gram: count * (log_images - known.get(gram, 0.0)) for gram, count in grams.items()} for grams in levels
        ]
        norms = [math.sqrt(sum(weight * weight for weight in vector.values())) for vector in vectors]
        # The COCO evaluation takes the number of bigrams for the length; only differences of it matter.
        return _Weighted(vectors, norms, levels[1].total())

    @staticmethod
    def _score(candidate: _Weighted, references: list[_Weighted]) -> float:
        total = 0.0
        for reference in references:
            similarity = 0.0
            for own, other, norm, other_norm in zip(
                candidate.vectors, reference.vectors, candidate.norms, reference.norms, strict=True
            ):
                if norm and other_norm:
                    # Clipped at the reference's weight, so that repeating a good word does not pay.
                    shared = sum(min(own[gram], other[gram]) * other[gram] for gram in own.keys() & other.keys())
                    similarity += shared / (norm * other_norm)
            difference = candidate.length - reference.length
            total += similarity * math.exp(-(difference**2) / (2 * CIDER_SIGMA**2))
        return CIDER_SCALE * total / (LONGEST * len(references))


def _check_references(references: Sequence[Sequence[str]]) -> None:
    for index, own in enumerate(references):
        if not own:
            raise ValueError(f"image {index} has no reference captions")
