"""What an epoch does: its plan of batches, where their regions come from, and its steps.

First come epochs of teacher forcing, then those on rewards.
"""

from __future__ import annotations

from functools import cached_property

from captioner.model.regions import Regions
from captioner.training.batches import Batch, EpochPlan
from captioner.training.criterion import Numbers
from captioner.training.objects import BatchObjects, ObjectFinder
from captioner.training.recipe import Recipe
from captioner.training.regions import RegionReader
from captioner.training.rewards import Rewards
from captioner.training.start import Start

LONGEST_SAMPLE = 20  # words of a caption that is sampled for a reward


class Epochs:
    """All epochs of a recipe, counted from 0."""

    def __init__(self, recipe: Recipe, start: Start) -> None:
        self.recipe = recipe
        self.encoder, self.data, self.learner = start.encoder, start.data, start.learner
        self.count = recipe.epochs + recipe.self_critical.epochs
        self._objects: ObjectFinder | None = None
        if self.data.boxes is not None:
            preprocessing, grid = self.encoder.preprocessing, self.encoder.grid
            self._objects = ObjectFinder(self.data.boxes, self.data.vocabulary, preprocessing, grid)
        self._rewards: Rewards | None = None

    @cached_property
    def steps(self) -> tuple[int, int]:
        """How many steps there are in all: of teacher forcing, and on rewards; epochs of a kind have equally many."""
        epochs, more = self.recipe.epochs, self.recipe.self_critical.epochs
        return epochs * len(self.plan(0)) if epochs else 0, more * len(self.plan(epochs)) if more else 0

    def plan(self, epoch: int) -> EpochPlan:
        """Return the batches of an epoch."""
        critical, critic = epoch >= self.recipe.epochs, self.recipe.self_critical
        return EpochPlan(
            self.data.corpus,
            self.recipe.batches,
            self.recipe.seed,
            epoch,
            captions=critic.samples if critical else 0,
            least_captions=critic.least_captions,
            references=critical and critic.cross_entropy > 0,
        )

    def reader(self, epoch: int) -> RegionReader:
        """Return where the regions of an epoch come from; the encoder is ready to be trained where it is to be."""
        if not self.recipe.tuning.is_active(epoch):
            return RegionReader(self.data, self.encoder)
        blocks = self.recipe.tuning.blocks
        self.encoder.unfreeze(blocks)
        self.encoder.eval()  # statistics of batches stay as they were: those of sixteen images are too rough
        return RegionReader(self.data, self.encoder, blocks)

    def objects(self, plan: EpochPlan) -> ObjectFinder | None:
        """Return what finds the objects of an epoch's batches, None where they teach nothing."""
        losses = self.recipe.loss
        teaches = (losses.guide or losses.objects) and (not plan.sampled or plan.references is not None)
        return self._objects if teaches else None

    def step(
        self, plan: EpochPlan, step: int, batch: Batch, regions: Regions, objects: BatchObjects | None, flag: bool
    ) -> Numbers:
        """Train on a batch, after so many steps in all, and return what is to be known of it.

        The `flag` is shared among processes: set in one, it comes back set in all.
        """
        learner, (total, _) = self.learner, self.steps
        if learner.decoder.attention is not None:
            learner.decoder.attention.anneal(step, total)
        if plan.epoch >= self.recipe.epochs:
            critic = self.recipe.self_critical
            if self._rewards is None:
                corpus, vocabulary, boxes = self.data.corpus, self.data.vocabulary, self.data.boxes
                self._rewards = Rewards(corpus, vocabulary, LONGEST_SAMPLE, critic, boxes)
            loss, numbers = learner.self_critical_loss(batch, regions, self._rewards, objects)
            # The encoder's is as much smaller as the decoder's.
            rates = (critic.rate, self.recipe.tuning.rate * critic.rate / self.recipe.optimiser.rate)
        else:
            loss, numbers = learner.teacher_forcing_loss(batch, regions, objects)
            share = self.recipe.schedule.rate_share(step, total, len(plan))
            rates = (share * self.recipe.optimiser.rate, share * self.recipe.tuning.rate)
        return learner.optimise(loss, numbers, rates, step, flag) | {"rate": rates[0]}
