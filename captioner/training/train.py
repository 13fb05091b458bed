"""Training: epochs of batches, validation, checkpoints, and resuming exactly where a run stopped.

Everything random follows from the seed, the epoch and the batch, and everything scheduled from the step; so a run that
resumes from a checkpoint does what the uninterrupted one would have done, to the bit.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from captioner.model.extensions import allow
from captioner.model.kernels.precision import is_too_slow
from captioner.processes import Processes
from captioner.training.batches import Batch, EpochPlan
from captioner.training.checkpoints import CheckpointWriter
from captioner.training.criterion import Numbers
from captioner.training.data import read_batches
from captioner.training.epochs import Epochs
from captioner.training.listener import Listener, Nobody
from captioner.training.log import OnLog
from captioner.training.objects import BatchObjects
from captioner.training.pages.run_page import PAGE, Length, showing
from captioner.training.recipe import Recipe, longer_than_run
from captioner.training.regions import Inputs, RegionReader
from captioner.training.resuming import check_extension, check_settings
from captioner.training.run_folder import RunFolder
from captioner.training.start import start_run
from captioner.training.validation import Findings
from captioner.training.validator import Validator

PATIENCE_WITH_NOTHING = 20  # steps in a row that may come to nothing


class Stopped(Exception):
    """Training was asked to stop, and everything is saved."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its best score, the epoch (from 1) and the folder of that model."""

    metric: str
    best: float | None
    best_epoch: int | None
    folder: Path
    steps: int


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    processes: Processes | None = None,
    listener: Listener | None = None,
    on_log: OnLog | None = None,
    track: Sequence[str] = (),
    device: str = "cpu",
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train what `recipe` says into the run folder, or resume the run there; return how it ended.

    `on_log` is called with every line of the log, a dict, in the first process; `track` names `TRACKERS` that are told
    too. `stop` is asked between steps, in every process; once it is True in one, all is saved and Stopped is raised.
    """
    processes, listener = processes or Processes(), listener or Nobody()
    if recipe.precision == "float16" and not device.startswith("cuda"):
        raise ValueError(f"precision float16 needs a CUDA device, not {device}; choose bfloat16 or float32")
    if is_too_slow(recipe.precision, device) and processes.is_first:
        listener.say(f"precision {recipe.precision} is slow on this machine, so products are in float32")
    allow(recipe.attention.score, recipe.encoder.name)  # whoever trains a recipe means the modules that it names
    with RunFolder(Path(folder), on_log) as run:
        if run.has_run():
            if not resume:
                hint = "add --resume to continue it, or name another with --run"
                raise ValueError(f"{folder} has a run already; {hint}")
            check_settings(recipe, run.settings(), run.folder)
            if run.can_resume():
                extended = check_extension(recipe, run.settings(), run.progress(run.last), run.folder)
                if extended is not None and processes.is_first:
                    listener.say(extended)
            if processes.is_first:
                run.hold()
        training = _Training(recipe, run, processes, listener, device, stop)
        with closing(training.data):
            training.start_trackers(track)
            with training.page():
                return training.run_all()


class _Training:
    """One run, from where it stands to its end."""

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        processes: Processes,
        listener: Listener,
        device: str,
        stop: Callable[[], bool],
    ) -> None:
        self.recipe, self.run, self.processes = recipe, run, processes
        self.listener, self.device, self.stop = listener, device, stop
        start = start_run(recipe, run, processes, device=device, say=listener.say, progress=self._progress)
        self.encoder, self.data = start.encoder, start.data
        self.position = start.position
        self.epochs = Epochs(recipe, start)
        self.checkpoints = CheckpointWriter(recipe, start, run, processes)
        if processes.is_first:
            run.begin(recipe, start.log_bytes)
        self.validator = Validator(recipe, self.data, self.encoder, start.learner, run, processes, listener, device)

    def _progress(self, what: str, done: int, total: int) -> None:
        if self.stop():
            raise KeyboardInterrupt  # caches keep what is done, and nothing else has begun
        self.listener.progress(what, done, total)

    def start_trackers(self, names: Sequence[str]) -> None:
        """Let trackers be told of the log; one that is not installed is warned of."""
        for name in dict.fromkeys(names) if self.processes.is_first else ():
            try:
                self.run.track(name, self.recipe)
            except ImportError as error:
                self.listener.warn(f"{error}; training continues without it")

    def page(self) -> AbstractContextManager[None]:
        """Return what keeps run.html up to date, in the first process."""
        length = Length(self.epochs.count, sum(self.epochs.steps))
        if not self.processes.is_first:
            return nullcontext()
        self.listener.say(f"{self.run.folder / PAGE} shows how it goes")
        return showing(self.run, self.recipe, length, stopped=(Stopped, KeyboardInterrupt))

    # ------------------------------------------------------------------------------------------------ the run

    def run_all(self) -> Outcome:
        """Train all epochs that are left."""
        recipe, last = self.recipe, self.epochs.count
        if not self.position.step:
            self._warn_of_lengths()
            if recipe.start and self.position.start_score is None:
                self._validate_start()
        while self.position.epoch < last:
            epoch = self.position.epoch
            plan = self.epochs.plan(epoch)
            reader = self.epochs.reader(epoch)
            self._run_epoch(plan, reader)
            due = (epoch + 1) % recipe.validation.every == 0 or epoch + 1 in (recipe.epochs, last)
            if due:
                self._validate(epoch, reader)
            self._finish_epoch(epoch, save=due)
        start, best = self.position.start_score, self.position.best
        if start is not None and best is not None and best <= start:
            compared = f"{best:.1f} against {start:.1f}"
            self.listener.warn(f"no epoch is better than the start: {recipe.validation.metric} {compared}")
        best_epoch = None if self.position.best is None else self.run.progress(self.run.best)["epoch"] + 1
        return Outcome(recipe.validation.metric, self.position.best, best_epoch, self.run.best, self.position.step)

    def _warn_of_lengths(self) -> None:
        for text in longer_than_run(self.recipe, *self.epochs.steps):
            self.listener.warn(text)

    def _run_epoch(self, plan: EpochPlan, reader: RegionReader) -> None:
        rows, began = self.processes.rows(), time.monotonic()
        finder = self.epochs.objects(plan)

        def load(batch: Batch) -> tuple[Inputs, BatchObjects | None]:
            images, mirrored = batch.images[rows], batch.mirrored[rows]
            found = finder.find(images, mirrored, batch.taught[rows]) if finder is not None else None
            return reader.load(images, mirrored), found

        for batch, (inputs, objects) in read_batches(plan, self.position.batch, load):
            regions, step = reader.encode(inputs, self.device), self.position.step
            numbers = self.epochs.step(plan, step, batch, regions, objects, self.stop())
            ended = time.monotonic()
            self._note(plan, numbers, batch.caption_count / max(1e-9, ended - began))
            began = ended
            if numbers["flag"]:
                self.checkpoints.save_last(self.position)
                raise Stopped
            if self.recipe.save_every and self.position.step % self.recipe.save_every == 0:
                self.checkpoints.save_last(self.position)

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

    def _validate_start(self) -> None:
        """Score the model that another run or model lent, as epoch 0."""
        began = time.monotonic()
        found, score = self._score(RegionReader(self.data, self.encoder))
        self.position = replace(self.position, start_score=score)
        if self.processes.is_first:
            self.validator.report(-1, self.position.step, found, time.monotonic() - began)

    def _validate(self, epoch: int, reader: RegionReader) -> None:
        """Score the model on every validation set, and keep it where it is the best so far."""
        began = time.monotonic()
        found, score = self._score(reader)
        improved = self.position.best is None or score > self.position.best
        best = score if improved else self.position.best
        self.position = replace(self.position, best=best, waited=0 if improved else self.position.waited + 1)
        if self.processes.is_first:
            self.validator.report(epoch, self.position.step, found, time.monotonic() - began)
        if improved:
            names = [each.name for each in self.data.validation]
            scores = {
                f"{name} {key}": value
                for name, each in zip(names, found, strict=True)
                for key, value in each.scores.items()
            }
            self.checkpoints.save_best(self.position, scores)

    def _score(self, reader: RegionReader) -> tuple[list[Findings], float]:
        try:
            return self.validator.score(reader, self._tick)
        except Stopped:
            self.checkpoints.save_last(self.position)
            raise

    def _tick(self, done: int, total: int) -> None:
        self.listener.progress("validation", done, total)
        if any(self.processes.gather(self.stop())):
            raise Stopped

    def _finish_epoch(self, epoch: int, save: bool) -> None:
        """Move on to the next epoch, or to the next kind of them."""
        following, settings = epoch + 1, self.recipe.validation
        if settings.patience and self.position.waited >= settings.patience:
            last = self.recipe.epochs if epoch < self.recipe.epochs else math.inf
            following = int(min(last, self.recipe.epochs + self.recipe.self_critical.epochs))
            if following > epoch + 1:
                self.listener.say(
                    f"epoch {epoch + 1}: no better {settings.metric} for {self.position.waited} validations"
                )
        if epoch < self.recipe.epochs <= following and self.recipe.self_critical.epochs:
            self.checkpoints.adopt_best()
            self.position = replace(self.position, waited=0)
        self.position = replace(self.position, epoch=following, batch=0)
        if save:
            self.checkpoints.save_last(self.position)


def _peak_memory() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
