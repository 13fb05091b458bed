"""Training: epochs of batches, validation, checkpoints, and going on exactly where a run stopped.

Everything random follows from the seed, the epoch and the batch, and everything scheduled from the step; so a run that
goes on from a checkpoint does what the uninterrupted one would have done, to the bit.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.model.checkpoint import Checkpoint, TrainingState, load_checkpoint, save_checkpoint
from captioner.model.config import SearchConfig
from captioner.processes import Processes
from captioner.training.batches import Batch, EpochPlan
from captioner.training.data import read_batches
from captioner.training.learner import Numbers
from captioner.training.recipe import Experiment, experiment_to_dict
from captioner.training.region_sources import CachedRegions, RegionSource, TunedBlocks, TunedEncoder
from captioner.training.rewards import Rewards
from captioner.training.run_folder import RunFolder
from captioner.training.schedules import rate_share, temperature
from captioner.training.start import Position, original_encoder, start_run
from captioner.training.validation import Findings, validate

LONGEST_SAMPLE = 20  # words of a caption that is sampled for a reward
PATIENCE_WITH_NOTHING = 20  # steps in a row that may come to nothing


class Listener(Protocol):
    """Who is told how training goes."""

    def say(self, text: str) -> None:
        """Take note of something."""

    def warn(self, text: str) -> None:
        """Take note of something that looks wrong."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Take note that so much of something is done."""

    def step(self, position: Position, batches: int, numbers: Numbers) -> None:
        """Take note of a step, one of so many batches of its epoch."""


class Stopped(Exception):
    """Training was asked to stop, and everything is saved."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its best score and the folder of that model."""

    metric: str
    best: float | None
    folder: Path
    steps: int


def train(
    experiment: Experiment,
    folder: Path,
    *,
    processes: Processes,
    listener: Listener,
    device: str = "cpu",
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train what `experiment` says into the run folder, or go on with the run there; return how it ended.

    `stop` is asked between steps, in every process; once it is True in one, all is saved and Stopped is raised.
    """
    if experiment.precision == "float16" and not device.startswith("cuda"):
        raise ValueError(f"precision float16 needs a CUDA device, not {device}; choose bfloat16 or float32")
    with RunFolder(folder) as run:
        if run.has_run():
            if not resume:
                hint = "add --resume to go on with it, or name another with --run"
                raise ValueError(f"{folder} has a run already; {hint}")
            run.check_settings(experiment)
            if processes.is_first:
                run.hold()
        return _Training(experiment, run, processes, listener, device, stop).run_all()


class _Training:
    """One run, from where it stands to its end."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunFolder,
        processes: Processes,
        listener: Listener,
        device: str,
        stop: Callable[[], bool],
    ) -> None:
        self.experiment, self.run, self.processes = experiment, run, processes
        self.listener, self.device, self.stop = listener, device, stop
        start = start_run(experiment, run, processes, device=device, say=listener.say, progress=self._progress)
        self.encoder, self.data, self.learner = start.encoder, start.data, start.learner
        self.position, self.kept = start.position, start.kept
        if processes.is_first:
            run.begin(experiment, start.log_bytes)
        self.rewards: Rewards | None = None
        self.warned = False  # of attention that has collapsed
        self.identity = self.encoder.identity()
        self.plan_lengths: dict[bool, int] = {}

    def _progress(self, what: str, done: int, total: int) -> None:
        if self.stop():
            raise KeyboardInterrupt  # caches keep what is done, and nothing else has begun
        self.listener.progress(what, done, total)

    # ------------------------------------------------------------------------------------------------ the run

    def run_all(self) -> Outcome:
        """Train all epochs that are left."""
        experiment = self.experiment
        last = experiment.epochs + experiment.self_critical.epochs
        while self.position.epoch < last:
            epoch = self.position.epoch
            plan = self._plan(epoch)
            source = self._source(epoch)
            self._run_epoch(plan, source)
            due = (epoch + 1) % experiment.validation.every == 0 or epoch + 1 in (experiment.epochs, last)
            if due:
                self._validate(epoch, source)
            self._finish_epoch(epoch, save=due)
        return Outcome(experiment.validation.metric, self.position.best, self.run.best, self.position.step)

    def _plan(self, epoch: int) -> EpochPlan:
        critical = epoch >= self.experiment.epochs
        samples = self.experiment.self_critical.samples if critical else 0
        plan = EpochPlan(self.data.corpus, self.experiment.batches, self.experiment.seed, epoch, captions=samples)
        self.plan_lengths[critical] = len(plan)  # the same in every epoch of a kind
        return plan

    def _is_tuned(self, epoch: int) -> bool:
        return 0 < self.experiment.tuning.from_epoch <= epoch + 1

    def _source(self, epoch: int) -> RegionSource:
        """Return where the regions of an epoch come from; the encoder is ready to be trained where it is to be."""
        if not self._is_tuned(epoch):
            return CachedRegions(self.data)
        blocks = self.experiment.tuning.blocks
        self.encoder.unfreeze(blocks)
        self.encoder.eval()  # statistics of batches stay as they were: those of sixteen images are too rough
        if blocks:
            return TunedBlocks(self.data, self.encoder, blocks, self.device)
        return TunedEncoder(self.data, self.encoder, self.device)

    def _run_epoch(self, plan: EpochPlan, source: RegionSource) -> None:
        rows, began = self.processes.rows(), time.monotonic()

        def read(batch: Batch) -> NDArray[np.generic]:
            return source.read(batch.images[rows], batch.mirrored[rows])

        for batch, inputs in read_batches(plan, self.position.batch, read):
            tensor = torch.from_numpy(inputs).to(self.device)
            regions = source.regions(tensor) if len(tensor) else tensor.float()
            numbers = self._step(plan, batch, regions)
            ended = time.monotonic()
            self._note(plan, numbers, batch.caption_count / max(1e-9, ended - began))
            began = ended
            if numbers["flag"]:
                self._save_last()
                raise Stopped
            if self.experiment.save_every and self.position.step % self.experiment.save_every == 0:
                self._save_last()

    def _step(self, plan: EpochPlan, batch: Batch, regions: Tensor) -> Numbers:
        learner, step = self.learner, self.position.step
        total = self.experiment.epochs * self.plan_lengths.get(False, 0)
        learner.decoder.attention.temperature = temperature(self.experiment.attention, step, total)
        if plan.epoch >= self.experiment.epochs:
            critic = self.experiment.self_critical
            if self.rewards is None:
                self.rewards = Rewards(self.data.corpus, self.data.vocabulary, LONGEST_SAMPLE, critic.bleu_weight)
            loss, numbers = learner.criticise(batch, regions, self.rewards)
            # The encoder's is as much smaller as the decoder's.
            rates = (critic.rate, self.experiment.tuning.rate * critic.rate / self.experiment.optimiser.rate)
        else:
            loss, numbers = learner.measure(batch, regions)
            share = rate_share(self.experiment.schedule, step, total, len(plan))
            rates = (share * self.experiment.optimiser.rate, share * self.experiment.tuning.rate)
        return learner.optimise(loss, numbers, rates, step, self.stop()) | {"rate": rates[0]}

    def _note(self, plan: EpochPlan, numbers: Numbers, speed: float) -> None:
        """Move on by a step, and log it."""
        before = self.position
        skipped = before.skipped + 1 if numbers["skipped"] else 0
        self.position = replace(before, batch=before.batch + 1, step=before.step + 1, skipped=skipped)
        if skipped == 1:
            what = "gradient" if math.isfinite(numbers["loss"]) else "loss"
            self.listener.warn(f"step {before.step + 1}: the {what} is {numbers[what]}, not a finite number; left out")
        if skipped >= PATIENCE_WITH_NOTHING:
            raise ValueError(f"the loss was not finite {skipped} steps in a row; try a smaller optimiser.rate or clip")
        if self.processes.is_first:
            shown = {name: value for name, value in numbers.items() if name not in ("flag", "skipped")}
            line: dict[str, Any] = {"step": self.position.step, "epoch": plan.epoch + 1, **shown}
            self.run.log(line | {"captions_per_second": round(speed, 1), "memory_mb": round(_peak_memory(), 1)})
            self.listener.step(self.position, len(plan), numbers | {"captions_per_second": speed})

    # ------------------------------------------------------------------------------------------------ validation

    def _validate(self, epoch: int, source: RegionSource) -> None:
        """Score the model on every validation set, and keep it where it is the best so far."""
        settings = self.experiment.validation
        search = SearchConfig(beam=settings.beam, length_power=settings.length_power)
        began = time.monotonic()
        found = []
        try:
            with self.learner.averaged():
                for own in self.data.validation:
                    arguments = (self.learner.decoder, self.data.vocabulary, own, search, self.processes)
                    read = source.reader(own)
                    found.append(validate(*arguments, device=self.device, read=read, tick=self._tick))
        except Stopped:
            self._save_last()
            raise
        score = sum(each.scores[settings.metric] for each in found) / len(found)
        improved = self.position.best is None or score > self.position.best
        best = score if improved else self.position.best
        self.position = replace(self.position, best=best, waited=0 if improved else self.position.waited + 1)
        if self.processes.is_first:
            self._report(epoch, found, time.monotonic() - began)
            if improved:
                scores = {
                    f"{own.name} {name}": value for own, each in self._pairs(found) for name, value in each.items()
                }
                save_checkpoint(self.run.best, self._checkpoint(scores))

    def _pairs(self, found: list[Findings]) -> list[tuple[Any, dict[str, float]]]:
        return [(own, each.scores) for own, each in zip(self.data.validation, found, strict=True)]

    def _tick(self, done: int, total: int) -> None:
        self.listener.progress("validation", done, total)
        if any(self.processes.gather(self.stop())):
            raise Stopped

    def _report(self, epoch: int, found: list[Findings], seconds: float) -> None:
        for (own, scores), each in zip(self._pairs(found), found, strict=True):
            name = {"set": own.name} if len(found) > 1 else {}
            self.run.log(
                {"step": self.position.step, "epoch": epoch + 1, **name, **scores, "seconds": round(seconds, 1)}
            )
            shown = ", ".join(f"{key} {scores[key]:.1f}" for key in ("bleu1", "bleu4", "cider"))
            self.listener.say(f"epoch {epoch + 1}: {own.name} {shown} ({seconds:.0f} s)")
            if each.is_collapsed and self.experiment.attention.mode != "none" and not self.warned:
                self.warned = True
                self.listener.warn(
                    f"epoch {epoch + 1}: attention has collapsed on {own.name}: from word to word only "
                    f"{scores['movement']:.1%} of the weights move"
                )
            count = min(self.experiment.validation.overlays, len(own.images))
            chosen = [index * len(own.images) // count for index in range(count)]
            self.run.draw_overlays(
                f"epoch-{epoch + 1:03d}" if len(found) == 1 else f"epoch-{epoch + 1:03d}/{own.name}",
                [own.images[index] for index in chosen],
                [each.hypotheses[index] for index in chosen],
                self.data.vocabulary,
                self.encoder.preprocessing,
                self.encoder.grid,
            )
        self.run.draw_curves()

    def _finish_epoch(self, epoch: int, save: bool) -> None:
        """Move on to the next epoch, or to the next kind of them."""
        following, settings = epoch + 1, self.experiment.validation
        if settings.patience and self.position.waited >= settings.patience:
            last = self.experiment.epochs if epoch < self.experiment.epochs else math.inf
            following = int(min(last, self.experiment.epochs + self.experiment.self_critical.epochs))
            if following > epoch + 1:
                self.listener.say(
                    f"epoch {epoch + 1}: no better {settings.metric} for {self.position.waited} validations"
                )
        if epoch < self.experiment.epochs <= following and self.experiment.self_critical.epochs:
            self._adopt_best()
            self.position = replace(self.position, waited=0)
        self.position = replace(self.position, epoch=following, batch=0)
        if save:
            self._save_last()

    def _adopt_best(self) -> None:
        """Go on from the best weights so far, as the second stage does."""
        self.processes.wait()
        best = load_checkpoint(self.run.best)
        trunk = best.encoder_weights
        if trunk is None and self.experiment.tuning.from_epoch:  # the best was before the encoder changed
            trunk = original_encoder(self.experiment).trunk.state_dict()
        self.learner.adopt({"decoder": best.weights, "encoder": trunk or {}})

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _checkpoint(self, scores: dict[str, float]) -> Checkpoint:
        """Return the model as it stands, with averaged weights where there are some."""
        experiment = self.experiment
        tuned = self.encoder.upper(experiment.tuning.blocks).state_dict() if self._is_tuned(self.position.epoch) else {}
        kept = self.kept.union(tuned)
        with self.learner.averaged():
            weights = {name: value.clone() for name, value in self.learner.decoder.state_dict().items()}
            trunk = {name: value.clone() for name, value in self.encoder.trunk.state_dict().items() if name in kept}
            identity = self.encoder.identity() if self.experiment.tuning.from_epoch else self.identity
        return Checkpoint(
            experiment.encoder,
            identity,
            experiment.attention,
            experiment.decoder,
            self.data.vocabulary,
            weights,
            trunk or None,
            {name: round(value, 4) for name, value in scores.items() if math.isfinite(value)},
            experiment_to_dict(experiment),
            {"epoch": self.position.epoch, "batch": self.position.batch, "step": self.position.step},
        )

    def _save_last(self) -> None:
        if self.processes.is_first:
            state = self.learner.state()
            values = state.values | {"position": asdict(self.position), "log_bytes": self.run.log_bytes()}
            save_checkpoint(self.run.last, self._checkpoint({}), TrainingState(state.tensors, values))
        self.processes.wait()


def _peak_memory() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
