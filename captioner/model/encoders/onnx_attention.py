"""The blocks of TinyViT and DINOv2 as ONNX nodes, for maps of a known size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from captioner.model.encoders import dinov2
from captioner.model.encoders.tiny_vit import MLP, WindowAttention, WindowBlock

BATCH = -1  # the one axis whose size a Reshape works out by itself


class Graph(Protocol):
    """A graph that nodes are added to; every method returns the name of a value.

    `unrolled` remembers the maps (B, passing + D, rows, columns) that blocks made of cells (B, rows * columns, D): by
    their names those of the passing features, "" for none, and of the cells. The next block takes up these.
    """

    unrolled: dict[str, tuple[str, str]]

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
    if value in graph.unrolled:
        passing, cells = graph.unrolled[value]
    else:
        passing = _slice(graph, value, 1, 0, block.passing) if block.passing else ""
        rest = _slice(graph, value, 1, block.passing, block.passing + block.width) if block.passing else value
        cells = _to_cells(graph, rest, block.width, rows * columns)
    cells = graph.add("Add", [cells, _add_window_attention(graph, block.attn, cells, block.width, rows, columns)])
    convolution = [graph.parameter(block.local_conv.weight), _bias(graph, block.local_conv)]
    value = _to_map(graph, cells, block.width, rows, columns)
    value = graph.add("Conv", [value, *convolution], pads=[1, 1, 1, 1], group=block.width)
    cells = _to_cells(graph, value, block.width, rows * columns)
    cells = graph.add("Add", [cells, _add_mlp(graph, block.mlp, _add_norm(graph, block.mlp.norm, cells))])
    rest = _to_map(graph, cells, block.width, rows, columns)
    value = graph.add("Concat", [passing, rest], axis=1) if passing else rest
    graph.unrolled[value] = passing, cells
    return value


def _add_window_attention(
    graph: Graph, attention: WindowAttention, cells: str, width: int, rows: int, columns: int
) -> str:
    """Add attention within windows of `cells` (B, rows * columns, D)."""
    side = attention.side(rows, columns)
    bottom, right = -rows % side, -columns % side
    down, across = (rows + bottom) // side, (columns + right) // side
    if bottom or right:
        pads = graph.constant(np.array([0, 0, 0, 0, 0, bottom, right, 0], np.int64))
        cells = graph.add("Pad", [_reshape(graph, cells, BATCH, rows, columns, width), pads])
    if down * across > 1:
        tiles = _reshape(graph, cells, BATCH, down, side, across, side, width)
        cells = graph.add("Transpose", [tiles], perm=[0, 1, 3, 2, 4, 5])
    cells = _reshape(graph, cells, BATCH, side * side, width)  # (W, N, D)
    # Of each head in turn query, key, value; here queries of all heads, then keys, then values.
    weight, bias = (
        part.detach().reshape(attention.heads, 3, -1, *part.shape[1:]).transpose(0, 1).reshape(part.shape)
        for part in (attention.qkv.weight, attention.qkv.bias)
    )
    normed = _add_norm(graph, attention.norm, cells)
    cells = _add_heads(graph, normed, weight, bias, attention.proj, attention.heads, side**2, attention.biases(side))
    if down * across > 1:
        tiles = _reshape(graph, cells, BATCH, down, across, side, side, width)
        cells = graph.add("Transpose", [tiles], perm=[0, 1, 3, 2, 4, 5])
    if bottom or right:
        cells = _reshape(graph, cells, BATCH, down * side, across * side, width)
        cells = _slice(graph, _slice(graph, cells, 1, 0, rows), 2, 0, columns)
    return _reshape(graph, cells, BATCH, rows * columns, width)


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
    tokens = _unrolled_tokens(graph, value, count)  # (B, 1 + P, 384)
    attention, normed = block.attn, _add_norm(graph, block.norm1, tokens)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    changed = _add_heads(graph, normed, weight, bias, attention.proj, dinov2.HEADS, count, scale=block.ls1.gamma)
    tokens = graph.add("Add", [tokens, changed])
    changed = _add_mlp(graph, block.mlp, _add_norm(graph, block.norm2, tokens), block.ls2.gamma)
    tokens = graph.add("Add", [tokens, changed])
    value = _to_map(graph, tokens, dinov2.WIDTH, 1, count)
    graph.unrolled[value] = "", tokens
    return value


def add_regions(graph: Graph, regions: dinov2.RegionMap, value: str, shape: tuple[int, ...]) -> str:
    """Add the way from DINOv2's tokens to its map of regions; `shape` (1, 384, 1, 1 + P) is that of its input."""
    count = shape[-1]
    side = regions.side(count)
    tokens = _add_norm(graph, regions.norm, _unrolled_tokens(graph, value, count))
    patches = _to_map(graph, _slice(graph, tokens, 1, 1, count), dinov2.WIDTH, side, side)
    if regions.averaged:
        side //= 2
        patches = graph.add("AveragePool", [patches], kernel_shape=[2, 2], strides=[2, 2])
    if not regions.joined:
        return patches
    first = _to_map(graph, _slice(graph, tokens, 1, 0, 1), dinov2.WIDTH, 1, 1)
    spread = graph.add("Expand", [first, graph.constant(np.array([1, 1, side, side], np.int64))])
    return graph.add("Concat", [patches, spread], axis=1)


Writer = Callable[[Graph, Any, str, tuple[int, ...]], str]
# What is written as one: a module's type, and how it is added given the shape of its input.
WRITERS: dict[type[nn.Module], Writer] = {
    WindowBlock: add_window_block,
    dinov2.Patches: add_patches,
    dinov2.Block: add_block,
    dinov2.RegionMap: add_regions,
}


def _add_heads(
    graph: Graph,
    cells: str,
    weight: Tensor,
    bias: Tensor,
    projection: nn.Linear,
    heads: int,
    count: int,
    scores: Tensor | None = None,
    scale: Tensor | None = None,
) -> str:
    """Add self-attention of `cells` (W, N, D), N = `count`, and its projection, whose features are scaled by `scale`.

    `scores` (heads, N, N) are added to theirs. Weights of attention sum to one: a key's bias adds the same to all
    scores of a query and changes nothing; a value's bias comes out as it went in, and goes into the projection's.
    """
    width = len(weight) // 3
    depth = width // heads
    (queries, keys, values), (query_bias, _, value_bias) = weight.split(width), bias.split(width)  # type: ignore[no-untyped-call]
    products = [
        _add_linear(graph, cells, queries * depth**-0.5, query_bias * depth**-0.5),
        *(graph.add("MatMul", [cells, graph.parameter(part.t().contiguous())]) for part in (keys, values)),
    ]
    cut = [_reshape(graph, product, BATCH, count, heads, depth) for product in products]
    # Keys are transposed as they are cut into heads.
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (graph.add("Transpose", [part], perm=order) for part, order in zip(cut, orders, strict=True))
    similarity = graph.add("MatMul", [query, key])  # (W, heads, N, N)
    if scores is not None:
        similarity = graph.add("Add", [similarity, graph.parameter(scores)])
    attended = graph.add("MatMul", [graph.add("Softmax", [similarity], axis=-1), value])  # (W, heads, N, d)
    attended = _reshape(graph, graph.add("Transpose", [attended], perm=[0, 2, 1, 3]), BATCH, count, width)
    shift = projection.weight @ value_bias + projection.bias
    return _add_linear(graph, attended, *_scaled(projection.weight, shift, scale))


def _add_mlp(graph: Graph, mlp: MLP | dinov2.MLP, cells: str, scale: Tensor | None = None) -> str:
    hidden = add_gelu(graph, _add_linear(graph, cells, mlp.fc1.weight, mlp.fc1.bias))
    return _add_linear(graph, hidden, *_scaled(mlp.fc2.weight, mlp.fc2.bias, scale))


def _scaled(weight: Tensor, bias: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    return (weight, bias) if scale is None else (weight * scale[:, None], bias * scale)


def _add_linear(graph: Graph, value: str, weight: Tensor, bias: Tensor) -> str:
    product = graph.add("MatMul", [value, graph.parameter(weight.t().contiguous())])
    return graph.add("Add", [product, graph.parameter(bias)])


def _add_norm(graph: Graph, norm: nn.LayerNorm, value: str) -> str:
    weights = [graph.parameter(norm.weight), graph.parameter(norm.bias)]
    return graph.add("LayerNormalization", [value, *weights], axis=-1, epsilon=norm.eps)


def _unrolled_tokens(graph: Graph, value: str, count: int) -> str:
    return graph.unrolled[value][1] if value in graph.unrolled else _to_cells(graph, value, dinov2.WIDTH, count)


def _to_cells(graph: Graph, value: str, width: int, count: int) -> str:
    """Unroll a map (B, D, rows, columns) to (B, rows * columns, D)."""
    return graph.add("Transpose", [_reshape(graph, value, BATCH, width, count)], perm=[0, 2, 1])


def _to_map(graph: Graph, cells: str, width: int, rows: int, columns: int) -> str:
    return _reshape(graph, graph.add("Transpose", [cells], perm=[0, 2, 1]), BATCH, width, rows, columns)


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
