"""The two parts of the COCO caption evaluation that are Java programs: the PTB tokenizer and METEOR 1.5.

Both come with the package pycocoevalcap. Each is started once and serves many calls.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from captioner.evaluation.metrics.java import PATIENCE, JavaError, JavaProgram

Floats = NDArray[np.float64]

TOKENIZER_JAR = "tokenizer/stanford-corenlp-3.4.1.jar"
METEOR_JAR = "meteor/meteor-1.5.jar"
METEOR_DATA = "meteor/data/paraphrase-en.gz"
# The language is said because METEOR reads and lowers letters by the rules of the system's; one collector because
# the usual one takes twice the memory.
_SETTINGS = ("-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")

# The COCO evaluation's list. Brackets are on it in capitals only, so that lower-case "-lrb-" stays a word.
PUNCTUATION = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
# All that either program takes for the end of a line.
_LINE_ENDS = re.compile("[\n\r\x0b\x0c\u2028\u2029]")

# METEOR 1.5's settings for English: recall against precision, exponent and weight of the penalty for fragments, content
# against function words; and the weights of exact, stem, synonym and paraphrase matches.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_MATCH_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
STATISTICS = 23  # numbers that METEOR gives for a caption
_CHUNKS = 20  # the place of one of them


def find_jars() -> Path | None:
    """Return the folder of pycocoevalcap, which holds both programs, or None where it is not installed whole."""
    found = importlib.util.find_spec("pycocoevalcap")
    for folder in (found and found.submodule_search_locations) or ():
        if all((Path(folder) / name).is_file() for name in (TOKENIZER_JAR, METEOR_JAR, METEOR_DATA)):
            return Path(folder)
    return None


def can_run_meteor(jars: Path) -> bool:
    """Tell whether METEOR finds its data beside it, which it does not in a folder with a space or an accent."""
    return quote(jars.as_posix(), safe="/:@!$&'()*+,;=") == jars.as_posix()


class PtbTokenizer:
    """The Penn Treebank tokenizer of Stanford CoreNLP 3.4.1, called and cleaned up after as the COCO evaluation does.

    The program keeps what it writes to itself until its buffers of 8 kB each are full. So every question ends with a
    long word that pushes the answers out, and that stands before the answers to the next one.
    """

    _PUSH = "x" * 65536

    def __init__(self, java: Path, jars: Path, *, patience: float = PATIENCE) -> None:
        main = ("edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase")
        command = (java, *_SETTINGS, "-cp", jars / TOKENIZER_JAR, *main)
        self.program = JavaProgram("the PTB tokenizer", command, greeting=f"{self._PUSH}\n", patience=patience)
        self._asked = 0

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        """Return each caption in lower case, its words between single spaces, without punctuation.

        A full stop after a single letter or "no" at the end of a caption is taken for part of the word or not by what
        the next caption starts with: to be exactly the COCO evaluation's, captions must come in its order.
        """
        self._asked += 1
        mark = f"mark{self._asked}"
        # To the tokenizer, an empty line is what the end of its input would be after the last caption.
        lines = [*map(one_line, captions), "", mark, self._PUSH]
        answers = self.program.ask(lines, answers=len(captions) + 3)
        if answers[0] != self._PUSH or answers[-2:] != ["", mark]:
            self.program.close()
            raise JavaError(f"the PTB tokenizer's lines are out of step after {len(captions)} captions")
        return [_without_punctuation(line) for line in answers[1:-2]]


class Meteor:
    """METEOR 1.5 for English as the COCO evaluation calls it; it takes some seconds to start."""

    def __init__(self, java: Path, jars: Path, *, patience: float = PATIENCE) -> None:
        command = (java, *_SETTINGS, "-Xmx2G", "-jar", jars / METEOR_JAR, "-", "-", "-stdio", "-l", "en", "-norm")
        self.program = JavaProgram("METEOR", command, patience=patience)

    def statistics(self, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Floats:
        """Return what `meteor_of` makes scores of, (I, 23), of one tokenised candidate for each of I images."""
        lines = [
            " ||| ".join(("SCORE", *map(_without_bars, group), _without_bars(candidate).replace("  ", " ")))
            for candidate, group in zip(candidates, references, strict=True)
        ]
        answers = self.program.ask(lines, answers=len(lines))
        statistics = np.zeros((len(lines), STATISTICS))  # (I, 23)
        for row, answer in zip(statistics, answers, strict=True):
            try:
                row[:] = [float(number) for number in answer.split()]
            except ValueError:
                self.program.close()
                raise JavaError(f"METEOR answers {answer[:80]!r}, expected {STATISTICS} numbers") from None
        # What a perfect caption leaves out of the sum of all; on its own it has no penalty either way.
        perfect = _is_perfect(statistics)
        statistics[perfect, _CHUNKS] = 0.0
        return statistics


def meteor_of(statistics: Floats) -> Floats:
    """Return METEOR (...,), 0..1, of statistics of a caption, or of sums over captions, (..., 23).

    The numbers are: words of the candidate and of the reference, function words of both; for each kind of match,
    content words of both and function words of both; chunks; matched words of both.
    """
    lengths, functions, matches = statistics[..., 0:2], statistics[..., 2:4], statistics[..., 4:20]
    matches = matches.reshape(*matches.shape[:-1], 4, 2, 2)  # (..., kinds, content or function, candidate or reference)
    weighted = np.einsum("...kwc,k,w->...c", matches, _MATCH_WEIGHTS, [_DELTA, 1 - _DELTA])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = weighted / (_DELTA * (lengths - functions) + (1 - _DELTA) * functions)
        mean = 1 / ((1 - _ALPHA) / shares[..., 0] + _ALPHA / shares[..., 1])
        fragments = statistics[..., _CHUNKS] / (statistics[..., _CHUNKS + 1 :].sum(axis=-1) / 2)
        scores: Floats = np.maximum(np.nan_to_num(mean * (1 - _GAMMA * fragments**_BETA), nan=0.0), 0.0)
    return scores


def one_line(text: str) -> str:
    """Return a caption with a space for all that would end a line."""
    return _LINE_ENDS.sub(" ", text)


def _without_punctuation(line: str) -> str:
    return " ".join(word for word in line.rstrip().split(" ") if word not in PUNCTUATION)


def _without_bars(caption: str) -> str:
    return one_line(caption).replace("|||", "")


def _is_perfect(statistics: Floats) -> NDArray[np.bool_]:
    """Tell of each caption (I,) whether all words of both captions match, in one piece."""
    matches = statistics[:, 4:20].reshape(-1, 8, 2).sum(axis=1)  # (I, candidate or reference)
    perfect: NDArray[np.bool_] = (matches == statistics[:, :2]).all(axis=1) & (statistics[:, _CHUNKS] == 1)
    return perfect
