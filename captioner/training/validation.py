"""Free-running validation: captions searched for as in use, scored against the references of the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import Vocabulary
from captioner.evaluation.analysis.diagnostics import STILL, total_variation
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu
from captioner.model.config import SearchConfig
from captioner.model.decoder import Decoder
from captioner.model.search.beam import Hypothesis, beam_search
from captioner.processes import Processes
from captioner.training.data import ValidationSet
from captioner.training.region_sources import ReadRegions

BATCH = 64  # images


@dataclass(frozen=True)
class Findings:
    """What validation found: scores in per cent, and the caption of each image."""

    scores: dict[str, float]
    hypotheses: list[Hypothesis]

    @property
    def is_collapsed(self) -> bool:
        """Whether the weights are about the same at every word of a caption."""
        return 0 <= self.scores["movement"] < STILL


def validate(
    decoder: Decoder,
    vocabulary: Vocabulary,
    own: ValidationSet,
    config: SearchConfig,
    processes: Processes,
    *,
    device: str,
    read: ReadRegions,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Findings:
    """Search for a caption of each image, shared among the processes with each image once, and score them all.

    `read` gives the regions of images. `tick` is called with the images done and all after
    each batch, equally often in every process, and may raise to stop.
    """
    mine = own.images[processes.rows()]
    found: list[Hypothesis] = []
    for start in range(0, -(-len(own.images) // processes.count), BATCH):
        if images := mine[start : start + BATCH]:
            regions = torch.from_numpy(read(images)).to(device).float()  # (B, L, D)
            found += [best for (best,) in beam_search(decoder, regions, config)]
        tick(len(found), len(mine))
    parts = processes.gather([_on_cpu(hypothesis) for hypothesis in found])
    hypotheses = [parts[index % processes.count][index // processes.count] for index in range(len(own.images))]
    return Findings(_score(own.images, hypotheses, vocabulary), hypotheses)


def _on_cpu(hypothesis: Hypothesis) -> Hypothesis:
    return replace(
        hypothesis,
        probabilities=hypothesis.probabilities.cpu(),
        alpha=hypothesis.alpha.cpu(),
        beta=hypothesis.beta.cpu(),
    )


def _score(
    images: Sequence[CaptionedImage], hypotheses: Sequence[Hypothesis], vocabulary: Vocabulary
) -> dict[str, float]:
    candidates = [" ".join(vocabulary.words(hypothesis.ids)) for hypothesis in hypotheses]
    references = [[" ".join(words) for words in image.tokenized()] for image in images]
    corpus = bleu(candidates, references).corpus
    scores = {f"bleu{length}": 100 * float(score) for length, score in enumerate(corpus, start=1)}
    scores["cider"] = 100 * float(CiderD(references).score(candidates).mean())
    scores["words"] = float(np.mean([len(hypothesis.ids) for hypothesis in hypotheses]))
    scores["distinct"] = 100 * len(set(candidates)) / len(candidates)
    scores["movement"] = _movement(hypotheses)
    return scores


def _movement(hypotheses: Sequence[Hypothesis]) -> float:
    """Return how much of the weights moves from one word to the next, 0..1 on average; -1 where no caption can tell."""
    weights = [hypothesis.alpha.numpy() for hypothesis in hypotheses if len(hypothesis.ids) > 1]
    moves = [float(total_variation(alpha[1:], alpha[:-1]).mean()) for alpha in weights]
    return float(np.mean(moves)) if moves else -1.0
