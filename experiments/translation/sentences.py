"""Parallel text: files of sentences, one to a line, as pairs and as batches of equally long ones."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pieces import Language
from torch import Tensor

from captioner.datasets.vocabulary import PAD
from captioner.files import open_regular, printable

MOST_BYTES = 1 << 30  # of a file, unpacked
LONGEST = 100  # pieces of a sentence, the end marker included
POOL = 50  # batches that are sorted by length together


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation as ids."""

    source: list[int]  # (L), with <end>
    target: list[int]  # (T + 1), from <start> to <end>


@dataclass(frozen=True)
class Batch:
    """Sentences side by side, filled up with PAD."""

    source: Tensor  # (B, L)
    target: Tensor  # (B, 1, T + 1): one translation of each sentence, as a decoder reads captions

    @property
    def words(self) -> Tensor:
        """Where there is a word to predict, (B, 1, T)."""
        return self.target[:, :, 1:] != PAD


def read_sentences(folder: Path, split: str, language: str) -> list[str]:
    """Return the lines of SPLIT.LANGUAGE in a folder, or of SPLIT.LANGUAGE.gz; none may be empty."""
    plain = folder / f"{split}.{language}"
    packed = plain.with_name(f"{plain.name}.gz")
    path = plain if plain.exists() else packed
    if not path.exists():
        raise ValueError(f"{printable(str(folder))} has no {plain.name} or {packed.name}; see --data")
    with open_regular(path, most=MOST_BYTES) as file:
        try:
            contents = gzip.GzipFile(fileobj=file).read(MOST_BYTES) if path == packed else file.read()
            text = contents.decode("utf-8-sig")
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ValueError(f"{printable(str(path))} is not a whole gzip file") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{printable(str(path))} is not UTF-8: byte {error.start} is wrong") from None
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    for number, line in enumerate(lines, start=1):
        if not line:
            raise ValueError(f"{printable(str(path))}:{number} is empty; expected a sentence")
    return lines


def read_parallel(folder: Path, split: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """Return the sentences of a split in two languages, as many in both."""
    sources, targets = read_sentences(folder, split, source), read_sentences(folder, split, target)
    if len(sources) != len(targets):
        raise ValueError(
            f"{split} has {len(sources):,} sentences in {source} and {len(targets):,} in {target}; "
            "line by line, they must be translations"
        )
    return sources, targets


def encode_source(text: str, language: Language) -> list[int]:
    """Return the ids of a sentence to translate, with <end> but without <start>; what is too long is cut off."""
    ids = language.encode(text)[1:]
    return ids if len(ids) <= LONGEST else [*ids[: LONGEST - 1], ids[-1]]


def encode_pairs(sources: Sequence[str], targets: Sequence[str], languages: tuple[Language, Language]) -> list[Pair]:
    """Return sentences and their translations as ids."""
    source, target = languages
    both = zip(sources, targets, strict=True)
    return [Pair(encode_source(text, source), target.encode(translation)) for text, translation in both]


def make_batches(pairs: Sequence[Pair], size: int, seed: Sequence[int] | None = None) -> list[Batch]:
    """Cut pairs into batches of `size`, of similar lengths; with a seed, in random order and differently cut."""
    order = list(range(len(pairs)))
    random = np.random.default_rng(list(seed)) if seed is not None else None
    if random is not None:
        order = random.permutation(len(pairs)).tolist()
    pool = POOL * size if random is not None else len(order)
    places: list[list[int]] = []
    for start in range(0, len(order), max(1, pool)):
        part = sorted(order[start : start + pool], key=lambda place: _lengths(pairs[place]))
        places += [part[first : first + size] for first in range(0, len(part), size)]
    if random is not None:
        places = [places[place] for place in random.permutation(len(places)).tolist()]
    return [_batch([pairs[place] for place in some]) for some in places]


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of ids as one tensor (B, L), PAD beyond their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])  # (B, L)


def _lengths(pair: Pair) -> tuple[int, int]:
    return len(pair.target), len(pair.source)


def _batch(pairs: Sequence[Pair]) -> Batch:
    return Batch(pad([pair.source for pair in pairs]), pad([pair.target for pair in pairs]).unsqueeze(1))
