"""Validation within a run: every set is captioned and scored, and what is found is logged, drawn and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from captioner.model.encoders.encoder import Encoder
from captioner.model.search_settings import SearchConfig
from captioner.processes import Processes
from captioner.training.data import TrainingData, ValidationSet
from captioner.training.learner import Learner
from captioner.training.listener import Listener
from captioner.training.recipe import Recipe
from captioner.training.regions import RegionReader
from captioner.training.run_folder import RunFolder
from captioner.training.validation import Findings, validate


class Validator:
    """Scores a run on every validation set, and reports what it finds: in the log, figures, curves, to the listener."""

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingData,
        encoder: Encoder,
        learner: Learner,
        run: RunFolder,
        processes: Processes,
        listener: Listener,
        device: str,
    ) -> None:
        self.recipe, self.data, self.encoder, self.learner = recipe, data, encoder, learner
        self.run, self.processes, self.listener, self.device = run, processes, listener, device
        self.warned = False  # of attention that has collapsed

    def score(self, reader: RegionReader, tick: Callable[[int, int], None]) -> tuple[list[Findings], float]:
        """Return what is found on each validation set, and the mean score; `tick` hears how many of all are done."""
        settings = self.recipe.validation
        search = SearchConfig(beam=settings.beam, length_power=settings.length_power)
        found: list[Findings] = []
        with self.learner.averaged():
            for each in self.data.validation:
                read = partial(reader.read_set, each, device=self.device)
                arguments = (self.learner.decoder, self.data.vocabulary, each, search, self.processes)
                found.append(validate(*arguments, read=read, loss=self.recipe.loss, tick=tick))
        return found, sum(each.scores[settings.metric] for each in found) / len(found)

    def report(self, epoch: int, step: int, found: Sequence[Findings], seconds: float) -> None:
        """Report what was found on each validation set after an epoch (from 0)."""
        for validation, findings in zip(self.data.validation, found, strict=True):
            scores, name = findings.scores, {"set": validation.name} if len(found) > 1 else {}
            folder = f"epoch-{epoch + 1:03d}" + (f"/{validation.name}" if len(found) > 1 else "")
            line = {"step": step, "epoch": epoch + 1, **name, **scores, "images": len(validation.images)}
            samples = self._draw(folder, validation, findings)
            self.run.log(line | {"seconds": round(seconds, 1)} | ({"samples": samples} if samples else {}))
            shown = ", ".join(f"{key} {scores[key]:.1f}" for key in ("bleu1", "bleu4", "cider"))
            loss = f"loss {scores['validation_loss']:.3f}"
            self.listener.say(f"epoch {epoch + 1}: {validation.name} {shown}, {loss} ({seconds:.0f} s)")
            if findings.is_collapsed and self.recipe.attention.mode != "none" and not self.warned:
                self.warned = True
                self.listener.warn(
                    f"epoch {epoch + 1}: attention has collapsed on {validation.name}: from word to word only "
                    f"{scores['movement']:.1%} of the weights move"
                )
        self.run.draw_curves()

    def _draw(self, folder: str, validation: ValidationSet, findings: Findings) -> list[dict[str, Any]]:
        """Draw word grids of images spread over the set; return what the log tells of them."""
        count = min(self.recipe.validation.overlays, len(validation.images))
        chosen = [index * len(validation.images) // count for index in range(count)]
        return self.run.draw_overlays(
            folder,
            [validation.images[index] for index in chosen],
            [findings.hypotheses[index] for index in chosen],
            self.data.vocabulary,
            self.encoder,
            validation.cache,
        )
