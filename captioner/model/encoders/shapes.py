"""The shape of a feature map, by arithmetic on the layers that lead to it.

Running a network on torch's meta device tells the same of any network, but loads torch's compiler: more than a second,
at every start of a command.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from captioner.model.encoders import dinov2, tiny_vit
from captioner.model.encoders.efficientnet_lite import InvertedResidual, SameConv

Shape = tuple[int, int, int]  # (D, rows, columns)
_SAME_SHAPE = (nn.BatchNorm2d, nn.ReLU6, tiny_vit.Convolutions, tiny_vit.WindowBlock, dinov2.Block)


def output_shape(network: nn.Module, shape: Shape) -> Shape:
    """Return the shape of what a network makes of a feature map, or of an image, of `shape`."""
    known = _by_rule(network, shape)
    return known if known is not None else probe(network, shape)


def input_shapes(network: nn.Module, shape: Shape) -> dict[str, Shape]:
    """Return by name what comes into each module of a sequence, as far as there are rules; nothing for any other."""
    found: dict[str, Shape] = {}
    for name, module in network.named_children() if isinstance(network, nn.Sequential) else ():
        found[name] = shape
        after = _by_rule(module, shape)
        if after is None:
            break
        shape = after
    return found


def probe(network: nn.Module, shape: Shape) -> Shape:
    """Return the same by running a copy without numbers."""
    features = copy.deepcopy(network).eval().to("meta")(torch.empty(1, *shape, device="meta"))  # (1, D, rows, columns)
    return int(features.shape[1]), int(features.shape[2]), int(features.shape[3])


def _by_rule(module: nn.Module, shape: Shape) -> Shape | None:
    """Return the shape after a module, None where there is no rule for it."""
    kind, (width, rows, columns) = type(module), shape
    if kind in _SAME_SHAPE:
        return shape
    if isinstance(module, nn.Sequential):
        return _after(module, shape)
    if isinstance(module, InvertedResidual):
        return _after(module.layers, shape)
    if isinstance(module, SameConv):
        down, across = module.stride[0], module.stride[1]
        return module.out_channels, math.ceil(rows / down), math.ceil(columns / across)
    if isinstance(module, tiny_vit.Stem):
        return tiny_vit.STEM_WIDTH, math.ceil(rows / 4), math.ceil(columns / 4)
    if isinstance(module, tiny_vit.Merging):
        joined = width if module.average is not None else 0
        return joined + module.conv3.out_channels, math.ceil(rows / 2), math.ceil(columns / 2)
    if isinstance(module, dinov2.Patches) and rows == columns and rows % dinov2.PATCH == 0:
        return dinov2.WIDTH, 1, 1 + (rows // dinov2.PATCH) ** 2
    if isinstance(module, dinov2.RegionMap):
        side = module.side(columns) // (2 if module.averaged else 1)
        return dinov2.WIDTH * (2 if module.joined else 1), side, side
    return None


def _after(modules: nn.Sequential, shape: Shape) -> Shape | None:
    for module in modules:
        after = _by_rule(module, shape)
        if after is None:
            return None
        shape = after
    return shape
