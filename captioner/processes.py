"""Processes and devices: where torch runs, and the few things that processes which share the work tell each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as group
from torch.distributed.rendezvous import rendezvous

Item = TypeVar("Item")
# Longer than any wait for a slower process, such as the first one filling a region cache.
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class Processes:
    """This process among all that share the work: number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def rows(self) -> slice:
        """Return the rows of a batch that are this process's: every `count`-th, which spreads long ones evenly."""
        return slice(self.rank, None, self.count)

    def add_up(self, numbers: Tensor) -> Tensor:
        """Replace numbers by their sum over all processes, and return them."""
        if self.count > 1:
            group.all_reduce(numbers)
        return numbers

    def add_up_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients of parameters by their sums over all processes, in one exchange."""
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
        flat = self.add_up(torch.cat([part.flatten() for part in parts]))
        for parameter, part in zip(trained, torch.split(flat, [part.numel() for part in parts]), strict=True):
            parameter.grad = part.view_as(parameter)

    def gather(self, item: Item) -> list[Item]:
        """Return what each process gave, in the order of their ranks."""
        if self.count == 1:
            return [item]
        items: list[Item | None] = [None] * self.count
        group.all_gather_object(items, item)
        return items  # type: ignore[return-value]

    def wait(self) -> None:
        """Wait until all processes have come here."""
        if self.count > 1:
            group.barrier()


@contextmanager
def joined_processes(device: str = "cpu") -> Iterator[Processes]:
    """Yield this process among those that torchrun started with it, or alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    store, rank, _ = next(rendezvous("env://", timeout=PATIENCE))
    # On one machine torchrun keeps the addresses of dead processes over a restart; the new ones would wait for them.
    # On several machines attempts need not be counted alike; the README has the variable that makes torchrun forget.
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = group.PrefixStore(  # type: ignore[attr-defined]
            f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store
        )
    backend = "nccl" if device.startswith("cuda") else "gloo"
    group.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=count)
    try:
        yield Processes(group.get_rank(), group.get_world_size())
    finally:
        group.destroy_process_group()


def available_memory() -> int | None:
    """Return how many bytes of memory this machine, or the container that this is, can still give; None if unknown."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        group_folder = Path("/sys/fs/cgroup")
        limit = int((group_folder / "memory.max").read_text())
        found.append(limit - int((group_folder / "memory.current").read_text()))
    return max(0, min(found)) if found else None


def check_memory(what: str, needed: int) -> None:
    """Raise ValueError where something needs more bytes of memory than there are."""
    free = available_memory()
    if free is not None and needed > free:
        raise ValueError(f"{what} needs {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free")


def choose_device(name: str = "auto") -> str:
    """Return a device that torch can use here; "auto" is the fastest kind there is."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(kind for kind, usable in available.items() if usable)
    if not available.get(name.split(":")[0], False):
        choices = ", ".join(["auto", *(kind for kind, usable in available.items() if usable)])
        raise ValueError(f"device is {name!r}; choose from {choices}")
    return name


def choose_process_device(name: str = "auto") -> str:
    """Return the device of this process: the one asked for, or one GPU each where torchrun started several."""
    device = choose_device(name)
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device
