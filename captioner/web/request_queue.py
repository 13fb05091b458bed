"""Captions for many clients at once: images are decoded as they come and captioned together with those that wait.

Each model has a thread of its own, so that one that hangs keeps no other from answering. A thread never waits for a
batch to fill: while it is busy others gather, and those that ask for the same are one batch. An image alone is answered
at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.options import CaptionOptions
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared, Preprocessing

BATCH = 16  # images captioned together at most
WAITING = 64  # images of one model accepted and not yet answered


class QueueFull(Exception):
    """More images are waiting than will be answered in good time."""


class Abandoned(Exception):
    """A search that nobody waits for any more."""


class Decoder(Protocol):
    """What turns the bytes of image files into prepared images; see `captioner.web.decoding.Decoders`."""

    def prepare(self, image: bytes, preprocessing: Preprocessing, deadline: float) -> Future[Prepared]:
        """Return the future prepared image."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One image on its way to its client, who cancels the future on leaving."""

    options: CaptionOptions
    future: Future[list[Caption]] = field(default_factory=Future)

    def goes_with(self, other: _Job) -> bool:
        """Tell whether the two can be captioned together: seeds are each image's own."""
        mine, theirs = self.options, other.options
        return (mine.search, mine.n_best) == (theirs.search, theirs.n_best)

    def answer(self, captions: list[Caption]) -> None:
        """Tell the client, who may have left meanwhile."""
        with suppress(InvalidStateError):
            self.future.set_result(captions)

    def fail(self, error: BaseException) -> None:
        """Tell the client what went wrong."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


_Ready = tuple[_Job, Prepared]


class _Lane:
    """The images of one model, and the thread that captions them."""

    def __init__(self, model: Captioner, batch: int) -> None:
        self.model, self.batch = model, batch
        self.unanswered = 0
        self.closed = False
        self._ready: deque[_Ready] = deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="caption", daemon=True)
        self._thread.start()

    def enter(self, job: _Job, most: int) -> None:
        """Count an image that is on its way; raise `QueueFull` where there are `most` already."""
        with self._changed:
            if self.unanswered >= most or self.closed:
                raise QueueFull(f"{self.unanswered} images are waiting already")
            self.unanswered += 1
        job.future.add_done_callback(lambda _: self._leave(job))

    def _leave(self, job: _Job) -> None:
        with self._changed:
            self.unanswered -= 1
            # A thread that hangs would never take out what nobody waits for.
            self._ready = deque(pair for pair in self._ready if pair[0] is not job)

    def add(self, job: _Job, prepared: Prepared) -> None:
        """Let an image wait to be captioned."""
        with self._changed:
            if not job.future.done():
                self._ready.append((job, prepared))
                self._changed.notify()

    def close(self) -> None:
        """Take no more, and let go of what waits."""
        with self._changed:
            self.closed = True
            waiting = [job for job, _ in self._ready]
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()

    def join(self, seconds: float) -> None:
        """Return when the thread has ended, or after so long: one that hangs ends with the process."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while batch := self._next_batch():
            self._caption(batch)

    def _next_batch(self) -> list[_Ready]:
        """Return the image that waits longest and those that go with it, none when the lane is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._ready)
            if self.closed:
                return []
            first = self._ready[0][0]
            chosen = [pair for pair in self._ready if pair[0].goes_with(first)][: self.batch]
            taken = {id(job) for job, _ in chosen}
            self._ready = deque(pair for pair in self._ready if id(pair[0]) not in taken)
            return chosen

    def _caption(self, batch: list[_Ready]) -> None:
        """Answer every job of a batch; where it fails, each for itself, so that one failure is one job's alone."""
        options = batch[0][0].options
        try:
            regions = self.model.encode([prepared for _, prepared in batch])  # (B, L, D)
            # As of a single image: its place among its client's, not that in the batch, decides its samples.
            seeds = [job.options.image_seed(b"0") for job, _ in batch]
            geometries = [prepared.geometry for _, prepared in batch]
            found = self.model.find_captions(regions, geometries, options, seeds, lambda: _check(batch))
        except Abandoned:
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
            else:
                for pair in batch:
                    self._caption([pair])
            return
        for (job, _), captions in zip(batch, found, strict=True):
            job.answer(captions)


def _check(batch: list[_Ready]) -> None:
    """End a search once all who asked for it have left or had their time."""
    if all(job.future.done() for job, _ in batch):
        raise Abandoned


class CaptionQueue:
    """A bounded queue of images to caption; its methods may be called from any thread."""

    def __init__(self, decoders: Decoder, *, batch: int = BATCH, waiting: int = WAITING) -> None:
        """Caption at most `batch` images together; at most `waiting` of each model wait for their answers."""
        self.decoders, self.batch, self.most = decoders, batch, waiting
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def unanswered(self) -> int:
        """The number of images accepted and not yet answered."""
        return sum(lane.unanswered for lane in list(self._lanes.values()))

    def submit(self, model: Captioner, image: bytes, options: CaptionOptions, seconds: float) -> Future[list[Caption]]:
        """Return the future captions of an image file's bytes, the best first; raise `QueueFull` at once.

        The future raises `ImageError` where the image is refused, also where it is not decoded within `seconds`. Once
        it is cancelled, the image is let go and its search is ended.
        """
        job = _Job(options)
        lane = self._lane(model)
        lane.enter(job, self.most)
        try:
            decoded = self.decoders.prepare(image, model.preprocessing, time.monotonic() + seconds)
        except RuntimeError:  # closed meanwhile
            job.future.cancel()
            raise QueueFull("the server is stopping") from None
        job.future.add_done_callback(lambda _: decoded.cancel())

        def pass_on(decoded: Future[Prepared]) -> None:
            if decoded.cancelled():
                job.future.cancel()
            elif isinstance(error := decoded.exception(), ImageError):
                job.fail(error.copy())  # the first one's traceback would keep the bytes alive
            elif error is not None:
                job.fail(error)
            else:
                lane.add(job, decoded.result())

        decoded.add_done_callback(pass_on)
        return job.future

    def _lane(self, model: Captioner) -> _Lane:
        with self._lock:
            if self._closed:
                raise QueueFull("the server is stopping")
            if id(model) not in self._lanes:
                self._lanes[id(model)] = _Lane(model, self.batch)
            return self._lanes[id(model)]

    def close(self, seconds: float = 5.0) -> None:
        """Answer what is being captioned, let go of the rest, and return when the threads have ended or time is up."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()
        for lane in lanes:
            lane.join(seconds)
