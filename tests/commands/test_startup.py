from __future__ import annotations

import gc
import sys

import pytest

from captioner.commands.startup import without_collecting


def test_nothing_is_collected_before_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    frozen = gc.get_freeze_count()
    try:
        with without_collecting():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_later_on_garbage_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", pytest)
    frozen = gc.get_freeze_count()
    with without_collecting():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
