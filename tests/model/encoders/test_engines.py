from __future__ import annotations

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import OnnxEngine, TorchEngine, make_engine

LOWERED = ["efficientnet-lite0", "efficientnet-lite2", "vgg11_bn", "resnet18", "mobilenet_v2", "mobilenet_v3_small"]
LOWERED += ["efficientnet_b0", "timm/resnet18"]


def some_pixels(size: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def lively(encoder: Encoder) -> Encoder:
    """Give random networks statistics under which the signal neither dies out nor explodes on its way."""
    torch.manual_seed(0)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    pixels = torch.from_numpy(some_pixels(encoder.preprocessing.size, 4)).permute(0, 3, 1, 2)
    encoder.trunk.train()
    with torch.no_grad():
        encoder(pixels)
    encoder.trunk.eval()
    return encoder


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("size", [64, 75])
def test_onnx_equals_torch(name: str, size: int) -> None:
    lite = name.startswith("efficientnet-lite")
    encoder = load_encoder(EncoderConfig(name, size=size, weights="imagenet" if lite else "random"))
    if not lite:
        lively(encoder)
    pixels = some_pixels(size, 3)
    expected = make_engine(encoder, "torch")(pixels)
    regions = make_engine(encoder, "onnx")(pixels)
    assert expected.std() > 0.1  # there is something to compare
    assert regions.dtype == np.float32
    np.testing.assert_allclose(regions, expected, atol=1e-3, rtol=0)


def test_an_image_gives_the_same_regions_in_any_batch(lite0: Encoder) -> None:
    engine = make_engine(lite0, "onnx")
    pixels = some_pixels(64, 13)
    together = engine(pixels)
    alone = np.concatenate([engine(pixels[index : index + 1]) for index in range(len(pixels))])
    backwards = engine(pixels[::-1])[::-1]
    assert (alone == together).all()
    assert (backwards == together).all()


def test_engines_may_be_called_from_many_threads(lite0: Encoder) -> None:
    engine = make_engine(lite0, "onnx")
    batches = [some_pixels(64, count) for count in (1, 5, 9, 2)]
    expected = [engine(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(engine, batches))
    assert all((result == wanted).all() for result, wanted in zip(results, expected, strict=True))


def test_a_torch_engine_leaves_its_encoder_as_it_is(lite0: Encoder) -> None:
    encoder = copy.deepcopy(lite0)
    before = [parameter.stride() for parameter in encoder.parameters()]
    with make_engine(encoder, "torch") as engine:
        assert engine(some_pixels(64, 2)).shape == (2, 4, encoder.dimensions)
    assert [parameter.stride() for parameter in encoder.parameters()] == before


def test_a_closed_engine_has_no_threads(lite0: Encoder) -> None:
    with make_engine(lite0, "onnx", threads=2) as engine:
        engine(some_pixels(64, 4))
        assert isinstance(engine, OnnxEngine)
        threads = list(engine.pool._threads)
        assert threads
    assert not any(thread.is_alive() for thread in threads)


def test_auto_prefers_onnx_and_falls_back(lite0: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_engine(lite0), OnnxEngine)
    convnext = load_encoder(EncoderConfig("convnext_tiny", size=64, weights="random"))
    assert isinstance(make_engine(convnext), TorchEngine)
    with pytest.raises(ValueError, match="ONNX Runtime cannot run convnext_tiny: no ONNX translation"):
        make_engine(convnext, "onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it were not installed
    assert isinstance(make_engine(lite0), TorchEngine)


def test_unknown_engine_names_the_choices(lite0: Encoder) -> None:
    with pytest.raises(ValueError, match="engine is 'tensorrt'; choose from auto, int8, onnx, torch"):
        make_engine(lite0, "tensorrt")


def test_engine_agrees_with_the_module(lite0: Encoder) -> None:
    pixels = some_pixels(64, 2)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    np.testing.assert_allclose(make_engine(lite0)(pixels), lite0(images).numpy(), atol=1e-3)


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_half_precision_is_the_rounded_single(lite0: Encoder, engine: str) -> None:
    pixels = some_pixels(64, 3)
    halves = make_engine(lite0, engine, half=True)(pixels)
    assert halves.dtype == np.float16
    np.testing.assert_array_equal(halves, make_engine(lite0, engine)(pixels).astype(np.float16))


def test_graph_is_a_valid_model(lite0: Encoder, tmp_path: Path) -> None:
    import onnx

    from captioner.model.encoders.onnx_graph import build_graph

    (tmp_path / "encoder.onnx").write_bytes(build_graph(lite0).to_bytes())
    onnx.checker.check_model(str(tmp_path / "encoder.onnx"), full_check=True)
