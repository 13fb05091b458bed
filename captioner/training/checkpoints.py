"""What a run saves: its best model, its newest one with all that it takes to resume, and the way back to the best."""

from __future__ import annotations

import math
from dataclasses import asdict

from captioner.model.checkpoint import Checkpoint, TrainingState, load_checkpoint, save_checkpoint
from captioner.processes import Processes
from captioner.training.recipe import Recipe, recipe_to_dict
from captioner.training.run_folder import RunFolder
from captioner.training.start import Position, Start, original_encoder


class CheckpointWriter:
    """Saves a run's models; only the first process writes."""

    def __init__(self, recipe: Recipe, start: Start, run: RunFolder, processes: Processes) -> None:
        self.recipe, self.run, self.processes = recipe, run, processes
        self.encoder, self.learner, self.vocabulary = start.encoder, start.learner, start.data.vocabulary
        self.kept, self.origin = start.kept, start.origin
        self.identity = start.encoder.identity()

    def save_best(self, position: Position, scores: dict[str, float]) -> None:
        """Save the model with its scores as the best so far."""
        if self.processes.is_first:
            save_checkpoint(self.run.best, self._checkpoint(position, scores))

    def save_last(self, position: Position) -> None:
        """Save the model and the state of its training; all processes wait until this is done."""
        if self.processes.is_first:
            state = self.learner.state()
            values = state.values | {"position": asdict(position), "log_bytes": self.run.log_bytes()}
            values["encoder"] = self.origin
            save_checkpoint(self.run.last, self._checkpoint(position, {}), TrainingState(state.tensors, values))
        self.processes.wait()

    def adopt_best(self) -> None:
        """Give the learner the best weights so far, as the second stage starts from them."""
        self.processes.wait()
        best = load_checkpoint(self.run.best)
        trunk = best.encoder_weights
        if trunk is None and self.recipe.tuning.from_epoch:  # the best was before the encoder changed
            trunk = original_encoder(self.recipe).trunk.state_dict()
        self.learner.adopt({"decoder": best.weights, "encoder": trunk or {}})

    def _checkpoint(self, position: Position, scores: dict[str, float]) -> Checkpoint:
        """Return the model as it stands, with averaged weights where there are some."""
        recipe = self.recipe
        tuned = self.encoder.upper(recipe.tuning.blocks).state_dict() if recipe.tuning.is_active(position.epoch) else {}
        kept = self.kept.union(tuned)
        with self.learner.averaged():
            weights = {name: value.clone() for name, value in self.learner.decoder.state_dict().items()}
            trunk = {name: value.clone() for name, value in self.encoder.trunk.state_dict().items() if name in kept}
            identity = self.encoder.identity() if recipe.tuning.from_epoch else self.identity
        return Checkpoint(
            recipe.encoder,
            identity,
            recipe.attention,
            recipe.decoder,
            self.vocabulary,
            weights,
            trunk or None,
            {name: round(value, 4) for name, value in scores.items() if math.isfinite(value)},
            recipe_to_dict(recipe),
            {"epoch": position.epoch, "batch": position.batch, "step": position.step},
        )
