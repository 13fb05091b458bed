"""Time of BLEU, ROUGE-L and CIDEr-D in this process, against pycocoevalcap's on the same tokenised captions.

    python experiments/benchmarks/metrics.py [PATH/TO/FLICKR8K]

With a data set, the first caption of each test image is held against the image's others; without, captions are made
up, with five references an image. Rounds of both in turn are added up, so that a busy spell of the machine meets both.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu, rouge_l
from captioner.evaluation.metrics.judge import Judge

Captions = tuple[list[str], list[list[str]]]
# Each gives the scores of all images, by row: those of every image, the corpus score last.
Metric = Callable[[list[str], list[list[str]]], NDArray[np.float64]]


def main() -> None:
    """Print the times of both by metric, their ratio, and the largest difference of any score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    candidates, references = real_captions(options.data, options.images) if options.data else made_up(options.images)
    source = options.data.name if options.data else "made up"
    sizes = sorted({len(texts) for texts in references})
    many = " or ".join(map(str, sizes))
    print(f"{len(candidates):,} images ({source}) with {many} references, {options.rounds} rounds")
    print(f"{'':10}{'captioner':>12}{'pycocoevalcap':>16}{'ratio':>8}  largest difference")
    times = np.zeros((len(METRICS), options.rounds, 2))
    differences = np.zeros(len(METRICS))
    for turn in range(options.rounds):
        for number, (ours, other) in enumerate(METRICS.values()):
            results = []
            for who, metric in enumerate((ours, other)):
                started = time.perf_counter()
                results.append(metric(candidates, references))
                times[number, turn, who] = time.perf_counter() - started
            differences[number] = max(differences[number], np.abs(results[0] - results[1]).max())
    for name, taken, difference in zip(METRICS, times, differences, strict=True):
        show(name, taken, difference)
    show("together", times.sum(axis=0), differences.max())


def show(name: str, taken: NDArray[np.float64], difference: float) -> None:
    """Print one row: mean times, (rounds, 2) in seconds, how many times faster, and the difference of scores."""
    ours, other = taken.mean(axis=0)
    ratios = taken[:, 1] / taken[:, 0]
    spread = f"rounds from {ratios.min():.1f} to {ratios.max():.1f}"
    print(f"{name:10}{ours:10.3f} s{other:14.3f} s{other / ours:8.1f}  {difference:.1e}  ({spread})")


def real_captions(data: Path, count: int) -> Captions:
    """Return the first caption of each test image and its others, tokenised as the evaluation does."""
    captions = [list(image.captions) for image in load_dataset(data).split("test") if len(image.captions) > 1][:count]
    with Judge() as judge:
        words = iter(judge.tokenize([text for texts in captions for text in texts]))
        print(f"tokenizer: {judge.tokenizer}")
    tokens = [[next(words) for _ in texts] for texts in captions]
    return [texts[0] for texts in tokens], [texts[1:] for texts in tokens]


def made_up(count: int, references: int = 5) -> Captions:
    """Return captions of words that are as unevenly frequent as those of a language, the same at every run."""
    chance = random.Random(0)
    words = [f"word{rank}" for rank in range(2000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]

    def caption() -> str:
        return " ".join(chance.choices(words, weights, k=chance.randint(6, 16)))

    return [caption() for _ in range(count)], [[caption() for _ in range(references)] for _ in range(count)]


def own_bleu(candidates: list[str], references: list[list[str]]) -> NDArray[np.float64]:
    """Return BLEU-1 to BLEU-4 of each image and of all, (I + 1, 4), by captioner."""
    scores = bleu(candidates, references)
    return np.vstack([scores.captions, scores.corpus])


def own_rouge_l(candidates: list[str], references: list[list[str]]) -> NDArray[np.float64]:
    """Return ROUGE-L of each image and of all, (I + 1,), by captioner."""
    scores = rouge_l(candidates, references)
    return np.append(scores, scores.mean())


def own_cider(candidates: list[str], references: list[list[str]]) -> NDArray[np.float64]:
    """Return CIDEr-D of each image and of all, (I + 1,), by captioner."""
    scores = CiderD(references).score(candidates)
    return np.append(scores, scores.mean())


def official(scorer: Any, **options: Any) -> Metric:
    """Return one of pycocoevalcap's scorers as a function of captions, (I + 1,) or (I + 1, 4)."""

    def score(candidates: list[str], references: list[list[str]]) -> NDArray[np.float64]:
        results = {number: [text] for number, text in enumerate(candidates)}
        corpus, each = scorer.compute_score(dict(enumerate(references)), results, **options)
        return np.vstack([np.array(each).T, corpus]) if isinstance(corpus, list) else np.append(each, corpus)

    return score


METRICS: dict[str, tuple[Metric, Metric]] = {
    "BLEU": (own_bleu, official(Bleu(4), verbose=0)),
    "ROUGE-L": (own_rouge_l, official(Rouge())),
    "CIDEr-D": (own_cider, official(Cider())),
}


if __name__ == "__main__":
    main()
