"""The n-grams of many captions as numbers, so that counting and comparing them is arithmetic on arrays."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

LONGEST = 4  # words of an n-gram

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """The n-grams of one length: G different ones, E pairs of a caption and an n-gram in it.

    `captions` (E,) and `grams` (E,), in 0..G-1, are sorted by caption, then n-gram; `times` (E,) is how often the
    n-gram occurs in the caption. `heads` (G,) and `tails` (G,) tell what an n-gram is made of: the number of the one
    that is a word shorter, among those of that length, and of its last word; sorted in that order.
    """

    captions: Integers
    grams: Integers
    times: Integers
    heads: Integers
    tails: Integers

    @property
    def keys(self) -> Integers:
        """A number (E,) for each pair, rising: that of `key` for its caption and n-gram."""
        return self.key(self.captions, self.grams)

    def key(self, owners: Integers, grams: Integers) -> Integers:
        """Return one number for each pair of an owner, such as a caption or an image, and an n-gram."""
        return owners * len(self.heads) + grams


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of C captions: their counts for each length from 1 to 4, words by number, lengths (C,) in words."""

    levels: list[Counts]
    words: Mapping[str, int]
    lengths: Integers


def count_ngrams(captions: Iterable[str]) -> Ngrams:
    """Count the n-grams of captions, strings of words between spaces."""
    words: defaultdict[str, int] = defaultdict(count().__next__)
    numbers, lengths = array("q"), array("q")  # far smaller than lists when it is all of COCO
    for caption in captions:
        found = caption.split()
        numbers.extend([words[word] for word in found])
        lengths.append(len(found))
    sequence, spans = np.array(numbers, dtype=np.int64), np.array(lengths, dtype=np.int64)  # (W,), (C,)
    return Ngrams(_levels(sequence, spans, len(words)), dict(words), spans)


def _levels(sequence: Integers, lengths: Integers, words: int) -> list[Counts]:
    """Count the n-grams of captions that stand one after another in a sequence (W,) of word numbers."""
    owners = np.repeat(np.arange(len(lengths)), lengths)  # (W,) the caption of each word
    remaining = np.cumsum(lengths)[owners] - np.arange(len(sequence))  # (W,) words to the caption's end
    starts, grams = np.arange(len(sequence)), np.zeros(len(sequence), dtype=np.int64)
    levels = []
    for length in range(1, LONGEST + 1):
        inside = remaining[starts] >= length
        starts = starts[inside]
        codes, grams = np.unique(grams[inside] * words + sequence[starts + length - 1], return_inverse=True)
        heads, tails = np.divmod(codes, max(words, 1))
        pairs, times = np.unique(owners[starts] * len(codes) + grams, return_counts=True)
        captions, grams_found = np.divmod(pairs, max(len(codes), 1))
        levels.append(Counts(captions, grams_found, times, heads, tails))
    return levels


def find(wanted: Integers, keys: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return where each wanted number (N,) stands among rising keys (K,), in 0..K-1, and whether it is there (N,)."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return places, keys[places] == wanted


def distinct(numbers: Integers) -> Integers:
    """Return the different numbers among many, none below 0, rising."""
    # numpy's own takes minutes for the millions of COCO: its hashing does not suit numbers so near each other.
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def owners_of(groups: Sequence[Sequence[object]]) -> Integers:
    """Return the number of the group that each member belongs to, groups one after another."""
    return np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64)
