"""A judge that needs no Java: BLEU and CIDEr-D of this process, words between spaces, means over resampled images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu


class ToyScores:
    def __init__(self, candidates: list[str], references: list[list[str]]) -> None:
        self.candidates, self.references = tuple(candidates), tuple(map(tuple, references))
        found = bleu(candidates, references)
        cider = 100 * CiderD(references).score(candidates)
        self.images = {"bleu1": 100 * found.captions[:, 0], "bleu4": 100 * found.captions[:, 3], "cider": cider}
        self.corpus = {
            "bleu1": 100 * float(found.corpus[0]),
            "bleu4": 100 * float(found.corpus[3]),
            "cider": float(cider.mean()),
        }

    def resample(self, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        return {name: values[rows].mean(axis=1) for name, values in self.images.items()}


class ToyJudge:
    tokenizer = "toy"
    missing: str | None = None

    def __enter__(self) -> ToyJudge:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        return [" ".join(caption.lower().replace(".", " ").split()) for caption in captions]

    def score(self, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        return ToyScores(self.tokenize(candidates), [self.tokenize(own) for own in references])
