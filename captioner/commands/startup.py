"""The start of a command that needs torch, which is most of the time that a single image takes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Collect no garbage while torch and a model are loaded, nor look through what they leave later on.

    Nearly all objects that an import makes stay, and looking for those that do not takes a sixth of torch's import.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Let torch load a model in one thread: at each of many small steps, several would only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
