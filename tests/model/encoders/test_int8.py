from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from captioner.model.bundled import find_model
from captioner.model.checkpoint import load_checkpoint
from captioner.model.config import EncoderConfig
from captioner.model.encoders import int8
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.model.onnx.nodes import BuiltGraph, Unsupported

EXAMPLES = sorted((Path(__file__).parents[3] / "data" / "examples").glob("*.jpg"))


@pytest.fixture(scope="module")
def dinov2() -> Encoder:
    torch.manual_seed(0)
    return load_encoder(EncoderConfig("dinov2-small", size=56, layer="stride28+class", weights="random"))


def norm_and_product(spread: float) -> BuiltGraph:
    """A LayerNorm (2, 6) whose first feature is `spread` times the others, and a product (6, 3) behind it."""
    random = np.random.default_rng(0)
    gain = np.array([spread, 1, 1, 1, 1, 1], np.float32)
    return BuiltGraph(
        "toy",
        [
            helper.make_node("LayerNormalization", ["pixels", "gain", "shift"], ["normed"], axis=-1),
            helper.make_node("MatMul", ["normed", "matrix"], ["regions"]),
        ],
        {"gain": gain, "shift": gain / 3, "matrix": random.normal(size=(6, 3)).astype(np.float32)},
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("regions", TensorProto.FLOAT, [2, 3])],
    )


def run(graph: BuiltGraph) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(graph.to_bytes(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(1).normal(size=(2, 6)).astype(np.float32)
    (regions,) = session.run(["regions"], {"pixels": pixels})
    return np.asarray(regions)


def test_regions_of_trained_weights_are_close_in_8_bits() -> None:
    encoder = load_checkpoint(find_model("coco-fast")).build_encoder()
    pixels = [encoder.preprocessing.read(path).pixels for path in EXAMPLES[:3]]
    with make_engine(encoder, "onnx") as single, make_engine(encoder, "int8") as rounded:
        expected, regions = single(pixels).reshape(3, -1), rounded(pixels).reshape(3, -1)
    cosine = (expected * regions).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(regions, axis=1)
    assert (cosine > 0.985).all()
    assert np.abs(expected - regions).max() > 1e-3  # they are not the same graph


def test_an_image_gives_the_same_regions_in_any_batch(dinov2: Encoder) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 56, 56, 3), dtype=np.uint8)
    pixels[1] //= 8  # one with small activations among larger ones
    with make_engine(dinov2, "int8", threads=2) as engine:
        together = engine(pixels)
        alone = np.concatenate([engine(pixels[index : index + 1]) for index in range(5)])
    np.testing.assert_array_equal(together, alone)


def test_smoothing_alone_changes_no_result() -> None:
    graph = norm_and_product(spread=50)
    rounding = int8._Rounding(graph)
    rounding.smooth()
    before, after = graph.constants["gain"], rounding.constants["gain"]
    assert np.ptp(np.abs(after)) < np.ptp(np.abs(before)) / 5
    smoothed = run(replace(graph, constants=rounding.constants))
    np.testing.assert_allclose(smoothed, run(graph), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spread", [1, 50])
def test_a_feature_that_stands_out_costs_the_others_little(spread: float) -> None:
    model = norm_and_product(spread)
    expected = run(model)
    assert np.abs(run(int8.quantise(model)) - expected).max() < 0.02 * np.abs(expected).max()


def test_products_are_of_integers() -> None:
    nodes = int8.quantise(norm_and_product(spread=3)).nodes
    assert [node.op_type for node in nodes].count("MatMulInteger") == 1
    assert "MatMul" not in {node.op_type for node in nodes}


def test_a_network_without_products_is_refused() -> None:
    graph = norm_and_product(spread=3)
    with pytest.raises(Unsupported, match="no matrix products"):
        int8.quantise(replace(graph, nodes=graph.nodes[:1]))


@pytest.mark.parametrize(
    ("flags", "name"),
    [("avx2 avx512_vnni", "int8"), ("avx2 avx_vnni", "int8"), ("avx2 avx512f", "onnx"), (None, "onnx")],
)
def test_8_bits_are_taken_where_the_cpu_is_fast_at_them(
    dinov2: Encoder, flags: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags}\n", encoding="ascii")
    monkeypatch.setattr(int8, "CPU_FILE", tmp_path / "cpuinfo")
    with make_engine(dinov2, "auto", device="cpu") as engine:
        assert engine.name == name


def test_other_encoders_have_no_8_bits(lite0: Encoder) -> None:
    with pytest.raises(ValueError, match="engine is 'int8', which is for dinov2-small; efficientnet-lite0 runs with"):
        make_engine(lite0, "int8")
    with make_engine(lite0, "auto", device="cpu") as engine:
        assert engine.name == "onnx"
