"""Which precision products are fast in: chosen when a program runs, as processors differ."""

from __future__ import annotations

import platform

import torch

OLDER = ("DEFAULT", "NO AVX", "AVX2")  # of x86, by torch's names; ATEN_CPU_CAPABILITY=avx2 makes a processor one


def has_fast_bfloat16(device: str) -> bool:
    """Whether products in bfloat16 are faster on a device than those in single precision.

    Without instructions for them a CPU takes up to seventy times as long.
    """
    if not device.startswith("cpu"):
        return True
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    # oneDNN also takes AVX-512 without the instructions for good enough, and is half as fast as in single precision.
    return torch.backends.cpu.get_cpu_capability() not in OLDER and torch.cpu._is_avx512_bf16_supported()


def is_too_slow(precision: str, device: str) -> bool:
    """Whether a precision is slower on a device than single precision, which is then better in all ways."""
    return precision == "bfloat16" and not has_fast_bfloat16(device)


def product_dtype(precision: str, device: str) -> torch.dtype:
    """Return what products are computed in where `precision` is asked for: single where that is too slow."""
    dtype: torch.dtype = torch.float32 if is_too_slow(precision, device) else getattr(torch, precision)
    return dtype
