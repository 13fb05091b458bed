"""A batch of regions of which some may be missing: padding around a photograph, or fewer boxes than others have.

A tensor (B, L, D) alone is a batch in which none is missing. What is missing may hold any numbers: it gets a weight and
a gradient of exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Regions:
    """The regions of B images, L places for each."""

    features: Tensor  # (B, L, D)
    mask: Tensor | None = None  # (B, L) bool, True where there is a region; None: everywhere

    def __post_init__(self) -> None:
        if self.mask is None:
            return
        if self.mask.dtype != torch.bool or self.mask.shape != self.features.shape[:2]:
            found = f"{str(self.mask.dtype).removeprefix('torch.')} {tuple(self.mask.shape)}"
            raise ValueError(f"the mask is {found}; regions {tuple(self.features.shape)} need a bool (B, L)")
        if not bool(self.mask.any(dim=1).all()):
            raise ValueError("an image has no regions at all; it needs at least one")

    @classmethod
    def of(cls, regions: Tensor | Regions) -> Regions:
        """Return regions as they are, a tensor as regions of which none is missing."""
        return regions if isinstance(regions, Regions) else cls(regions)

    def __len__(self) -> int:
        return len(self.features)

    def present(self) -> Tensor:
        """Return the features (B, L, D), zero where there is no region."""
        # Not a number there would otherwise turn a gradient of zero into one that is not a number.
        return self.features if self.mask is None else self.features.masked_fill(~self.mask.unsqueeze(-1), 0)

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.features.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the features."""
        return self.features.dtype


def mean_region(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean (B, D) of the features (B, L, D) of regions that are there."""
    if mask is None:
        return features.mean(dim=1)
    missing = ~mask.unsqueeze(-1)  # (B, L, 1)
    return features.masked_fill(missing, 0).sum(dim=1) / mask.sum(dim=1, keepdim=True)
