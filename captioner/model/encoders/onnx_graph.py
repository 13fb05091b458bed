"""A frozen convolutional encoder written out as an ONNX graph, for runtimes that are faster than torch on a CPU.

The graph is built from a trace of the network in a tenth of a second; torch's exporter takes ten of them, too long
to wait at the start of every command.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import fx, nn

from captioner.model.encoders.efficientnet_lite import SameConv
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.onnx_attention import WRITERS, add_gelu
from captioner.model.encoders.shapes import input_shapes
from captioner.model.onnx.nodes import BuiltGraph, GraphBuilder, Unsupported

_PASSIVE = (nn.Identity, nn.Dropout)  # they do nothing at inference
_ACTIVATIONS: dict[type[nn.Module], tuple[str, dict[str, Any]]] = {
    nn.ReLU: ("Relu", {}),
    nn.Sigmoid: ("Sigmoid", {}),
    nn.Hardswish: ("HardSwish", {}),
    nn.Hardsigmoid: ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
}
_ARITHMETIC: dict[Callable[..., Any], str] = {
    operator.add: "Add",
    operator.iadd: "Add",
    torch.add: "Add",
    operator.mul: "Mul",
    torch.mul: "Mul",
}


def _is_passive(module: nn.Module) -> bool:
    """Tell whether a module does nothing at inference; only a network of torchvision's has its stochastic depth."""
    ops = sys.modules.get("torchvision.ops")
    return isinstance(module, _PASSIVE) or (ops is not None and isinstance(module, ops.StochasticDepth))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_whole = isinstance(m, (SameConv, *WRITERS)) or _is_passive(m)
        return is_whole or super().is_leaf_module(m, module_qualified_name)


def build_graph(encoder: Encoder, *, half: bool = False) -> BuiltGraph:
    """Return the graph `pixels` (B, S, S, 3) uint8 -> `regions` (B, L, D), float32 or, if `half`, float16.

    Raise `Unsupported` for networks with operations beyond those of VGG, ResNet, MobileNet, EfficientNet, TinyViT and
    DINOv2.
    """
    graph = _EncoderGraph()
    size, (rows, columns) = encoder.preprocessing.size, encoder.grid
    mean, std = (
        255 * np.array(values, np.float32).reshape(3, 1, 1)
        for values in (encoder.preprocessing.mean, encoder.preprocessing.std)
    )
    # Channels first before the arithmetic: along a last axis of three it would take a seventh of the whole time.
    planes = graph.add("Transpose", ["pixels"], perm=[0, 3, 1, 2])
    levels = graph.add("Cast", [planes], to=TensorProto.FLOAT)
    centred = graph.add("Sub", [levels, graph.constant(mean)])
    images = graph.add("Div", [centred, graph.constant(std)])
    features = graph.add_network(encoder.trunk, images, size)
    shape = graph.constant(np.array([0, encoder.dimensions, rows * columns], np.int64))
    unrolled = graph.add("Reshape", [features, shape])
    dtype = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    graph.add("Cast", [graph.add("Transpose", [unrolled], perm=[0, 2, 1])], output="regions", to=dtype)
    pixels_info = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["B", size, size, 3])
    regions_info = helper.make_tensor_value_info("regions", dtype, ["B", rows * columns, encoder.dimensions])
    return graph.build("encoder", [pixels_info], [regions_info])


class _EncoderGraph(GraphBuilder):
    def __init__(self) -> None:
        super().__init__()
        self.unrolled: dict[str, tuple[str, str]] = {}  # see onnx_attention.Graph

    def add_network(self, network: nn.Module, images: str, size: int) -> str:
        """Translate every step of the network; `images` names its input, (B, 3, S, S), the returned name its output."""
        values: dict[fx.Node, str] = {}
        modules = dict(network.named_modules())
        trace = _Tracer().trace(network)
        shapes = input_shapes(network, (3, size, size))
        if any(isinstance(module, tuple(WRITERS)) and name not in shapes for name, module in modules.items()):
            from torch.fx.passes.shape_prop import ShapeProp

            whole = fx.GraphModule(copy.deepcopy(network).to("meta"), trace)
            ShapeProp(whole).propagate(torch.empty(1, 3, size, size, device="meta"))
        for node in trace.nodes:
            inputs = [values[argument] for argument in node.all_input_nodes]
            if node.op == "placeholder":
                values[node] = images
            elif node.op == "output":
                return inputs[0]
            elif node.op == "call_module" and type(modules[str(node.target)]) in WRITERS:
                module, known = modules[str(node.target)], shapes.get(str(node.target))
                shape = (1, *known) if known else tuple(node.all_input_nodes[0].meta["tensor_meta"].shape)
                values[node] = WRITERS[type(module)](self, module, inputs[0], shape)
            elif node.op == "call_module":
                values[node] = self.add_module(modules[str(node.target)], inputs[0])
            elif node.op == "call_function" and node.target is torch.cat and node.kwargs == {"dim": 1}:
                values[node] = self.add("Concat", inputs, axis=1)
            elif node.op == "call_function" and node.target in _ARITHMETIC and len(inputs) == 2:
                values[node] = self.add(_ARITHMETIC[node.target], inputs)
            else:
                raise Unsupported(f"no ONNX translation of {node.op} {node.target}")
        raise Unsupported("the network returns nothing")

    def add_module(self, module: nn.Module, value: str) -> str:
        if _is_passive(module):
            return value
        if isinstance(module, nn.Conv2d):
            return self.add_convolution(module, value)
        if isinstance(module, nn.BatchNorm2d):
            statistics = (module.weight, module.bias, module.running_mean, module.running_var)
            names = [self.parameter(tensor) for tensor in statistics if tensor is not None]
            return self.add("BatchNormalization", [value, *names], epsilon=module.eps)
        if isinstance(module, nn.ReLU6):
            limits = [self.constant(np.array(limit, np.float32)) for limit in (0.0, 6.0)]
            return self.add("Clip", [value, *limits])
        if isinstance(module, nn.SiLU):
            return self.add("Mul", [value, self.add("Sigmoid", [value])])
        if isinstance(module, nn.GELU) and module.approximate == "none":
            return add_gelu(self, value)
        if isinstance(module, nn.AvgPool2d) and module.padding == 0:
            kernel, strides = _pair(module.kernel_size), _pair(module.stride)
            ceil_mode = int(module.ceil_mode)
            return self.add("AveragePool", [value], kernel_shape=kernel, strides=strides, ceil_mode=ceil_mode)
        if isinstance(module, nn.MaxPool2d):
            pads = 2 * list(_pair(module.padding))
            kernel, strides = _pair(module.kernel_size), _pair(module.stride)
            return self.add(
                "MaxPool", [value], kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=int(module.ceil_mode)
            )
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1)):
            return self.add("GlobalAveragePool", [value])
        if type(module) in _ACTIVATIONS:
            operation, attributes = _ACTIVATIONS[type(module)]
            return self.add(operation, [value], **attributes)
        raise Unsupported(f"no ONNX translation of {type(module).__name__}")

    def add_convolution(self, module: nn.Conv2d, value: str) -> str:
        parameters = [self.parameter(module.weight)]
        if module.bias is not None:
            parameters.append(self.parameter(module.bias))
        attributes: dict[str, Any] = {"strides": module.stride, "dilations": module.dilation, "group": module.groups}
        if isinstance(module, SameConv):
            attributes["auto_pad"] = "SAME_UPPER"
        elif isinstance(module.padding, tuple):
            attributes["pads"] = 2 * list(module.padding)
        else:
            raise Unsupported(f"no ONNX translation of padding {module.padding!r}")
        return self.add("Conv", [value, *parameters], **attributes)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
