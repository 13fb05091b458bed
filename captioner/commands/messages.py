"""What commands tell the user: results, messages, errors and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from captioner.files import printable_line


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Yield a function that shows how many of how many images are done, on stderr where that is a terminal.

    The second number is None while nobody knows it. A third is how many of them were done before, which are not part of
    the rate; without it, those are that are done when it is called first.
    """
    from tqdm import tqdm

    has_begun = False
    with tqdm(
        desc=printable_line(label), unit="image", smoothing=0.05, disable=quiet or None, dynamic_ncols=True
    ) as bar:

        def show(done: int, total: int | None, before: int | None = None) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                bar.initial = done if before is None else before
                bar.reset(total)
            elif before is not None and before > bar.initial:
                bar.n += before - bar.initial
                bar.last_print_n += before - bar.initial
                bar.initial = before
            bar.total = total
            bar.update(done - bar.n)

        yield show


def say(message: object) -> None:
    """Tell the user something, in one printable line on stderr, whatever names are in it."""
    print(printable_line(str(message)), file=sys.stderr)


def show(text: str, *, flush: bool = False) -> None:
    """Print lines of results, each printable, whatever names are in them."""
    print("\n".join(map(printable_line, text.split("\n"))), flush=flush)


def report(message: object) -> None:
    """Tell the user what was done, on stdout where there is one."""
    if sys.stdout.writable():
        print(message)


def announce(message: object, *, quiet: bool) -> None:
    """Tell somebody who waits at a terminal what is going on."""
    if not quiet and sys.stderr.isatty():
        print(message, file=sys.stderr, flush=True)


def complain(message: object) -> None:
    """Tell the user what is wrong, in one line on stderr."""
    say(f"captioner: {message}")
