"""Word pieces: sentences as tokens that can be joined again, and tokens as pieces found by byte pair encoding."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from captioner.datasets.vocabulary import UNKNOWN, Vocabulary

SPACE = "\u2581"  # stands for the space before a token, so that joining pieces gives the sentence back
Pair = tuple[str, str]


def split_tokens(text: str) -> list[str]:
    """Split a sentence into words and single marks; a token after a space starts with SPACE."""
    text = unicodedata.normalize("NFC", text).replace("\u2019", "'").replace(SPACE, "_")
    found = re.finditer(r"(\s*)(\w+|[^\w\s])", f" {text.strip()}")
    return [(SPACE if match[1] else "") + match[2] for match in found]


def join_pieces(pieces: Iterable[str]) -> str:
    """Return the sentence that pieces spell."""
    return "".join(pieces).replace(SPACE, " ").strip()


def learn_merges(counts: Mapping[str, int], most: int) -> list[Pair]:
    """Return up to `most` merges of byte pair encoding (Sennrich et al., 2016), the most frequent pair first.

    `counts` says how often each token occurs. Equally frequent pairs are merged in the order of their spelling.
    """
    words = [list(token) for token in counts]
    weights = list(counts.values())
    pairs: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)  # the words that a pair occurs in
    for index, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += weights[index]
            places[pair].add(index)
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    merges: list[Pair] = []
    while queue and len(merges) < most:
        count, pair = heapq.heappop(queue)
        if -count != pairs[pair]:
            continue  # an entry from before another merge changed the count
        if -count < 2:
            break
        merges.append(pair)
        changed = set()
        for index in places.pop(pair):
            before, words[index] = words[index], merge(words[index], pair)
            for each in pairwise(before):
                pairs[each] -= weights[index]
                changed.add(each)
            for each in pairwise(words[index]):
                pairs[each] += weights[index]
                places[each].add(index)
                changed.add(each)
        for each in changed:
            if pairs[each] > 0:
                heapq.heappush(queue, (-pairs[each], each))
    return merges


def merge(pieces: Sequence[str], pair: Pair) -> list[str]:
    """Return the pieces with each occurrence of the pair, from the left, put together."""
    merged: list[str] = []
    index = 0
    while index < len(pieces):
        if index + 1 < len(pieces) and (pieces[index], pieces[index + 1]) == pair:
            merged.append(pieces[index] + pieces[index + 1])
            index += 2
        else:
            merged.append(pieces[index])
            index += 1
    return merged


@dataclass
class Language:
    """The pieces of one language: how to cut its sentences, and the ids of the V pieces; `lower` ignores case."""

    merges: list[Pair]
    vocabulary: Vocabulary
    lower: bool
    _ranks: dict[Pair, int] = field(init=False, repr=False)
    _known: dict[str, list[str]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}

    @classmethod
    def learn(cls, sentences: Sequence[str], merges: int, *, lower: bool) -> Language:
        """Learn pieces from sentences; every piece that they are then cut into gets an id."""
        counts = Counter(token for text in sentences for token in split_tokens(text.lower() if lower else text))
        language = cls(learn_merges(dict(sorted(counts.items())), merges), Vocabulary.build([], 1), lower)
        language.vocabulary = Vocabulary.build(map(language.cut, sentences), 1)
        return language

    def cut(self, text: str) -> list[str]:
        """Return the pieces of a sentence."""
        return [piece for token in split_tokens(text.lower() if self.lower else text) for piece in self._token(token)]

    def _token(self, token: str) -> list[str]:
        """Return the pieces of a token: of the pairs in it, the one learned first is merged, again and again."""
        if token not in self._known:
            pieces = list(token)
            while len(pieces) > 1:
                pair = min(pairwise(pieces), key=lambda each: self._ranks.get(each, len(self.merges)))
                if pair not in self._ranks:
                    break
                pieces = merge(pieces, pair)
            self._known[token] = pieces
        return self._known[token]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence's pieces between <start> and <end>."""
        return self.vocabulary.encode(self.cut(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the sentence that ids stand for; an unknown piece is left out."""
        return join_pieces(self.vocabulary.words(number for number in ids if number != UNKNOWN))

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` needs, ready for JSON."""
        return {"merges": self.merges, "lower": self.lower, **self.vocabulary.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Language:
        """Rebuild a language from what `to_dict` returned."""
        merges = [(str(left), str(right)) for left, right in content["merges"]]
        return cls(merges, Vocabulary.from_dict(content), bool(content["lower"]))


def word_groups(pieces: Sequence[str]) -> list[list[int]]:
    """Return the places of the pieces of each word, in order; a mark that no space precedes is a word of its own."""
    groups: list[list[int]] = []
    for place, piece in enumerate(pieces):
        follows = groups and not piece.startswith(SPACE)
        if follows and piece[-1].isalnum() and pieces[place - 1][-1].isalnum():
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups
