"""Products in 8 bits: an encoder's ONNX graph with products of integers, twice as fast where the CPU has VNNI.

Weights are rounded to 8 bits per column when the graph is built, activations per image as it runs, so that an image's
regions do not depend on the batch it is in. Nothing is calibrated: what a LayerNorm can give is known from its weights,
and features that stand out are scaled down there and up again in the rows that they meet (SmoothQuant, Xiao et al.,
2023, arXiv 2211.10438). Every other operation stays in single precision.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from captioner.model.onnx.nodes import BuiltGraph, Unsupported

LARGEST = 127  # of the 8-bit weights, which are as far below zero as above it
DEVIATIONS = 2  # how far a normed feature is taken to stray, in its own standard deviations
SHARE = 0.7  # of the spread between features, taken from the activations and given to the weights
CPU_FLAGS = ("avx512_vnni", "avx_vnni")
CPU_FILE = Path("/proc/cpuinfo")

Floats = NDArray[np.float32]


def is_fast() -> bool:
    """Tell whether the CPU multiplies 8-bit numbers exactly and fast; others saturate, or gain nothing."""
    try:
        return any(flag in CPU_FILE.read_text(encoding="ascii", errors="replace") for flag in CPU_FLAGS)
    except OSError:  # not Linux
        return False


def quantise(graph: BuiltGraph) -> BuiltGraph:
    """Return a graph whose products with constant matrices are of 8-bit integers."""
    rounding = _Rounding(graph)
    if not rounding.products:
        raise Unsupported("it has no matrix products to round")
    rounding.smooth()
    return rounding.rounded()


class _Rounding:
    """A graph with constants of its own, and the outputs of the products to round."""

    def __init__(self, graph: BuiltGraph) -> None:
        self.graph, self.constants = graph, dict(graph.constants)
        self.products = {
            node.output[0] for node in graph.nodes if node.op_type == "MatMul" and node.input[1] in self.constants
        }

    def smooth(self) -> None:
        """Even out the features that LayerNorms give to products, and change no result."""
        norms = {node.output[0]: node for node in self.graph.nodes if node.op_type == "LayerNormalization"}
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        for name, norm in norms.items():
            if not all(node.output[0] in self.products for node in readers.get(name, ())):
                continue  # something else reads the features as they are
            gain, shift = (self.constants[each] for each in norm.input[1:])
            matrices = [node.input[1] for node in readers[name]]
            reach = np.abs(shift) + DEVIATIONS * np.abs(gain)  # (D,)
            rows = np.max([np.abs(self.constants[each]).max(axis=1) for each in matrices], axis=0)  # (D,)
            scale = np.maximum(reach**SHARE / np.maximum(rows, 1e-5) ** (1 - SHARE), 1e-4).astype(np.float32)
            self.constants |= {norm.input[1]: gain / scale, norm.input[2]: shift / scale}
            self.constants |= {each: self.constants[each] * scale[:, None] for each in matrices}

    def rounded(self) -> BuiltGraph:
        """Return the graph with its products in 8 bits."""
        nodes: list[onnx.NodeProto] = []
        inputs: set[str] = set()  # those that have been rounded
        for node in self.graph.nodes:
            if node.output[0] not in self.products:
                nodes.append(node)
                continue
            value, matrix = node.input
            if value not in inputs:
                inputs.add(value)
                parts = [f"{value}_{part}" for part in ("rounded", "scale", "zero")]
                nodes.append(helper.make_node("DynamicQuantizeLinear", [value], parts))
            nodes += self._product(value, matrix, node.output[0])
        used = {name for node in nodes for name in node.input}
        constants = {name: values for name, values in self.constants.items() if name in used}
        return replace(self.graph, nodes=nodes, constants=constants)

    def _product(self, value: str, matrix: str, output: str) -> list[onnx.NodeProto]:
        """Return `output` = `value` @ `matrix` as a product of integers, scaled back."""
        columns, scales = _round_columns(self.constants[matrix])
        self.constants |= {f"{matrix}_rounded": columns, f"{matrix}_scale": scales}
        integers = [f"{value}_rounded", f"{matrix}_rounded", f"{value}_zero"]
        return [
            helper.make_node("MatMulInteger", integers, [f"{output}_sums"]),
            helper.make_node("Cast", [f"{output}_sums"], [f"{output}_floats"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{value}_scale", f"{matrix}_scale"], [f"{output}_scale"]),
            helper.make_node("Mul", [f"{output}_floats", f"{output}_scale"], [output]),
        ]


def _round_columns(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return a matrix (D, H) in 8 bits, and what a step of each column is worth, (H,)."""
    scales = np.maximum(np.abs(matrix).max(axis=0), 1e-30) / LARGEST  # (H,)
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)
