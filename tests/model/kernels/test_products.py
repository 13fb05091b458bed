from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from captioner.model.kernels import products
from captioner.model.kernels.aligned import aligned_linear
from captioner.model.kernels.products import SMALL, Linear, is_for_onednn, linear, prefers_onednn, product
from captioner.model.kernels.shared_matrix import SharedMatrix

E, V = 64, 301  # a matrix of more than SMALL elements


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch's own"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Take one library and the other, whatever this processor prefers."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no such product")
    monkeypatch.setattr(products, "prefers_onednn", lambda: request.param)
    return bool(request.param)


def with_gradients(outputs: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [outputs, *torch.autograd.grad((outputs**2).sum(), inputs)]


@pytest.mark.parametrize("shape", [(7, E), (2, 3, E), (1, E)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_torchs_own_with_its_gradients(library: bool, shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, inputs = Linear(E, V, bias=bias), torch.randn(shape, requires_grad=True)
    weights = list(layer.parameters())
    assert is_for_onednn(inputs, layer.weight) == library
    plain = with_gradients(nn.functional.linear(inputs, *weights), inputs, *weights)
    torch.testing.assert_close(with_gradients(layer(inputs), inputs, *weights), plain, rtol=1e-4, atol=1e-4)
    if bias:
        ours = with_gradients(aligned_linear(layer, inputs), inputs, *weights)
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_shared_matrices_have_the_gradients_of_plain_products(library: bool) -> None:
    torch.manual_seed(0)
    matrix, bias = (torch.randn(E, V) / 8).requires_grad_(), torch.randn(V, requires_grad=True)
    steps = [torch.randn(2, 3, E, requires_grad=True) for _ in range(2)]
    shared = SharedMatrix(matrix, bias)
    ours = with_gradients(shared(shared(steps[0])[..., :E] + steps[1]), matrix, bias, *steps)
    plain = with_gradients(((steps[0] @ matrix + bias)[..., :E] + steps[1]) @ matrix + bias, matrix, bias, *steps)
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3)


def test_a_row_does_not_depend_on_the_others(library: bool) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(33, E), torch.randn(V, E)
    if library:
        assert torch.equal(linear(inputs, weight)[5:9], linear(inputs[5:9], weight))
    torch.testing.assert_close(product(inputs, weight.t()), inputs @ weight.t(), rtol=1e-4, atol=1e-4)


def test_small_double_and_half_products_stay_as_they_were(library: bool) -> None:
    large = torch.randn(V, E)
    assert large.numel() >= SMALL
    assert not is_for_onednn(torch.randn(2, E), large[:11])
    assert not is_for_onednn(torch.randn(2, E).double(), large.double())
    assert not is_for_onednn(torch.randn(0, E), large)
    assert linear(torch.randn(0, E), large).shape == (0, V)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(2, E), large).dtype == torch.bfloat16


@pytest.mark.parametrize("vendor", ["GenuineIntel", None])
def test_other_processors_keep_torchs_products(
    vendor: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"vendor_id : {vendor}\n")
    monkeypatch.setattr(products, "CPU_FILE", tmp_path / "cpuinfo")
    prefers_onednn.cache_clear()
    assert not prefers_onednn()
    prefers_onednn.cache_clear()


def test_a_processor_without_avx512_keeps_torchs_products() -> None:
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("the setting is one of x86")
    code = "from captioner.model.kernels.products import prefers_onednn as prefers; raise SystemExit(prefers())"
    older = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    assert subprocess.run([sys.executable, "-c", code], env=older, check=False).returncode == 0
