from __future__ import annotations

import gc
import sys

import pytest
import torch

from captioner.commands.startup import in_one_thread, without_collecting


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


def test_threads_are_as_many_as_before_once_a_model_is_loaded() -> None:
    before = torch.get_num_threads()
    with in_one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
