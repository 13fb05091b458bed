"""The regions of images, for training and validation alike: from a cache, or through the encoder being trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from captioner.datasets.dataset import CaptionedImage
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared, read_ahead
from captioner.model.encoders.encoder import Encoder
from captioner.model.regions import Regions
from captioner.training.batches import Indices
from captioner.training.data import TrainingData, ValidationSet


@dataclass(frozen=True)
class Inputs:
    """What the regions of B images are made of."""

    values: NDArray[np.float16 | np.uint8]  # (B, L, D), those of a lower part (B, l, d), or pixels (B, S, S, 3)
    mask: NDArray[np.bool_] | None  # (B, L): where there are regions; None: everywhere


class RegionReader:
    """Regions as the encoder makes them now; `load` and `load_set` read what `encode` makes them of.

    `blocks` is how much of the encoder is being trained: None for nothing, whose regions are all in the cache; so many
    of its last blocks, from a cache of what comes before them; 0 for the whole encoder, from pixels.
    """

    def __init__(self, data: TrainingData, encoder: Encoder, blocks: int | None = None) -> None:
        self.data, self.encoder, self.blocks = data, encoder, blocks
        self.upper: nn.Module | None = encoder.upper(blocks) if blocks else None
        self.grid = encoder.lower(blocks).grid if blocks else encoder.grid  # of what is loaded

    def load(self, images: Indices, mirrored: NDArray[np.bool_]) -> Inputs:
        """Return what the regions of images of the corpus are made of, of the flipped ones where `mirrored` (B,)."""
        if self.blocks == 0:
            values: NDArray[np.float16 | np.uint8] = self.data.pixels(images, mirrored, self.encoder)  # (B, S, S, 3)
        else:
            values = self.data.regions(images, mirrored, lower=bool(self.blocks))  # (B, L, D), or lower ones (B, l, d)
        return Inputs(values, self.data.mask(images))

    def load_set(self, validation: ValidationSet, images: Sequence[CaptionedImage]) -> Inputs:
        """Return what the regions of validation images are made of."""
        names = [image.file_name for image in images]
        mask = validation.cache.mask(names)  # (B, L)
        if self.blocks == 0:
            read = list(read_ahead([image.path for image in images], self.encoder.preprocessing))
            for refused in (each for each in read if isinstance(each, ImageError)):
                raise refused
            pixels = np.stack([each.pixels for each in read if isinstance(each, Prepared)])  # (B, S, S, 3)
            return Inputs(pixels, mask)
        cache = validation.lower if self.blocks else validation.cache
        assert cache is not None
        return Inputs(cache.regions(names), mask)  # (B, L, D), or lower ones (B, l, d)

    def encode(self, inputs: Inputs, device: str) -> Regions:
        """Return regions (B, L, D) of what was loaded, in single precision, on a device."""
        mask = torch.from_numpy(inputs.mask).to(device) if inputs.mask is not None else None
        values = torch.from_numpy(inputs.values).to(device)
        return Regions(self._features(values) if len(values) else values.float(), mask)

    def _features(self, inputs: Tensor) -> Tensor:
        """Return the features (B, L, D) of the regions."""
        if self.blocks is None:
            return inputs.float()
        regions = self._encode(inputs)
        if len(regions) == 1 and regions.requires_grad:
            # torch 2.15: the gradient of a batch norm is wrong for one image whose gradient lies otherwise in memory.
            layout = regions.detach()
            regions.register_hook(lambda gradient: torch.empty_like(layout).copy_(gradient))  # type: ignore[no-untyped-call]
        return regions

    def _encode(self, inputs: Tensor) -> Tensor:
        """Return regions (B, L, D) that the encoder makes of pixels, or its upper part of lower regions."""
        if self.upper is None:
            regions: Tensor = self.encoder(inputs.permute(0, 3, 1, 2))
            return regions
        channels = inputs.float().transpose(1, 2)  # (B, d, l)
        features = channels.reshape(*channels.shape[:2], *self.grid)  # (B, d, rows, columns), channels last as it lies
        finished: Tensor = self.upper(features)  # (B, D, rows, columns)
        return finished.flatten(2).transpose(1, 2)

    @torch.no_grad()
    def read_set(self, validation: ValidationSet, images: Sequence[CaptionedImage], device: str) -> Regions:
        """Return regions (B, L, D) of validation images."""
        return self.encode(self.load_set(validation, images), device)
