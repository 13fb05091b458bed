"""The decoder's ONNX graphs against the decoder, in every shape that its settings give it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from captioner.model.config import SCORES, AttentionConfig, DecoderConfig
from captioner.model.decoder import Decoder, make_decoder
from captioner.model.onnx import nodes as onnx_nodes
from captioner.model.onnx.decoder import build_start, build_step
from captioner.model.onnx.nodes import Unsupported, store_in_half
from captioner.model.scores import AdditiveScore

V, D, H, GRID = 9, 6, 8, (2, 3)
L = GRID[0] * GRID[1]
B, N = 2, 3
Settings = dict[str, Any]
ATTENTIONS: list[Settings] = [
    *({"score": score} for score in SCORES),
    {"mode": "hard"},
    {"mode": "hard", "inference": "argmax"},
    {"mode": "gumbel", "inference": "argmax", "score": "general"},
    {"mode": "local", "window": 0.7},
    {"heads": 2},
    *({"mode": "none", "feed": feed} for feed in ("every-step", "first-step", "state", "feed-forward")),
]
DECODERS: list[Settings] = [
    {"regions": 0, "normalise": False},
    {"gate": "scalar"},
    {"gate": "none"},
    {"deep_output": False},
    {"tied": False},
]


def make(attention: Settings, decoder: Settings) -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(**{"embedding": 5, "hidden": H, "regions": H, **decoder})
    made = make_decoder(config, AttentionConfig(**{"width": 7, **attention}), V, D, GRID).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return made


def run(graph: bytes, values: dict[str, Any]) -> dict[str, Any]:
    onnx.checker.check_model(onnx.ModelProto.FromString(graph), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    outputs = [each.name for each in session.get_outputs()]
    found = session.run(outputs, {each.name: values[each.name] for each in session.get_inputs()})
    return dict(zip(outputs, found, strict=True))


@pytest.mark.parametrize(
    ("attention", "decoder"),
    [*((each, {}) for each in ATTENTIONS), *(({}, each) for each in DECODERS)],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_graphs_take_the_decoders_steps(attention: Settings, decoder: Settings) -> None:
    made = make(attention, decoder)
    regions = torch.randn(B, L, D)
    values = run(build_start(made, D, L), {"regions": regions.numpy()})
    step_graph = build_step(made, L)
    with torch.no_grad():
        inputs, state = made.start(regions, N)
        values |= {name: np.repeat(values[name], N, axis=1) for name in ("hidden", "cell")}
        for step in range(3):  # the second step of a decoder that sees the image at its first one alone is another
            words = torch.randint(V, (B, N))
            taken, logits = made.read(inputs, state, words)
            values |= {"words": words.numpy().astype(np.int32), "step": np.array(step, np.int32)}
            values |= run(step_graph, values)
            expected = {
                "log_probs": logits.log_softmax(dim=-1),
                "alpha": taken.alpha,
                "beta": taken.beta.mean(dim=-1),
                "next_hidden": taken.state.tensors[0],
                "next_cell": taken.state.tensors[1],
            }
            for name, wanted in expected.items():
                np.testing.assert_allclose(values[name], wanted.numpy(), atol=2e-5, rtol=1e-4, err_msg=name)
            values |= {"hidden": values["next_hidden"], "cell": values["next_cell"]}
            state = taken.state


def test_glimpses_have_no_translation() -> None:
    with pytest.raises(Unsupported, match=r"attention\.mode glimpse"):
        build_start(make({"mode": "glimpse"}, {}), D, L)


def test_half_precision_halves_the_bytes_and_rounds_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_nodes, "_SMALL", 0)
    made = make({}, {"embedding": 64, "hidden": 128})
    graph = build_step(made, L)
    stored = store_in_half(graph)
    assert len(stored) < 0.52 * len(graph)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.half())
    rounded = build_step(made, L)
    values = {name: np.random.default_rng(0).normal(size=(1, N, 128)).astype(np.float32) for name in ("hidden", "cell")}
    values |= {"words": np.array([[1, 5, 8]], np.int32)}
    values |= {"features": np.ones((1, L, H), np.float32), "keys": np.ones((1, L, 7), np.float32)}
    expected = run(rounded, values)
    for name, found in run(stored, values).items():
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
    # What is in half precision already loses nothing, however small.
    monkeypatch.undo()
    assert len(store_in_half(rounded)) == len(stored)


def single_shapes(graph: bytes) -> list[list[int]]:
    """Return the shapes of the matrices that are in single precision."""
    stored = onnx.ModelProto.FromString(graph).graph.initializer
    return [list(each.dims) for each in stored if each.data_type == onnx.TensorProto.FLOAT and len(each.dims) > 1]


def test_weights_that_half_precision_would_spoil_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make({}, {"tied": False})
    everything = single_shapes(build_step(made, L))
    assert single_shapes(store_in_half(build_step(made, L))) == everything  # all are small
    monkeypatch.setattr(onnx_nodes, "_SMALL", 0)
    with torch.no_grad():
        made.output.weight.mul_(1e-7)  # half precision has no digits left there
        made.from_word.weight[0, 0] = 1e6  # beyond its range
    assert single_shapes(store_in_half(build_step(made, L))) == [[5, 4 * H], [V, 5]]


class OtherScore(AdditiveScore):
    """A score from elsewhere."""


def test_what_has_no_translation_is_named() -> None:
    made = make({}, {})
    assert made.attention is not None
    made.attention.score = OtherScore(H, H, 7)
    with pytest.raises(Unsupported, match="no ONNX translation of the score additive"):
        build_start(made, D, L)
    with pytest.raises(Unsupported, match=r"no ONNX translation of decoder\.kind lstm with decoder\.layers 2"):
        build_step(make({}, {"layers": 2}), L)
