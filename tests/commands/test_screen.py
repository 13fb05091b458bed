from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event

import pytest
from helpers.holding import PATIENCE

from captioner.commands.screen import Screen
from captioner.images.sources import Source


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def source(number: int) -> Source:
    return Source(f"{number}.jpg", Path(f"{number}.jpg"))


def test_captions_do_not_wait_for_the_images_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, terminal = Event(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def listing() -> Iterator[Source]:
        yield source(0)
        assert shown.wait(PATIENCE)
        yield from map(source, range(1, 4))

    with Screen(listing(), quiet=False) as screen:
        screen.progress(1)
        assert screen.total is None
        shown.set()
        screen.progress(2)
        screen.progress(4)
    assert "4/4" in terminal.getvalue()


def test_counting_ends_with_a_run_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), Screen(map(source, count()), quiet=False) as screen:
        raise KeyboardInterrupt
    assert not screen.counting.is_alive()


def test_nothing_is_counted_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def listing() -> Iterator[Source]:
        raise AssertionError("counted")
        yield source(0)

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Screen(listing(), quiet=False) as screen:
        screen.progress(1)
    assert not screen.has_bar
