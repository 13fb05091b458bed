"""ONNX graphs, built node by node: what those of encoders and decoders have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the oldest that carries the opset, so that older runtimes read it too
# Matrices of fewer weights take few bytes; a network's first layers are of these, whose rounding all others amplify.
_SMALL = 1 << 15
# A weight may be rounded by this share of the largest beside it: half precision has eleven binary digits.
_HALF_ERROR = 2.0**-11

Values = NDArray[Any]


class Unsupported(ValueError):
    """The model holds an operation that has no translation here."""


@dataclass(frozen=True)
class BuiltGraph:
    """A graph as it is built and changed: its constants stay arrays until it is written down."""

    name: str
    nodes: list[onnx.NodeProto]
    constants: dict[str, Values]
    inputs: Sequence[onnx.ValueInfoProto]
    outputs: Sequence[onnx.ValueInfoProto]

    def to_bytes(self) -> bytes:
        """Return the graph as a serialised model."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        for name, values in self.constants.items():
            # In place: numpy_helper.from_array and make_graph would copy weights three times.
            kind = helper.np_dtype_to_tensor_dtype(values.dtype)
            data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
            model.graph.initializer.add(name=name, dims=values.shape, data_type=kind, raw_data=data)
        return bytes(model.SerializeToString())


class GraphBuilder:
    """A graph that nodes are added to; values go by their names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Values] = {}

    def constant(self, values: Values) -> str:
        """Add plain values."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = values
        return name

    def parameter(self, values: torch.Tensor) -> str:
        """Add weights, in single precision."""
        return self.constant(values.detach().cpu().float().numpy())

    def add(self, operation: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    def build(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> BuiltGraph:
        """Return the whole."""
        return BuiltGraph(name, self.nodes, self.constants, inputs, outputs)


def store_in_half(serialised: bytes) -> bytes:
    """Return a model with its matrices in half precision, half the bytes; it computes in single precision as before.

    A matrix stays as it is where half precision would round it and it is small, or round it by more than 1/2048 of its
    largest weight.
    """
    model = onnx.ModelProto.FromString(serialised)
    graph, casts = model.graph, []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        allowed = _HALF_ERROR * np.abs(values).max() if values.size >= _SMALL else 0.0
        if np.abs(halves - values).max() <= allowed:
            # Runtimes cast constants once, when they load the model.
            casts.append(helper.make_node("Cast", [f"{tensor.name}_half"], [tensor.name], to=TensorProto.FLOAT))
            tensor.CopyFrom(numpy_helper.from_array(halves, f"{tensor.name}_half"))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return bytes(model.SerializeToString())
