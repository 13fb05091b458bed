"""Captions of data sets beyond one machine, on a Ray cluster: `caption_dataset`; needs the extra `ray`.

Workers read images and caption them, and the process that calls writes what they find: a part file for each unit of
work, whole or not at all. So a row is there once, whichever worker dies when, and a run that is started again begins
after the rows that are there.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.captioner import Captioner
from captioner.captioning.options import CaptionOptions, CaptionSettings, make_options
from captioner.captioning.output.parts import UNIT, Parts
from captioner.captioning.records import Origin, Record, error_record
from captioner.captioning.units import Unit, Units, caption_unit
from captioner.files import one_line
from captioner.images.remote import Storage
from captioner.model.bundled import find_model, model_name
from captioner.model.checkpoint import load_checkpoint
from captioner.model.confidence import find_calibration

if TYPE_CHECKING:
    from typing_extensions import Unpack

ATTEMPTS = 3  # to caption a unit, after which its images are tried apart, and to start a worker


@dataclass(frozen=True)
class Progress:
    """What a run has done so far, and which worker (host and process) did the last of it."""

    captioned: int
    failed: int
    skipped: int
    worker: str


@dataclass(frozen=True)
class Report:
    """What a run did: images captioned, rows with a reason instead, names skipped because they were done before.

    `deaths` are those of workers. `unfinished` are archives that could not be read to their end, with the reasons; they
    have no rows, and the next run tries them again.
    """

    captioned: int
    failed: int
    skipped: int
    deaths: int
    unfinished: tuple[tuple[str, str], ...]
    seconds: float


@dataclass(frozen=True)
class _Job:
    """What every worker is told."""

    model: dict[str, Any]  # what a `Captioner` is made of
    origin: Origin
    options: CaptionOptions
    folder: Path
    storage: Storage


class _Worker:
    """A process of the cluster with a model of its own, which it loads once."""

    def __init__(self, job: _Job, cores: int) -> None:
        import torch

        self.job = job
        self.model = Captioner(**job.model, threads=cores)
        searches_beside = self.model.device == "cpu" and not self.model.encodes_in_torch
        torch.set_num_threads(1 if searches_beside else cores)

    def name(self) -> str:
        return f"{socket.gethostname()}:{os.getpid()}"

    def caption(self, unit: Unit) -> tuple[str, list[Record]]:
        job = self.job
        rows = caption_unit(self.model, unit, job.origin, job.options, folder=job.folder, storage=job.storage)
        return self.name(), rows


def caption_dataset(
    inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    format: str = "parquet",
    workers: int | None = None,
    cores: int = 1,
    gpus: float = 0,
    unit: int = UNIT,
    recursive: bool = False,
    storage: Storage | None = None,
    listen: Callable[[Progress], None] = lambda progress: None,
    n_best: int | None = None,
    **settings: Unpack[CaptionSettings],
) -> Report:
    """Caption images on a Ray cluster into a data set of part files, each image once, and return what was done.

    `inputs` are paths and URLs (of what fsspec can read) of images, of archives in WebDataset's layout, of folders of
    either, or patterns of them; paths must mean the same on all machines. `out` is a folder or a URL, `format`
    "parquet" or "jsonl". There are as many `workers` as the cluster has room for, of `cores` and `gpus` each; they take
    `unit` images at a time, or an archive. `storage` is told to fsspec beside every URL. `listen` hears of each unit
    that is done. The `model`, `n_best` and the settings are those of `captioner.load` and `Captioner.caption`.

    The cluster is the one that Ray is connected to or finds, or else this machine.
    """
    ray = _import_ray()
    for name, value, least in (("workers", workers, 1), ("cores", cores, 1), ("gpus", gpus, 0)):
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    options = replace(make_options(n_best=n_best, **settings), workers=cores)
    folder = find_model(model)
    checkpoint = load_checkpoint(folder)
    calibration = find_calibration(folder, checkpoint.digest)
    origin = Origin(checkpoint.digest, options.identity(), name=model_name(folder))
    given = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    storage = storage or {}
    with Parts(os.fspath(out), origin, format=format, storage=storage) as parts:
        units = Units(
            (os.fspath(each) for each in given), parts.read_done(), size=unit, recursive=recursive, storage=storage
        )
        made_of = {"checkpoint": checkpoint, "name": origin.name, "calibration": calibration}
        job = _Job(made_of, origin, options, Path.cwd(), storage)
        connected = ray.is_initialized()
        if not connected:
            ray.init(logging_level="warning", log_to_driver=False)
        try:
            count = workers or _room(ray.cluster_resources(), cores, gpus)
            actor = ray.remote(num_cpus=cores, num_gpus=gpus, max_restarts=0)(_Worker)
            told = ray.put(job)  # once for each machine
            run = _Run(ray, lambda: actor.remote(told, cores), parts, units, listen)
            return run.caption(count)
        finally:
            if not connected:
                ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("captioner.ray needs ray, which is not installed: pip install 'captioner[ray]'") from None
    return ray


def _room(resources: dict[str, float], cores: int, gpus: float) -> int:
    """Return how many workers a cluster has room for."""
    count = int(resources.get("CPU", 0) // cores)
    count = min(count, int(resources.get("GPU", 0) // gpus)) if gpus else count
    if count < 1:
        raise ValueError(f"the cluster has no room for a worker of {cores} cores and {gpus:g} GPUs: {resources}")
    return count


class _Run:
    """Units on their way to workers and back."""

    def __init__(
        self, ray: Any, start: Callable[[], Any], parts: Parts, units: Units, listen: Callable[[Progress], None]
    ) -> None:
        self.ray, self.start, self.parts, self.units, self.listen = ray, start, parts, units, listen
        self.again: deque[Unit] = deque()
        self.starting: dict[Any, Any] = {}  # workers by what tells that they are there
        self.running: dict[Any, tuple[Any, Unit]] = {}  # workers and what they caption, by what tells the outcome
        self.idle: list[Any] = []
        self.captioned = self.failed = self.deaths = self.stillborn = 0
        self.unfinished: list[tuple[str, str]] = []

    def caption(self, workers: int) -> Report:
        """Caption all units with so many workers; one that dies is replaced, and its unit tried again."""
        started = time.monotonic()
        waiting = iter(self.units)
        try:
            if (first := next(waiting, None)) is None:
                if not self.units.found:
                    raise ValueError("there are no images in what was given")
                return self._report(started)
            self.again.append(first)
            for _ in range(workers):
                self._add_worker()
            while self._hand_out(waiting) or self.running:
                (came,), _ = self.ray.wait([*self.running, *self.starting], num_returns=1)
                if came in self.starting:
                    self._greet(came)
                else:
                    self._take(came)
            return self._report(started)
        finally:
            for worker in [*self.idle, *self.starting.values(), *(worker for worker, _ in self.running.values())]:
                self.ray.kill(worker)

    def _report(self, started: float) -> Report:
        done = (self.captioned, self.failed, self.units.skipped, self.deaths)
        return Report(*done, tuple(self.unfinished), time.monotonic() - started)

    def _add_worker(self) -> None:
        worker = self.start()
        self.starting[worker.name.remote()] = worker

    def _hand_out(self, waiting: Iterator[Unit]) -> bool:
        """Give units to idle workers; tell whether some had to be left for workers that are not there yet."""
        while self.idle or not self.again:
            unit = self.again.popleft() if self.again else next(waiting, None)
            if unit is None:
                return False
            if not self.idle:
                self.again.append(unit)
                break
            worker = self.idle.pop()
            self.running[worker.caption.remote(unit)] = worker, unit
        return True

    def _greet(self, came: Any) -> None:
        """Let a worker that has started begin; without any that does, the run ends."""
        worker = self.starting.pop(came)
        try:
            self.ray.get(came)
        except self.ray.exceptions.RayError as error:
            self.deaths += 1
            self.stillborn += 1
            if self.stillborn >= ATTEMPTS:
                raise ValueError(f"no worker can start: {_last_line(error)}") from None
            self._add_worker()
        else:
            self.stillborn = 0
            self.idle.append(worker)

    def _take(self, came: Any) -> None:
        """Write what a worker has found; where it died or failed, try again."""
        worker, unit = self.running.pop(came)
        try:
            name, rows = self.ray.get(came)
        except self.ray.exceptions.RayActorError:
            self.deaths += 1
            self._add_worker()
            self._try_again(unit, "its worker died")
        except self.ray.exceptions.RayError as error:
            self.idle.append(worker)
            self._try_again(unit, _last_line(error))
        else:
            self.idle.append(worker)
            self._write(unit, rows, name)

    def _try_again(self, unit: Unit, reason: str) -> None:
        """Put a unit back; one that came to nothing several times is halved, down to the image that is to blame."""
        unit = replace(unit, attempts=unit.attempts + 1)
        if unit.attempts < ATTEMPTS:
            self.again.append(unit)
        elif unit.is_shard:
            self.unfinished.append((unit.names[0], reason))
        elif len(unit.names) > 1:
            self.again.extend(replace(half, attempts=ATTEMPTS - 1) for half in unit.halves())
        else:
            self._write(unit, [error_record(unit.names[0], f"{reason}, {unit.attempts} times")], "")

    def _write(self, unit: Unit, rows: list[Record], worker: str) -> None:
        self.parts.write(unit.key, rows)
        failed = sum("error" in row for row in rows)
        self.captioned += len(rows) - failed
        self.failed += failed
        self.listen(Progress(self.captioned, self.failed, self.units.skipped, worker))


def _last_line(error: Exception) -> str:
    """Return what an error says last: Ray puts a traceback before it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(ValueError(lines[-1])) if lines else type(error).__name__
