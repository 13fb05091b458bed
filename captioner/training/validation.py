"""Validation: captions searched for as in use and scored against references, and the loss of these references."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import PAD, Vocabulary
from captioner.evaluation.analysis.diagnostics import STILL, total_variation
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu
from captioner.model.decoder import Decoder
from captioner.model.losses import word_losses
from captioner.model.regions import Regions
from captioner.model.search.beam import Hypothesis, beam_search
from captioner.model.search_settings import SearchConfig
from captioner.processes import Processes
from captioner.training.data import ValidationSet
from captioner.training.settings import LossConfig

BATCH = 64  # images
ReadRegions = Callable[[Sequence[CaptionedImage]], Tensor | Regions]


@dataclass(frozen=True)
class Findings:
    """What validation found: scores in per cent, the loss of the references, and the caption of each image."""

    scores: dict[str, float]
    hypotheses: list[Hypothesis]

    @property
    def is_collapsed(self) -> bool:
        """Whether the weights are about the same at every word of a caption."""
        return 0 <= self.scores["movement"] < STILL


def validate(
    decoder: Decoder,
    vocabulary: Vocabulary,
    validation: ValidationSet,
    config: SearchConfig,
    processes: Processes,
    *,
    read: ReadRegions,
    loss: LossConfig | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Findings:
    """Search for a caption of each image, shared among the processes with each image once, and score them all.

    `read` gives the regions (B, L, D) of images, on the decoder's device. The loss of the references is the cross
    entropy that `loss` asks for, as in training but without dropout and penalty. `tick` is called with the images done
    and all after each batch, equally often in every process, and may raise to stop.
    """
    loss = loss or LossConfig()
    mine = validation.images[processes.rows()]
    found: list[Hypothesis] = []
    sums = np.zeros(4)
    for start in range(0, -(-len(validation.images) // processes.count), BATCH):
        if images := mine[start : start + BATCH]:
            regions = read(images)
            found += [best for (best,) in beam_search(decoder, regions, config)]
            sums += _sum_losses(decoder, regions, images, vocabulary, loss.smoothing)
        tick(len(found), len(mine))
    shares = processes.gather([[_on_cpu(hypothesis) for hypothesis in found], sums.tolist()])
    hypotheses = [
        shares[index % processes.count][0][index // processes.count] for index in range(len(validation.images))
    ]
    losses, nll, words, captions = np.sum([share[1] for share in shares], axis=0).tolist()
    scores = _score(validation.images, hypotheses, vocabulary)
    scores["validation_loss"] = losses / (captions if loss.reduction == "sum" else words)
    scores["perplexity"] = math.exp(min(nll / words, 700.0))  # beyond which no float goes
    return Findings(scores, hypotheses)


@torch.no_grad()
def _sum_losses(
    decoder: Decoder,
    regions: Tensor | Regions,
    images: Sequence[CaptionedImage],
    vocabulary: Vocabulary,
    smoothing: float,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return sums over all captions of images, regions (B, L, D): losses, negative log likelihoods, words, captions.

    One caption of each image at a time, the longest first: scores of all words of all of them would be a great many.
    """
    encoded = [
        sorted((vocabulary.encode(words) for words in image.tokenized()), key=len, reverse=True) for image in images
    ]
    sums = np.zeros(4)
    for number in range(max(map(len, encoded))):
        captions = [ids[number] if number < len(ids) else [] for ids in encoded]
        longest = max(map(len, captions))
        padded = [[*ids, *[PAD] * (longest - len(ids))] for ids in captions]
        caption_ids = torch.tensor(padded, device=regions.device).unsqueeze(1)  # (B, 1, T + 1)
        mask = caption_ids[:, :, 1:] != PAD  # (B, 1, T)
        logits = decoder(regions, caption_ids, mask=mask).logits  # (W, V)
        losses, nll = word_losses(logits, caption_ids[:, :, 1:][mask], smoothing)  # (W,)
        sums += [losses.sum().item(), nll.sum().item(), len(losses), sum(map(bool, captions))]
    return sums


def _on_cpu(hypothesis: Hypothesis) -> Hypothesis:
    return replace(
        hypothesis,
        probabilities=hypothesis.probabilities.cpu(),
        alpha=hypothesis.alpha.cpu(),
        beta=hypothesis.beta.cpu(),
        points=hypothesis.points.cpu() if hypothesis.points is not None else None,
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
