"""Free-running validation: captions searched for as in use, scored against the references of the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import Vocabulary
from captioner.evaluation.analysis.diagnostics import STILL, total_variation
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu
from captioner.model.config import SearchConfig
from captioner.model.decoder import Decoder
from captioner.model.encoders.encoder import Encoder
from captioner.model.regions import Regions
from captioner.model.search.beam import Hypothesis, beam_search
from captioner.processes import Processes
from captioner.training.data import TrainingData, ValidationSet
from captioner.training.listener import Listener
from captioner.training.recipe import Recipe
from captioner.training.run_folder import RunFolder

BATCH = 64  # images
ReadRegions = Callable[[Sequence[CaptionedImage]], Tensor | Regions]


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
    validation: ValidationSet,
    config: SearchConfig,
    processes: Processes,
    *,
    read: ReadRegions,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Findings:
    """Search for a caption of each image, shared among the processes with each image once, and score them all.

    `read` gives the regions (B, L, D) of images, on the decoder's device. `tick` is called with the images done and all
    after each batch, equally often in every process, and may raise to stop.
    """
    mine = validation.images[processes.rows()]
    found: list[Hypothesis] = []
    for start in range(0, -(-len(validation.images) // processes.count), BATCH):
        if images := mine[start : start + BATCH]:
            found += [best for (best,) in beam_search(decoder, read(images), config)]
        tick(len(found), len(mine))
    parts = processes.gather([_on_cpu(hypothesis) for hypothesis in found])
    hypotheses = [parts[index % processes.count][index // processes.count] for index in range(len(validation.images))]
    return Findings(_score(validation.images, hypotheses, vocabulary), hypotheses)


class ValidationReporter:
    """Tells what validations found: the log, word grids of some images, curves, and who listens."""

    def __init__(
        self, recipe: Recipe, data: TrainingData, encoder: Encoder, run: RunFolder, listener: Listener
    ) -> None:
        self.recipe, self.data, self.encoder, self.run, self.listener = recipe, data, encoder, run, listener

    def report(self, epoch: int, step: int, found: Sequence[Findings], seconds: float, *, warn: bool) -> bool:
        """Report what was found on each validation set after an epoch (from 0); tell whether attention collapsed.

        With `warn` the first set on which it did is warned of.
        """
        collapsed = False
        for validation, findings in zip(self.data.validation, found, strict=True):
            scores, name = findings.scores, {"set": validation.name} if len(found) > 1 else {}
            self.run.log({"step": step, "epoch": epoch + 1, **name, **scores, "seconds": round(seconds, 1)})
            shown = ", ".join(f"{key} {scores[key]:.1f}" for key in ("bleu1", "bleu4", "cider"))
            self.listener.say(f"epoch {epoch + 1}: {validation.name} {shown} ({seconds:.0f} s)")
            if findings.is_collapsed and self.recipe.attention.mode != "none":
                if warn and not collapsed:
                    self.listener.warn(
                        f"epoch {epoch + 1}: attention has collapsed on {validation.name}: from word to word only "
                        f"{scores['movement']:.1%} of the weights move"
                    )
                collapsed = True
            folder = f"epoch-{epoch + 1:03d}" + (f"/{validation.name}" if len(found) > 1 else "")
            self._draw(folder, validation, findings)
        self.run.draw_curves()
        return collapsed

    def _draw(self, folder: str, validation: ValidationSet, findings: Findings) -> None:
        """Draw word grids of images spread over the set."""
        count = min(self.recipe.validation.overlays, len(validation.images))
        chosen = [index * len(validation.images) // count for index in range(count)]
        self.run.draw_overlays(
            folder,
            [validation.images[index] for index in chosen],
            [findings.hypotheses[index] for index in chosen],
            self.data.vocabulary,
            self.encoder,
            validation.cache,
        )


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
