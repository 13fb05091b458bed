"""The blocks of TinyViT and DINOv2 as ONNX nodes, for maps of a known size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from captioner import dinov2
from captioner.tiny_vit import MLP, WindowAttention, WindowBlock

BATCH = -1  # the one axis whose size a Reshape works out by itself


class Graph(Protocol):
    """A graph that nodes are added to; every method returns the name of a value."""

    def constant(self, values: np.ndarray[Any, Any]) -> str:
        """Add plain values."""

    def parameter(self, values: Tensor) -> str:
        """Add weights, in single precision."""

    def add(self, operation: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""


def add_gelu(graph: Graph, value: str) -> str:
    """Add x * (1 + erf(x / sqrt 2)) / 2, in the form that runtimes know and fuse."""
    scaled = graph.add("Div", [value, _number(graph, 2**0.5)])
    raised = graph.add("Add", [graph.add("Erf", [scaled]), _number(graph, 1.0)])
    return graph.add("Mul", [graph.add("Mul", [value, raised]), _number(graph, 0.5)])


def add_window_block(graph: Graph, block: WindowBlock, value: str, shape: tuple[int, ...]) -> str:
    """Add a block of TinyViT; `shape` (1, passing + D, rows, columns) is that of its input."""
    _, _, rows, columns = shape
    passing = ""
    if block.passing:
        ends = [block.passing, block.passing + block.width]
        passing = _slice(graph, value, 1, 0, ends[0])
        value = _slice(graph, value, 1, *ends)
    value = graph.add("Add", [value, _add_window_attention(graph, block.attn, value, block.width, rows, columns)])
    convolution = [graph.parameter(block.local_conv.weight), _bias(graph, block.local_conv)]
    value = graph.add("Conv", [value, *convolution], pads=[1, 1, 1, 1], group=block.width)
    cells = graph.add("Transpose", [_reshape(graph, value, BATCH, block.width, rows * columns)], perm=[0, 2, 1])
    changed = _add_mlp(graph, block.mlp, _add_norm(graph, block.mlp.norm, cells))
    cells = graph.add("Add", [cells, changed])
    own = _reshape(graph, graph.add("Transpose", [cells], perm=[0, 2, 1]), BATCH, block.width, rows, columns)
    return graph.add("Concat", [passing, own], axis=1) if passing else own


def _add_window_attention(
    graph: Graph, attention: WindowAttention, value: str, width: int, rows: int, columns: int
) -> str:
    side = attention.side(rows, columns)
    bottom, right = -rows % side, -columns % side
    down, across = (rows + bottom) // side, (columns + right) // side
    if bottom or right:
        value = graph.add("Pad", [value, graph.constant(np.array([0, 0, 0, 0, 0, 0, bottom, right], np.int64))])
    tiles = _reshape(graph, value, BATCH, width, down, side, across, side)
    tiles = graph.add("Transpose", [tiles], perm=[0, 2, 4, 3, 5, 1])
    cells = _add_norm(graph, attention.norm, _reshape(graph, tiles, BATCH, side * side, width))  # (W, N, D)
    # Of each head in turn query, key, value; here queries of all heads, then keys, then values.
    weight, bias = (
        part.detach().reshape(attention.heads, 3, width // attention.heads, -1).transpose(0, 1).flatten(0, 2)
        for part in (attention.qkv.weight, attention.qkv.bias[:, None])
    )
    attended = _add_heads(graph, cells, weight, bias[:, 0], attention.heads, side * side, attention.biases(side))
    projected = _add_linear(graph, attended, attention.proj.weight, attention.proj.bias)
    tiles = _reshape(graph, projected, BATCH, down, across, side, side, width)
    tiles = graph.add("Transpose", [tiles], perm=[0, 5, 1, 3, 2, 4])
    value = _reshape(graph, tiles, BATCH, width, down * side, across * side)
    value = _slice(graph, value, 2, 0, rows) if bottom else value
    return _slice(graph, value, 3, 0, columns) if right else value


def add_patches(graph: Graph, patches: dinov2.Patches, value: str, shape: tuple[int, ...]) -> str:
    """Add the way from images to DINOv2's tokens; `shape` (1, 3, S, S) is that of its input."""
    side = shape[-1] // dinov2.PATCH
    convolution = [graph.parameter(patches.proj.weight), _bias(graph, patches.proj)]
    value = graph.add("Conv", [value, *convolution], strides=[dinov2.PATCH] * 2)
    value = _reshape(graph, value, BATCH, dinov2.WIDTH, side * side)
    first, positions = patches.positions(side)
    value = graph.add("Add", [value, graph.parameter(positions.transpose(1, 2))])  # (B, 384, P)
    # The class token is the same for every image: a column of zeros before the patches, and the token added to it.
    value = graph.add("Pad", [value, graph.constant(np.array([0, 0, 1, 0, 0, 0], np.int64))])
    tokens = torch.cat([first, torch.zeros_like(positions)], dim=1)  # (1, 1 + P, 384)
    value = graph.add("Add", [value, graph.parameter(tokens.transpose(1, 2))])  # (B, 384, 1 + P)
    return _reshape(graph, value, BATCH, dinov2.WIDTH, 1, 1 + side * side)


def add_block(graph: Graph, block: dinov2.Block, value: str, shape: tuple[int, ...]) -> str:
    """Add a block of DINOv2; `shape` (1, 384, 1, 1 + P) is that of its input. Its scales go into the weights."""
    count = shape[-1]
    tokens = _from_map(graph, value, count)  # (B, 1 + P, 384)
    normed = _add_norm(graph, block.norm1, tokens)
    attended = _add_heads(graph, normed, block.attn.qkv.weight, block.attn.qkv.bias, dinov2.HEADS, count)
    scale = block.ls1.gamma
    changed = _add_linear(graph, attended, block.attn.proj.weight * scale[:, None], block.attn.proj.bias * scale)
    tokens = graph.add("Add", [tokens, changed])
    changed = _add_mlp(graph, block.mlp, _add_norm(graph, block.norm2, tokens), block.ls2.gamma)
    tokens = graph.add("Add", [tokens, changed])
    return _reshape(graph, graph.add("Transpose", [tokens], perm=[0, 2, 1]), BATCH, dinov2.WIDTH, 1, count)


def add_regions(graph: Graph, regions: dinov2.Regions, value: str, shape: tuple[int, ...]) -> str:
    """Add the way from DINOv2's tokens to its map of regions; `shape` (1, 384, 1, 1 + P) is that of its input."""
    count = shape[-1]
    side = regions.side(count)
    tokens = _add_norm(graph, regions.norm, _from_map(graph, value, count))
    columns = graph.add("Transpose", [tokens], perm=[0, 2, 1])  # (B, 384, 1 + P)
    patches = _reshape(graph, _slice(graph, columns, 2, 1, count), BATCH, dinov2.WIDTH, side, side)
    if regions.averaged:
        side //= 2
        patches = graph.add("AveragePool", [patches], kernel_shape=[2, 2], strides=[2, 2])
    if not regions.joined:
        return patches
    first = _reshape(graph, _slice(graph, columns, 2, 0, 1), BATCH, dinov2.WIDTH, 1, 1)
    spread = graph.add("Expand", [first, graph.constant(np.array([1, 1, side, side], np.int64))])
    return graph.add("Concat", [patches, spread], axis=1)


Writer = Callable[[Graph, Any, str, tuple[int, ...]], str]
# What is written as one: a module's type, and how it is added given the shape of its input.
WRITERS: dict[type[nn.Module], Writer] = {
    WindowBlock: add_window_block,
    dinov2.Patches: add_patches,
    dinov2.Block: add_block,
    dinov2.Regions: add_regions,
}


def _add_heads(
    graph: Graph, cells: str, weight: Tensor, bias: Tensor, heads: int, count: int, scores: Tensor | None = None
) -> str:
    """Add self-attention of `cells` (W, N, D), N = `count`; `scores` (heads, N, N) are added to theirs."""
    width = len(weight) // 3
    depth = width // heads
    parts = []
    # Keys are transposed as they are cut into heads; queries carry the scale.
    for index, order in enumerate(([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])):
        rows = slice(index * width, (index + 1) * width)
        scale = depth**-0.5 if index == 0 else 1.0
        part = _add_linear(graph, cells, scale * weight[rows], scale * bias[rows])  # (W, N, D)
        cut = _reshape(graph, part, BATCH, count, heads, depth)
        parts.append(graph.add("Transpose", [cut], perm=order))
    query, key, value = parts
    products = graph.add("MatMul", [query, key])  # (W, heads, N, N)
    if scores is not None:
        products = graph.add("Add", [products, graph.parameter(scores)])
    attended = graph.add("MatMul", [graph.add("Softmax", [products], axis=-1), value])  # (W, heads, N, d)
    return _reshape(graph, graph.add("Transpose", [attended], perm=[0, 2, 1, 3]), BATCH, count, width)


def _add_mlp(graph: Graph, mlp: MLP | dinov2.MLP, cells: str, scale: Tensor | None = None) -> str:
    hidden = add_gelu(graph, _add_linear(graph, cells, mlp.fc1.weight, mlp.fc1.bias))
    factors = torch.ones_like(mlp.fc2.bias) if scale is None else scale
    return _add_linear(graph, hidden, mlp.fc2.weight * factors[:, None], mlp.fc2.bias * factors)


def _add_linear(graph: Graph, value: str, weight: Tensor, bias: Tensor) -> str:
    product = graph.add("MatMul", [value, graph.parameter(weight.t().contiguous())])
    return graph.add("Add", [product, graph.parameter(bias)])


def _add_norm(graph: Graph, norm: nn.LayerNorm, value: str) -> str:
    weights = [graph.parameter(norm.weight), graph.parameter(norm.bias)]
    return graph.add("LayerNormalization", [value, *weights], axis=-1, epsilon=norm.eps)


def _from_map(graph: Graph, value: str, count: int) -> str:
    return graph.add("Transpose", [_reshape(graph, value, BATCH, dinov2.WIDTH, count)], perm=[0, 2, 1])


def _bias(graph: Graph, convolution: nn.Conv2d) -> str:
    assert convolution.bias is not None
    return graph.parameter(convolution.bias)


def _number(graph: Graph, value: float) -> str:
    return graph.constant(np.array(value, np.float32))


def _reshape(graph: Graph, value: str, *shape: int) -> str:
    return graph.add("Reshape", [value, graph.constant(np.array(shape, np.int64))])


def _slice(graph: Graph, value: str, axis: int, start: int, end: int) -> str:
    places = [graph.constant(np.array([place], np.int64)) for place in (start, end, axis)]
    return graph.add("Slice", [value, *places])
