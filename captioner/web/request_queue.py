"""Captions for many askers at once: images are decoded as they come and captioned together with those that wait.

One thread captions. It never waits for a batch to fill: while it is busy others gather, and those that ask for the same
are one batch. An image alone is answered at once.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.options import CaptionOptions
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared

BATCH = 16  # images captioned together at most
WAITING = 64  # images accepted and not yet answered
# An image of 50 megapixels takes a few hundred megabytes while it is unpacked.
DECODERS = 2


class QueueFull(Exception):
    """More images are waiting than will be answered in good time."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One image on its way to its asker."""

    model: Captioner
    options: CaptionOptions
    future: Future[list[Caption]] = field(default_factory=Future)

    def goes_with(self, other: _Job) -> bool:
        """Tell whether the two can be captioned together: seeds are each image's own."""
        mine, theirs = self.options, other.options
        return self.model is other.model and (mine.search, mine.n_best) == (theirs.search, theirs.n_best)

    def fail(self, error: Exception) -> None:
        """Tell the asker, who may have left meanwhile."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


_Ready = tuple[_Job, Prepared]


class CaptionQueue:
    """A bounded queue of images to caption; its methods may be called from any thread."""

    def __init__(self, *, batch: int = BATCH, waiting: int = WAITING, decoders: int = DECODERS) -> None:
        """Start the threads: at most `decoders` images are unpacked at a time and `batch` captioned together."""
        self.batch, self.most = batch, waiting
        self.unanswered = 0
        self._ready: deque[_Ready] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._decoders = ThreadPoolExecutor(decoders, thread_name_prefix="decode")
        self._worker = threading.Thread(target=self._work, name="caption", daemon=True)
        self._worker.start()

    def submit(self, model: Captioner, image: bytes, options: CaptionOptions) -> Future[list[Caption]]:
        """Return the future captions of an image file's bytes, the best first; raise `QueueFull` at once.

        The future raises `ImageError` where the image is refused. Once cancelled, the image is let go.
        """
        job = _Job(model, options)
        with self._changed:
            if self.unanswered >= self.most or self._closed:
                raise QueueFull(f"{self.unanswered} images are waiting already")
            self.unanswered += 1
        job.future.add_done_callback(self._answered)
        self._decoders.submit(self._decode, job, image)
        return job.future

    def close(self) -> None:
        """Answer what is being captioned, let go of the rest, and return when all threads have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._decoders.shutdown(wait=True, cancel_futures=True)
        self._worker.join()

    def _answered(self, _: object) -> None:
        with self._changed:
            self.unanswered -= 1

    def _decode(self, job: _Job, image: bytes) -> None:
        if job.future.cancelled():
            return
        try:
            prepared = job.model.preprocessing.read(image)
        except ImageError as error:
            job.fail(error.copy())  # the first one's traceback would keep the bytes alive
        except Exception as error:
            job.fail(error)
        else:
            with self._changed:
                self._ready.append((job, prepared))
                self._changed.notify()

    def _work(self) -> None:
        while batch := self._next_batch():
            _caption(batch)

    def _next_batch(self) -> list[_Ready]:
        """Return the image that waits longest and those that go with it, none when the queue is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ready)
                if self._closed:
                    return []
                first = self._ready[0][0]
                chosen = [pair for pair in self._ready if pair[0].goes_with(first)][: self.batch]
                taken = {id(job) for job, _ in chosen}
                self._ready = deque(pair for pair in self._ready if id(pair[0]) not in taken)
            if alive := [pair for pair in chosen if pair[0].future.set_running_or_notify_cancel()]:
                return alive


def _caption(batch: list[_Ready]) -> None:
    """Answer every job of a batch; where the batch fails, each for itself, so that one failure is one job's alone."""
    model, options = batch[0][0].model, batch[0][0].options
    try:
        regions = model.encode([prepared for _, prepared in batch])  # (B, L, D)
        # As of a single image: its place among those of its asker, not its place in the batch, decides its samples.
        seeds = [job.options.image_seed(b"0") for job, _ in batch]
        found = model.find_captions(regions, [prepared.geometry for _, prepared in batch], options, seeds)
    except Exception as error:
        if len(batch) == 1:
            batch[0][0].fail(error)
        else:
            for pair in batch:
                _caption([pair])
        return
    for (job, _), captions in zip(batch, found, strict=True):
        job.future.set_result(captions)
