"""The progress bar: from 0, at a rate that is one."""

from __future__ import annotations

import io
import re
import sys

import pytest

from captioner.commands.messages import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.mark.parametrize("first", [0, 1, 5])
def test_no_rate_before_an_image_is_done_and_never_a_negative_one(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with progress_bar("figures", quiet=False) as show:
        for done in range(first, 9):
            show(done, 8)
    shown = terminal.getvalue()
    before, begun = (re.findall(rf"{number}/8 \[[^]]*\]", shown) for number in (first, 8))
    assert before[0] == f"{first}/8 [00:00<?, ? images/s]"
    assert begun
    assert "-" not in shown


def test_what_was_done_before_is_not_part_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with progress_bar("captions", quiet=False) as show:
        show(0, None, 0)
        show(1_000_000, None, 1_000_000)
        show(1_000_000, 1_000_001, 1_000_000)
    rates = re.findall(r"([\d.?]+) images/s", terminal.getvalue())
    assert set(rates) <= {"?", "0.00"}


def test_a_quiet_bar_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with progress_bar("captions", quiet=True) as show:
        show(0, 1)
        show(1, 1)
    assert not terminal.getvalue()
