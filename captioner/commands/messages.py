"""What commands tell the user: results, messages, errors and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from captioner.files import printable_line

_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[..., None]]:
    """Yield a function that shows how many of how many images are done, on stderr where that is a terminal.

    The second number is None while nobody knows it. A third is how many of them were done before, which are not part of
    the rate; without it, those are that are done when it is called first. The rate is the mean since then: images come
    in batches, and from one batch to the next it would jump.
    """
    from tqdm import tqdm

    has_begun = False
    with tqdm(
        desc=printable_line(label),
        unit=" images",
        bar_format=_BAR,
        smoothing=0,
        miniters=1,
        disable=quiet or None,
        dynamic_ncols=True,
    ) as bar:

        def show(done: int, total: int | None, before: int | None = None) -> None:
            nonlocal has_begun
            if bar.disable:
                return
            if not has_begun:
                bar.unpause()
                bar.start_t = bar.last_print_t
            done_before = before if before is not None else int(bar.initial) if has_begun else done
            if (more := done_before - int(bar.initial)) > 0:
                bar.n += more
                bar.last_print_n += more
                bar.initial = done_before
            bar.total = total
            bar.update(done - bar.n)
            if not has_begun:
                has_begun = True
                bar.refresh()

        yield show


def say(message: object) -> None:
    """Tell the user something, in one printable line on stderr, whatever names are in it."""
    sys.stderr.write(f"{printable_line(str(message))}\n")  # in one go: an interrupt leaves no half of a line


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
