from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from captioner.model.kernels.precision import has_fast_bfloat16, product_dtype


def test_a_gpu_has_bfloat16() -> None:
    assert has_fast_bfloat16("cuda:0")


@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_gives_way_to_single_where_it_is_slow(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.model.kernels.precision.has_fast_bfloat16", lambda device: fast)
    assert product_dtype("bfloat16", "cpu") == (torch.bfloat16 if fast else torch.float32)
    assert product_dtype("float32", "cpu") == torch.float32
    assert product_dtype("float16", "cuda") == torch.float16


def test_an_older_processor_has_none() -> None:
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("the setting is one of x86")
    code = "from captioner.model.kernels.precision import has_fast_bfloat16 as fast; raise SystemExit(fast('cpu'))"
    older = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    assert subprocess.run([sys.executable, "-c", code], env=older, check=False).returncode == 0
