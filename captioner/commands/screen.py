"""What a user sees while images are captioned: complaints, and a progress bar where stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread

from captioner.captioning.caption import Result
from captioner.commands.messages import complain, progress_bar
from captioner.images.sources import Source, is_in_share


class Screen:
    """Lines above a bar, which begins at none of all images; what was done before is not part of its rate.

    The images are counted in a thread, and the bar knows how many they are once it has ended: nobody waits for it.
    """

    def __init__(self, sources: Iterator[Source], *, quiet: bool, share: int = 0, shares: int = 1) -> None:
        self.has_bar = not quiet and sys.stderr.isatty()
        self.bar = ExitStack()
        self.total: int | None = None
        self.last = (0, 0)  # what was shown last
        self.left = Event()
        self.counting = Thread(target=self._count, args=(sources, share, shares), name="count", daemon=True)
        if self.has_bar:
            self.show = self.bar.enter_context(progress_bar("captions", quiet=quiet))
            self.progress(0)
            self.counting.start()

    def _count(self, sources: Iterator[Source], share: int, shares: int) -> None:
        total = 0
        for source in sources:
            if self.left.is_set():
                return
            total += is_in_share(source.key, share, shares)
        self.total = total

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.has_bar:
            if kind is not None:
                self.left.set()
            self.counting.join()
            self.progress(*self.last)
        self.bar.close()

    def progress(self, done: int, skipped: int = 0) -> None:
        """Show how many images are done with, and how many of these were done before."""
        self.last = (done, skipped)
        if self.has_bar:
            self.show(done, self.total, skipped)

    def show_error(self, result: Result) -> None:
        """Name an image that failed, and why."""
        if result.error is not None:
            self.write(complain, str(result.error))

    def write(self, write: Callable[[str], None], line: str) -> None:
        """Write a line, above the bar."""
        if not self.has_bar:
            write(line)
            return
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            write(line)
