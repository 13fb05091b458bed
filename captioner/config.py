"""Settings as frozen dataclasses that check themselves; no torch here, so that commands can show defaults at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from captioner.images import FITS

WEIGHTS = ("imagenet", "random")
ENGINES = ("auto", "onnx", "torch")  # what runs a frozen encoder


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder, and how it sees its images; None leaves a setting as the encoder's weights want it.

    `layer` is "stride8", "stride16" or "stride32": the network's last layer with that many input pixels to a region.
    """

    name: str = "efficientnet-lite2"
    size: int | None = None
    layer: str | None = None
    fit: str | None = None
    weights: str = "imagenet"

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"encoder size is {self.size}; it must be at least 1 pixel")
        if self.layer is not None and not re.fullmatch(r"stride\d+", self.layer):
            raise ValueError(f"encoder layer is {self.layer!r}; choose from stride8, stride16, stride32")
        if self.fit is not None and self.fit not in FITS:
            raise ValueError(f"encoder fit is {self.fit!r}; choose from {', '.join(FITS)}")
        if self.weights not in WEIGHTS:
            raise ValueError(f"encoder weights is {self.weights!r}; choose from {', '.join(WEIGHTS)}")

    @property
    def stride(self) -> int | None:
        """The number in `layer`."""
        return int(self.layer.removeprefix("stride")) if self.layer else None
