"""The random numbers of one training step: all follow from a seed, however many processes share the step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = slice | NDArray[np.int64]
LEVELS = 1 << 16  # dropout rates are rounded to so many parts


class Randomness:
    """Random numbers for a batch of B images, of which the caller has `rows`.

    Numbers are drawn for the whole batch and the caller's rows taken from them, so that a batch that is shared among
    processes sees the same numbers as one that is not. `seed` is one or more numbers, such as those of a run and a
    step: equal seeds give equal numbers on every machine and device, and there is no state to save.
    """

    def __init__(self, seed: Sequence[int], images: int, rows: Rows = slice(None)) -> None:
        self.seed, self.images, self.rows = tuple(seed), images, rows
        self.generator = np.random.Generator(np.random.SFC64(list(seed)))

    @cached_property
    def looks(self) -> Randomness:
        """Numbers for sampled regions, a second stream: how many are drawn of it does not change the first."""
        return Randomness([*self.seed, 1], self.images, self.rows)

    def only_looks(self) -> Looks:
        """Return numbers for looks and for nothing else, from the first on each time: looks can be repeated."""
        return Looks([*self.seed, 1], self.images, self.rows)

    def uniform(self, *shape: int, device: torch.device | None = None) -> Tensor:
        """Return numbers (rows, *shape) in 0..1, the 1 excluded."""
        return self._take(self.generator.random((self.images, *shape), dtype=np.float32), device)

    def normal(self, *shape: int, device: torch.device | None = None) -> Tensor:
        """Return numbers (rows, *shape) of the standard normal distribution."""
        return self._take(self.generator.standard_normal((self.images, *shape), dtype=np.float32), device)

    def dropout(self, values: Tensor, rate: float, mask: Tensor | None = None) -> Tensor:
        """Return `values` (rows, ...) with a share of `rate` set to zero and the others scaled up to make up for it.

        With a mask (rows, ...) the values are only those where it is True, (W, X), and get the numbers of their places.
        """
        if rate == 0:
            return values
        shape = values.shape[1:] if mask is None else (*mask.shape[1:], *values.shape[1:])
        # Whole numbers of 16 bits: three times as fast as torch's dropout on a CPU.
        numbers = self.generator.integers(-LEVELS // 2, LEVELS // 2, (self.images, *shape), dtype=np.int16)
        levels = self._take(numbers, values.device)
        kept = (levels if mask is None else levels[mask]) >= round(rate * LEVELS) - LEVELS // 2
        return values * kept.to(values.dtype).mul_(1 / (1 - rate))

    def _take(self, numbers: NDArray[np.generic], device: torch.device | None) -> Tensor:
        return torch.from_numpy(numbers[self.rows]).to(device)


class Looks(Randomness):
    """Random numbers for looks alone; nothing is dropped."""

    @property
    def looks(self) -> Randomness:
        """These numbers."""
        return self

    def dropout(self, values: Tensor, rate: float, mask: Tensor | None = None) -> Tensor:
        """Return the values as they are."""
        return values

    def select(self, index: Tensor) -> Looks:
        """Return the numbers of some of the caller's rows, drawn from the same stream."""
        some = copy(self)
        some.rows = np.arange(self.images)[self.rows][index.cpu().numpy()]
        return some
