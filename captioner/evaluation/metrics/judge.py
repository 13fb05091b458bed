"""Scores of raw captions as the COCO caption evaluation gives them, of a whole set, of each image and of resamples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.vocabulary import tokenize as own_tokenize
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu, bleu_of, check_captions, rouge_l
from captioner.evaluation.metrics.java import PATIENCE, JavaError, find_java, why_not
from captioner.evaluation.metrics.meteor_and_ptb import Meteor, PtbTokenizer, can_run_meteor, find_jars, meteor_of

PTB = "PTB (Stanford CoreNLP 3.4.1)"
INSTALL = "pip install 'captioner[java]'"
_KEPT_LISTS = 8  # of captions whose words are remembered

Floats = NDArray[np.float64]


def _cider(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Floats:
    return CiderD(references).score(candidates)


# Metrics whose score of a set is the mean over its images: tokenised captions and references to scores (I,), which are
# shown times 100.
MEANS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], Floats]] = {"rouge_l": rouge_l, "cider": _cider}


@dataclass(frozen=True)
class Scores:
    """Scores of one caption for each of I images, in per cent; `meteor` is there only where Java is.

    `corpus` and `images` (I,) have the keys bleu1, bleu2, bleu3, bleu4, meteor, and those of `MEANS`, in this order.
    `candidates` and `references` are the captions as tokenised. `bleu_statistics` (I, 10) and `meteor_statistics`
    (I, 23) are what the two scores that are no means over images are made of.
    """

    corpus: dict[str, float]
    images: dict[str, Floats]
    candidates: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    bleu_statistics: Floats
    meteor_statistics: Floats | None

    def resample(self, rows: NDArray[np.integer]) -> dict[str, Floats]:
        """Return the corpus scores (R,) of sets of images, given as image numbers, 0..I-1, (R, any).

        BLEU and METEOR are those of each set as a whole, the others its means. In CIDEr the rarity of n-grams stays
        that of all I images, as it is a property of the data rather than of the sample.
        """
        total = len(self.candidates)
        if rows.ndim != 2 or not rows.size or rows.min() < 0 or rows.max() >= total:
            raise ValueError(f"rows of shape {rows.shape} are no (R, any) image numbers in 0..{total - 1}")
        # How often each image is in each set: sums over a set are then one product.
        flat = (rows + total * np.arange(len(rows))[:, None]).ravel()
        times = np.bincount(flat, minlength=len(rows) * total).reshape(len(rows), total).astype(float)  # (R, I)
        precisions = bleu_of(times @ self.bleu_statistics)  # (R, 4)
        found = {f"bleu{length}": 100 * precisions[:, length - 1] for length in (1, 2, 3, 4)}
        if self.meteor_statistics is not None:
            found["meteor"] = 100 * meteor_of(times @ self.meteor_statistics)
        means = {name: each for name, each in self.images.items() if name not in found}
        return found | {name: times @ each / rows.shape[1] for name, each in means.items()}


class Judge:
    """Tokenises and scores captions as the COCO evaluation does, for as many calls as wanted with one start of Java.

    `java` is the path of a runtime, "auto" for the one that is found, or None to do without. `tokenizer` says whose
    words are compared. `missing` says in one line what is left out and how to get it, or is None. Java's programs are
    started when they are needed, or by `start`, and ended by `close` or on leaving the context.
    """

    def __init__(self, java: Path | Literal["auto"] | None = "auto", *, patience: float = PATIENCE) -> None:
        self._ptb: PtbTokenizer | None = None
        self._meteor: Meteor | None = None
        path, jars = java if isinstance(java, Path) else None, find_jars()
        lack, remedy = "Java is switched off", ""
        if java == "auto":
            found = find_java()
            path, lack, remedy = found.path, "no Java was found", f" ({found.reason}); {INSTALL} brings one"
        elif path and (reason := why_not(path)):
            raise JavaError(f"the Java runtime {path} {reason}")
        if path and not jars:
            lack, remedy = "pycocoevalcap is not installed", f"; {INSTALL} brings it"
        elif path and jars:
            self._ptb = PtbTokenizer(path, jars, patience=patience)
            self._meteor = Meteor(path, jars, patience=patience) if can_run_meteor(jars) else None
        self.tokenizer = PTB if self._ptb else f"captioner's own, since {lack}"
        self.missing = None if self._ptb else f"no METEOR and no PTB tokenizer, since {lack}{remedy}"
        if self._ptb and not self._meteor:
            self.missing = f"no METEOR, since it runs from no folder with a space or an accent in its name: {jars}"
        self._lists: OrderedDict[tuple[str, ...], list[str]] = OrderedDict()

    def start(self) -> None:
        """Start Java's programs, which load for seconds, while the caller has other things to do."""
        for part in (self._ptb, self._meteor):
            if part:
                part.program.start()

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        """Return each caption as lower-case words between single spaces, without punctuation.

        Lists are remembered whole, rather than captions: a caption's words can depend on the one after it.
        """
        key = tuple(captions)
        if key not in self._lists:
            if self._ptb:
                self._lists[key] = self._ptb.tokenize(key)
            else:
                self._lists[key] = [" ".join(own_tokenize(caption)) for caption in key]
            while len(self._lists) > _KEPT_LISTS:
                self._lists.popitem(last=False)
        self._lists.move_to_end(key)
        return list(self._lists[key])

    def score(self, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
        """Score raw captions, one for each of I images, against the image's own."""
        if not candidates:
            raise ValueError("there are no captions to score")
        check_captions(candidates, references)
        self.start()
        said = self.tokenize(candidates)
        flat = iter(self.tokenize([text for texts in references for text in texts]))
        others = [[next(flat) for _ in texts] for texts in references]
        words = bleu(said, others)
        corpus = {f"bleu{length}": float(words.corpus[length - 1]) for length in (1, 2, 3, 4)}
        images = {f"bleu{length}": words.captions[:, length - 1] for length in (1, 2, 3, 4)}
        statistics = None
        if self._meteor:
            statistics = self._meteor.statistics(said, others)
            corpus["meteor"], images["meteor"] = float(meteor_of(statistics.sum(axis=0))), meteor_of(statistics)
        for name, metric in MEANS.items():
            images[name] = metric(said, others)
            corpus[name] = float(images[name].mean())
        return Scores(
            {name: 100 * score for name, score in corpus.items()},
            {name: 100 * each for name, each in images.items()},
            tuple(said),
            tuple(map(tuple, others)),
            words.statistics,
            statistics,
        )

    def close(self) -> None:
        """End Java's programs; a later call starts them anew."""
        for part in (self._ptb, self._meteor):
            if part:
                part.program.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
