"""What a user sees while images are captioned: complaints, and a progress bar where stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from captioner.captioning.caption import Result
from captioner.commands.arguments import complain, progress_bar
from captioner.images.sources import Source, is_in_share


class Screen:
    """Lines above a bar, which begins at none of all images; what was done before is not part of its rate."""

    def __init__(self, sources: Iterable[Source], *, quiet: bool, share: int = 0, shares: int = 1) -> None:
        self.has_bar = not quiet and sys.stderr.isatty()
        self.bar = ExitStack()
        if self.has_bar:
            self.total = sum(is_in_share(source.key, share, shares) for source in sources)
            self.show = self.bar.enter_context(progress_bar("captions", quiet=quiet))
            self.progress(0)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def progress(self, done: int, skipped: int = 0) -> None:
        """Show how many images are done with, and how many of these were done before."""
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
