"""Where the regions of a batch come from: a cache, or the encoder while it is being trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.datasets.dataset import CaptionedImage
from captioner.images.opening import ImageError
from captioner.images.preprocessing import read_ahead
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.engines import make_engine
from captioner.training.batches import Numbers
from captioner.training.data import TrainingData, ValidationSet

ReadRegions = Callable[[Sequence[CaptionedImage]], NDArray[np.float16 | np.float32]]


class RegionSource(Protocol):
    """A way from images to regions: `read` what they are made of, ahead of time, then make them of it."""

    def read(self, images: Numbers, mirrored: NDArray[np.bool_]) -> NDArray[np.generic]:
        """Return what the regions of images of the corpus are made of, of the flipped ones where `mirrored` (B,)."""

    def regions(self, inputs: Tensor) -> Tensor:
        """Return regions (B, L, D) of what was read."""

    def reader(self, own: ValidationSet) -> ReadRegions:
        """Return a way to read the regions of validation images."""


class CachedRegions:
    """The regions of a frozen encoder."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def read(self, images: Numbers, mirrored: NDArray[np.bool_]) -> NDArray[np.float16]:
        """Return regions (B, L, D)."""
        return self.data.regions(images, mirrored)

    def regions(self, inputs: Tensor) -> Tensor:
        """Return them in single precision."""
        return inputs.float()

    def reader(self, own: ValidationSet) -> ReadRegions:
        """Read from the cache."""
        return lambda images: own.cache.regions([image.file_name for image in images])


class TunedEncoder:
    """The regions of an encoder that is trained as a whole, from pixels."""

    def __init__(self, data: TrainingData, encoder: Encoder, device: str) -> None:
        self.data, self.encoder, self.device = data, encoder, device

    def read(self, images: Numbers, mirrored: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return pixels (B, S, S, 3)."""
        return self.data.pixels(images, mirrored, self.encoder)

    def regions(self, inputs: Tensor) -> Tensor:
        """Return what the encoder makes of pixels."""
        regions: Tensor = self.encoder(inputs.permute(0, 3, 1, 2))
        return regions

    def reader(self, own: ValidationSet) -> ReadRegions:
        """Read images through the encoder as it stands."""
        engine = make_engine(self.encoder, "torch", device=self.device)

        def read(images: Sequence[CaptionedImage]) -> NDArray[np.float16 | np.float32]:
            pixels = []
            for each in read_ahead([image.path for image in images], self.encoder.preprocessing):
                if isinstance(each, ImageError):
                    raise each
                pixels.append(each.pixels)
            return engine(pixels)

        return read


class TunedBlocks:
    """The regions of an encoder whose last blocks are trained, from a cache of what comes before them."""

    def __init__(self, data: TrainingData, encoder: Encoder, blocks: int, device: str) -> None:
        self.data, self.device = data, device
        self.upper, self.grid = encoder.upper(blocks), encoder.lower(blocks).grid

    def read(self, images: Numbers, mirrored: NDArray[np.bool_]) -> NDArray[np.float16]:
        """Return the lower regions (B, l, d)."""
        return self.data.regions(images, mirrored, lower=True)

    def regions(self, inputs: Tensor) -> Tensor:
        """Return what the blocks make of lower regions."""
        channels = inputs.float().transpose(1, 2)  # (B, d, l)
        features = channels.reshape(*channels.shape[:2], *self.grid)  # (B, d, rows, columns), channels last as it lies
        finished: Tensor = self.upper(features)  # (B, D, rows, columns)
        return finished.flatten(2).transpose(1, 2)

    def reader(self, own: ValidationSet) -> ReadRegions:
        """Read from the cache through the blocks as they stand."""
        lower = own.lower
        assert lower is not None

        def read(images: Sequence[CaptionedImage]) -> NDArray[np.float16 | np.float32]:
            found = torch.from_numpy(lower.regions([image.file_name for image in images])).to(self.device)
            with torch.inference_mode():
                regions: NDArray[np.float32] = self.regions(found).cpu().contiguous().numpy()
            return regions

        return read
