"""Images to regions: a convolutional feature map unrolled into L vectors of D dimensions."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from captioner.images.preprocessing import Preprocessing
from captioner.model.config import EncoderConfig
from captioner.model.encoders.backbones import load_backbone
from captioner.model.encoders.shapes import output_shape


class Encoder(nn.Module):
    """A frozen backbone that turns images (B, 3, S, S) uint8, 0..255, into regions (B, L, D), row by row.

    It carries what belongs to its weights: `preprocessing`, `grid` (rows, columns) with L = rows * columns,
    `dimensions` D, `layer`, and the `classifier` of its mean region where the trunk is whole.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        trunk: nn.Module,
        stride: int,
        preprocessing: Preprocessing,
        classifier: nn.Module | None = None,
        layer: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.stride, self.layer = stride, layer or f"stride{stride}"
        self.preprocessing = preprocessing
        self.trunk = trunk
        self.classifier = classifier
        self.register_buffer("mean", 255 * torch.tensor(preprocessing.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(preprocessing.std).view(3, 1, 1), persistent=False)
        if preprocessing.size < stride:
            raise ValueError(f"size is {preprocessing.size}; {name} at {self.layer} needs at least {stride} pixels")
        self.dimensions, *grid = output_shape(trunk, (3, preprocessing.size, preprocessing.size))
        self.grid = (grid[0], grid[1])
        if preprocessing.fit == "pad" and preprocessing.cells is None:
            if self.grid[0] != self.grid[1]:
                raise ValueError(f"fit is 'pad'; it needs a square grid, and {name} has one of {self.grid}")
            self.preprocessing = replace(preprocessing, cells=self.grid[0])
        self.freeze()

    def forward(self, images: Tensor) -> Tensor:
        """Return regions (B, L, D) of images (B, 3, S, S) uint8."""
        features: Tensor = self.trunk((images.float() - self.mean) / self.std)  # (B, D, rows, columns)
        return features.flatten(2).transpose(1, 2)  # (B, L, D)

    def classify(self, regions: Tensor) -> Tensor:
        """Return ImageNet logits (B, L, 1000) of every region; their mean over L is the image's classification."""
        if self.classifier is None:
            raise ValueError(f"{self.name} at {self.layer} has no classifier; EfficientNet-Lite at stride32 has one")
        logits: Tensor = self.classifier(regions)
        return logits

    def freeze(self) -> None:
        """Take all weights out of training; dropout and batch statistics stay off even under `train()`."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self, blocks: int = 0) -> None:
        """Make the weights of the trunk's last `blocks` trainable, 0 for all of them."""
        self.frozen = False
        self.upper(blocks).requires_grad_(True)

    def upper(self, blocks: int) -> nn.Module:
        """Return the last `blocks` of the trunk, 0 for all of it; its weights have the names they have there."""
        if not blocks:
            return self.trunk
        if not isinstance(self.trunk, nn.Sequential):
            raise ValueError(f"tuning.blocks is {blocks}; {self.name} cannot be cut, so that only 0, for all, will do")
        if blocks >= len(self.trunk):
            most = len(self.trunk) - 1
            raise ValueError(f"tuning.blocks is {blocks}; {self.name} at {self.layer} has up to {most}, or 0 for all")
        return self.trunk[-blocks:]

    def lower(self, blocks: int) -> Encoder:
        """Return what comes before the last `blocks` as an encoder of its own, frozen, on the same weights."""
        self.upper(blocks)  # says where there are no such
        assert isinstance(self.trunk, nn.Sequential)
        layer = f"{self.layer}-before{blocks}"
        return Encoder(self.name, self.trunk[:-blocks], self.stride, self.preprocessing, layer=layer)

    def at_size(self, size: int) -> Encoder:
        """Return the encoder of larger or smaller images, on the same weights."""
        preprocessing = replace(self.preprocessing, size=size, cells=None)
        return Encoder(self.name, self.trunk, self.stride, preprocessing, self.classifier, self.layer)

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode, unless frozen."""
        super().train(mode and not self.frozen)
        return self

    def fingerprint(self) -> str:
        """Return a hash of the trunk's weights: equal for equal weights, whatever machine or device holds them."""
        digest = hashlib.sha256()
        for key, value in sorted(self.trunk.state_dict().items()):
            digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """Return all that decides what regions come out of an image, in plain values for JSON."""
        return {
            "encoder": self.name,
            "layer": self.layer,
            "weights": self.fingerprint(),
            "grid": list(self.grid),
            "dimensions": self.dimensions,
            "preprocessing": self.preprocessing.to_dict(),
        }


def load_encoder(
    config: EncoderConfig | None = None,
    *,
    progress: bool = False,
    allow_download: bool = True,
    largest: int | None = None,
) -> Encoder:
    """Return the encoder of `config` (by default the default one), frozen; the rest is as for `load_backbone`."""
    config = config or EncoderConfig()
    if config.is_imported:
        raise ValueError(f"{config.name} is no encoder: its regions were imported, and are in a cache")
    backbone = load_backbone(
        config.name, config.layer, config.weights, progress=progress, allow_download=allow_download, largest=largest
    )
    preprocessing = replace(
        backbone.preprocessing,
        size=config.size or backbone.preprocessing.size,
        fit=config.fit or backbone.preprocessing.fit,
    )
    return Encoder(config.name, backbone.trunk, backbone.stride, preprocessing, backbone.classifier, backbone.layer)
