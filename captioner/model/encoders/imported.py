"""Regions that a detector made elsewhere: an encoder in name only, which has a cache and reads no pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from captioner.images.preprocessing import BOXES, Preprocessing
from captioner.model.config import IMPORTED
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.region_cache import read_identity


class _NoNetwork(nn.Module):
    """Tells the shape of imported regions, and makes none."""

    def __init__(self, regions: int, dimensions: int) -> None:
        super().__init__()
        self.regions, self.dimensions = regions, dimensions

    def forward(self, images: Tensor) -> Tensor:
        """Return an empty (B, D, 1, L) on the meta device, where shapes are asked for; there is no other."""
        if not images.is_meta:
            raise ValueError("imported regions are not made of pixels; they are read from their cache")
        return images.new_empty(len(images), self.dimensions, 1, self.regions)


def imported_encoder(name: str, regions: int, dimensions: int) -> Encoder:
    """Return what stands for an encoder of up to L `regions` of D `dimensions` for an image, in a grid of one row."""
    preprocessing = Preprocessing(size=1, fit=BOXES)
    return Encoder(name, _NoNetwork(regions, dimensions), 1, preprocessing, layer="boxes")


def encoder_of(identity: Mapping[str, Any]) -> Encoder:
    """Return the encoder in name only that an identity, such as a checkpoint's, is of."""
    match identity:
        case {"encoder": str(name), "grid": [1, int(regions)], "dimensions": int(dimensions)}:
            return imported_encoder(name, regions, dimensions)
    raise ValueError("the identity of imported regions has no 'grid' of one row, or no 'dimensions'")


def find_imported(root: Path, name: str) -> Encoder:
    """Return the encoder in name only whose regions were imported into a cache below `root`."""
    found = [read_identity(path.parent) for path in sorted(root.glob("*/cache.json"))]
    identities = [identity for identity in found if identity.get("encoder") == name]
    if not identities:
        others = sorted({str(each["encoder"]) for each in found if str(each.get("encoder")).startswith(IMPORTED)})
        hint = f"there is {', '.join(others)}" if others else "`captioner features DATA --import FILE` makes them"
        raise ValueError(f"{root} has no regions called {name}; {hint}")
    if len(identities) > 1:
        sizes = ", ".join(f"{each['grid'][1]} of {each['dimensions']}" for each in identities)
        raise ValueError(f"{root} has several caches of {name}, with up to {sizes}; remove all but one")
    return encoder_of(identities[0])
