"""The decoder as two ONNX graphs, for runtimes without torch: one to start an image, one for each step.

`start` takes regions and returns what every step reads of an image, and the first state; `step` reads one word of each
caption and scores the next. A step's inputs are those outputs of `start`, by their names, and the words; which ones
there are depends on the model. Greedy and beam search need no more than to pick words and rows of the state.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper
from torch import Tensor, nn

from captioner.model.decoder import Decoder
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.onnx.nodes import GraphBuilder, Unsupported
from captioner.model.scores import (
    AdditiveScore,
    ConcatScore,
    CosineScore,
    DotScore,
    GeneralScore,
    LocationScore,
)

# By their very types: a score from elsewhere may be any of these with another formula.
_SCORES = (AdditiveScore, ConcatScore, CosineScore, DotScore, GeneralScore, LocationScore)
_NORM_LEAST = 1e-12  # as torch's normalize has it, so that a row of zeros stays one


def build_start(decoder: Decoder, region_width: int, regions: int) -> bytes:
    """Return a serialised model: `regions` (B, L, D) -> what `build_step` lists, with a state (B, 1, H)."""
    decoder = _translatable(decoder)
    graph = _DecoderGraph(decoder, regions)
    inputs = [graph.info("regions", "B", regions, region_width)]
    features = graph.add_project("regions")  # (B, L, R)
    mean = graph.add("ReduceMean", [features], axes=[1], keepdims=1)  # (B, 1, R)
    for name, layer in (("hidden", decoder.initial_hidden), ("cell", decoder.initial_memory)):
        graph.add("Identity", [graph.add_initial(mean, layer)], output=name)  # (B, 1, H)
    if graph.looks:
        graph.add("Identity", [features], output="features")
    if graph.key_shape is not None:
        graph.add("Identity", [graph.add_keys(features)], output="keys")
    return graph.build("start", inputs, graph.shared_infos(captions=1)).to_bytes()


def build_step(decoder: Decoder, regions: int) -> bytes:
    """Return a serialised model of one step for N captions of each of B images of L `regions`.

    In: `words` (B, N) int32, the last of each caption, first the start marker; `hidden` and `cell` (B, N, H);
    `features` and `keys`, where `start` returns them; `step` () int32, the words read before, where the image is seen
    at the first step alone. Out: `log_probs` (B, N, V) of the next word, `alpha` (B, N, L), `beta` (B, N), the mean
    gate, and the state after, `next_hidden` and `next_cell` (B, N, H).
    """
    decoder = _translatable(decoder)
    graph = _DecoderGraph(decoder, regions)
    hidden, words = decoder.config.hidden, decoder.output.out_features
    inputs = [graph.info("words", "B", "N", dtype=TensorProto.INT32), *graph.shared_infos(captions="N")]
    if decoder.feed == "first-step":
        inputs.append(graph.info("step", dtype=TensorProto.INT32))
    embedding = graph.parameter(decoder.embedding.weight)  # (V, E)
    vectors = graph.add("Gather", [embedding, "words"], axis=0)  # (B, N, E)
    gates = graph.add("Add", [graph.linear(vectors, decoder.from_word), graph.linear("hidden", decoder.from_hidden)])
    beta = graph.add("Sigmoid", [graph.linear("hidden", decoder.gate)]) if decoder.gate is not None else None
    weights = graph.add_weights()  # (B, N, L)
    context = graph.add_context(weights, beta) if graph.looks else None  # (B, N, R)
    if context is not None:
        gates = graph.add("Add", [gates, graph.linear(context, decoder.from_context)])  # (B, N, 4H)
    graph.add_cell(gates)
    summary = graph.linear("next_hidden", decoder.output_hidden)  # (B, N, E)
    if decoder.output_context is not None:
        summary = graph.add("Add", [summary, vectors])
        if context is not None:
            summary = graph.add("Add", [summary, graph.linear(context, decoder.output_context)])
    # A tied matrix is there once, as the embedding.
    output = embedding if decoder.config.tied else graph.parameter(decoder.output.weight)
    logits = graph.add("MatMul", [summary, graph.add("Transpose", [output], perm=[1, 0])])  # (B, N, V)
    logits = graph.add("Add", [logits, graph.parameter(decoder.output.bias)])
    graph.add("LogSoftmax", [logits], output="log_probs", axis=-1)
    graph.add_mean_gate(beta)
    outputs = [
        graph.info("log_probs", "B", "N", words),
        graph.info("alpha", "B", "N", regions),
        graph.info("beta", "B", "N"),
        *(graph.info(name, "B", "N", hidden) for name in ("next_hidden", "next_cell")),
    ]
    return graph.build("step", inputs, outputs).to_bytes()


def _translatable(decoder: Decoder) -> LSTMDecoder:
    """Return the decoder; raise `Unsupported` where it is of a kind, or has a score, without a translation."""
    if type(decoder) is not LSTMDecoder:
        raise Unsupported(
            f"no ONNX translation of decoder.kind {decoder.config.kind} with decoder.layers {decoder.config.layers}"
        )
    if decoder.attention.policy is not None:
        raise Unsupported("no ONNX translation of attention.mode glimpse")
    score = decoder.attention.score
    if score is not None and type(score) not in _SCORES:
        raise Unsupported(f"no ONNX translation of the score {decoder.attention.config.score}")
    return decoder


class _DecoderGraph(GraphBuilder):
    """The decoder's parts as nodes; L is `regions`."""

    def __init__(self, decoder: LSTMDecoder, regions: int) -> None:
        super().__init__()
        self.decoder, self.regions = decoder, regions
        self.attention, self.config = decoder.attention, decoder.attention.config
        self.width = decoder.config.hidden
        self.context_width = decoder.from_context.in_features  # R
        # Where the image is in the initial state alone, no step looks at its regions.
        self.looks = decoder.feed not in ("state", "feed-forward")

    @property
    def key_shape(self) -> tuple[int, int] | None:
        """The shape of an image's keys; None where a score has none."""
        score = self.attention.score
        if score is None or isinstance(score, LocationScore):
            return None
        if isinstance(score, AdditiveScore):
            return self.regions, score.region.out_features  # (L, A)
        if isinstance(score, DotScore):
            return self.context_width, self.regions  # (R, L)
        assert isinstance(score, GeneralScore | CosineScore)
        return score.region.out_features, self.regions  # (A, L)

    def shared_infos(self, captions: int | str) -> list[ValueInfoProto]:
        """Return what `start` gives and every step takes."""
        infos = [self.info(name, "B", captions, self.width) for name in ("hidden", "cell")]
        if self.looks:
            infos.append(self.info("features", "B", self.regions, self.context_width))
        if self.key_shape is not None:
            infos.append(self.info("keys", "B", *self.key_shape))
        return infos

    def info(self, name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> ValueInfoProto:
        """Return the description of an input or output."""
        return helper.make_tensor_value_info(name, dtype, shape)

    def linear(self, value: str, layer: nn.Linear) -> str:
        """Add a linear layer."""
        return self._product(value, layer.weight, layer.bias)

    def _product(self, value: str, weight: Tensor, bias: Tensor | None) -> str:
        product = self.add("MatMul", [value, self.parameter(weight.t().contiguous())])
        return self.add("Add", [product, self.parameter(bias)]) if bias is not None else product

    def add_project(self, value: str) -> str:
        """Add the way from regions (B, L, D) to features (B, L, R)."""
        for layer in self.decoder.project:
            value = self.linear(value, layer) if isinstance(layer, nn.Linear) else self._norm(value, layer)
        if self.attention.mixing is None:
            return value
        mixed = self._self_attention(value, self.attention.mixing)
        return self._norm(self.add("Add", [value, mixed]), self.attention.norm)

    def _norm(self, value: str, norm: nn.Module) -> str:
        assert isinstance(norm, nn.LayerNorm)
        weights = [self.parameter(norm.weight), self.parameter(norm.bias)]
        return self.add("LayerNormalization", [value, *weights], axis=-1, epsilon=norm.eps)

    def _self_attention(self, value: str, mixing: nn.MultiheadAttention) -> str:
        heads, depth = mixing.num_heads, mixing.head_dim
        cut = self.constant(np.array([0, self.regions, heads, depth], np.int64))
        split = []
        for weight, bias in zip(mixing.in_proj_weight.chunk(3), mixing.in_proj_bias.chunk(3), strict=True):
            part = self.add("Reshape", [self._product(value, weight, bias), cut])  # (B, L, heads, d)
            split.append(self.add("Transpose", [part], perm=[0, 2, 1, 3]))  # (B, heads, L, d)
        query, key, values = split
        scaled = self.add("Mul", [query, self._number(depth**-0.5)])
        scores = self.add("MatMul", [scaled, self.add("Transpose", [key], perm=[0, 1, 3, 2])])  # (B, heads, L, L)
        attended = self.add("MatMul", [self.add("Softmax", [scores], axis=-1), values])  # (B, heads, L, d)
        whole = self.constant(np.array([0, self.regions, heads * depth], np.int64))
        joined = self.add("Reshape", [self.add("Transpose", [attended], perm=[0, 2, 1, 3]), whole])  # (B, L, R)
        return self.linear(joined, mixing.out_proj)

    def add_initial(self, mean: str, layer: nn.Module | None) -> str:
        """Add an initial state (B, 1, H), of the mean region (B, 1, R) or zero."""
        if layer is None:
            batch = self.add("Shape", ["regions"], start=0, end=1)
            rest = self.constant(np.array([1, self.width], np.int64))
            shape = self.add("Concat", [batch, rest], axis=0)
            return self.add("Expand", [self._number(0.0), shape])
        if isinstance(layer, nn.Linear):
            return self.linear(mean, layer)
        assert isinstance(layer, nn.Sequential)
        assert isinstance(layer[0], nn.Linear)
        return self.add("Tanh", [self.linear(mean, layer[0])])

    def add_keys(self, features: str) -> str:
        """Add the keys of features (B, L, R), in the `key_shape`."""
        score = self.attention.score
        keys = features
        if isinstance(score, AdditiveScore | GeneralScore | CosineScore):
            keys = self.linear(features, score.region)  # (B, L, A)
        if isinstance(score, AdditiveScore):
            return keys
        if isinstance(score, CosineScore):
            keys = self._unit(keys)
        return self.add("Transpose", [keys], perm=[0, 2, 1])  # (B, A, L)

    def add_weights(self) -> str:
        """Add `alpha` (B, N, L), and return the weights of the context: alpha, or all on the largest of it."""
        if self.attention.score is None:
            shape = self.add("Shape", ["words"])  # (B, N)
            shape = self.add("Concat", [shape, self.constant(np.array([self.regions], np.int64))], axis=0)
            return self.add("Expand", [self._number(1 / self.regions), shape], output="alpha")
        scores = self._scores()  # (B, N, L)
        if self.attention.centre is not None:
            scores = self.add("Add", [scores, self._window(self.attention.centre)])
        alpha = self.add("Softmax", [scores], output="alpha", axis=-1)
        if self.config.mode not in ("hard", "gumbel") or self.config.inference == "expectation":
            return alpha
        chosen = self.add("ArgMax", [alpha], axis=-1, keepdims=0)  # (B, N)
        depth = self.constant(np.array(self.regions, np.int64))
        return self.add("OneHot", [chosen, depth, self.constant(np.array([0, 1], np.float32))])  # (B, N, L)

    def _scores(self) -> str:
        score = self.attention.score
        query = self.linear("hidden", score.reader) if score is not None and score.reader is not None else "hidden"
        if isinstance(score, LocationScore):
            return query
        if isinstance(score, AdditiveScore):
            one, two = (self.constant(np.array([axis], np.int64)) for axis in (1, 2))
            queries = self.add("Unsqueeze", [query, two])  # (B, N, 1, A)
            pairs = self.add("Add", [self.add("Unsqueeze", ["keys", one]), queries])  # (B, N, L, A)
            return self.add("MatMul", [self.add("Tanh", [pairs]), self.parameter(score.energy.weight[0])])
        if isinstance(score, CosineScore):
            return self.add("Mul", [self.parameter(score.sharpness), self.add("MatMul", [self._unit(query), "keys"])])
        if isinstance(score, DotScore):
            query = self.add("Mul", [query, self._number(score.scale)])
        return self.add("MatMul", [query, "keys"])

    def _window(self, centre: nn.Linear) -> str:
        """Add the logarithm (B, N, L) of a Gaussian around a centre that the hidden state predicts."""
        positions = self.attention.positions  # (L, 2)
        place = self.add("Mul", [self.add("Sigmoid", [self.linear("hidden", centre)]), self.parameter(positions[-1])])
        place = self.add("Unsqueeze", [place, self.constant(np.array([2], np.int64))])  # (B, N, 1, 2)
        offsets = self.add("Sub", [place, self.parameter(positions)])  # (B, N, L, 2)
        distances = self.add("ReduceSumSquare", [offsets], axes=[-1], keepdims=0)  # (B, N, L)
        return self.add("Mul", [distances, self._number(-1 / (2 * self.config.window**2))])

    def add_context(self, weights: str, beta: str | None) -> str:
        """Add the context (B, N, R) as the LSTM reads it."""
        context = self.add("MatMul", [weights, "features"])
        if beta is not None:
            context = self.add("Mul", [beta, context])
        if self.decoder.feed == "first-step":
            first = self.add("Equal", ["step", self.constant(np.array(0, np.int32))])
            context = self.add("Mul", [context, self.add("Cast", [first], to=TensorProto.FLOAT)])
        return context

    def add_cell(self, gates: str) -> None:
        """Add the LSTM's arithmetic on gates (B, N, 4H): equations 2 and 3."""

        def gate(place: int, activation: str) -> str:
            ends = [place * self.width, (place + 1) * self.width, -1]
            part = self.add("Slice", [gates, *(self.constant(np.array([end], np.int64)) for end in ends)])
            return self.add(activation, [part])  # (B, N, H)

        kept = self.add("Mul", [gate(1, "Sigmoid"), "cell"])
        new = self.add("Mul", [gate(0, "Sigmoid"), gate(2, "Tanh")])
        cell = self.add("Add", [kept, new], output="next_cell")
        self.add("Mul", [gate(3, "Sigmoid"), self.add("Tanh", [cell])], output="next_hidden")

    def add_mean_gate(self, beta: str | None) -> None:
        """Add `beta` (B, N): the mean of the gates, one where there are none."""
        if beta is not None:
            self.add("ReduceMean", [beta], output="beta", axes=[-1], keepdims=0)
        else:
            self.add("Expand", [self._number(1.0), self.add("Shape", ["words"])], output="beta")

    def _unit(self, value: str) -> str:
        """Add vectors of length one, along the last axis."""
        length = self.add("ReduceL2", [value], axes=[-1], keepdims=1)
        return self.add("Div", [value, self.add("Max", [length, self._number(_NORM_LEAST)])])

    def _number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))
