"""Ways to run a frozen encoder: torch on any device, or ONNX Runtime, several times as fast on a CPU.

DINOv2 can run in 8 bits there, twice as fast again where the CPU has the instructions.

An engine maps B images of pixels (S, S, 3) uint8 to regions (B, L, D) float32, or float16 when half precision is asked
for. It is safe to call from many threads, and is closed when it is done with.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from captioner.model.config import ENGINES
from captioner.model.encoders import int8
from captioner.model.encoders.encoder import Encoder
from captioner.processes import choose_device
from captioner.threads import available_cores

# Small enough that the activations of a part stay in a core's cache.
PART = 2  # images
EIGHT_BITS = ("dinov2-small",)  # encoders that lose next to nothing by it

Pixels = Sequence[NDArray[np.uint8]]
RegionArray = NDArray[np.float32 | np.float16]


class Engine(ABC):
    """A frozen encoder that is ready to run; as a context it is closed on leaving."""

    name: str

    @abstractmethod
    def __call__(self, pixels: Pixels) -> RegionArray:
        """Return regions (B, L, D), the same for an image whatever batch it is in."""

    @abstractmethod
    def close(self) -> None:
        """Let go of threads; it cannot be called after this."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_engine(
    encoder: Encoder,
    engine: str = "auto",
    *,
    device: str = "auto",
    threads: int | None = None,
    half: bool = False,
) -> Engine:
    """Return the engine asked for; "auto" is ONNX Runtime on a CPU where it can run the network, else torch.

    "int8" is ONNX Runtime with products in 8 bits. It is for DINOv2, and "auto" takes it there where it is faster.
    `device` is that of `choose_device`. `threads` bounds the cores that ONNX Runtime uses, by default all there are.
    `half` rounds the regions to half precision at the end.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; choose from {', '.join(ENGINES)}")
    device = choose_device(device)
    if engine == "torch" or (engine == "auto" and device != "cpu"):
        return TorchEngine(encoder, device, half)
    in_8_bits = engine == "int8" or (engine == "auto" and encoder.name in EIGHT_BITS and int8.is_fast())
    if in_8_bits and encoder.name not in EIGHT_BITS:
        raise ValueError(f"engine is 'int8', which is for {', '.join(EIGHT_BITS)}; {encoder.name} runs with 'onnx'")
    try:
        return OnnxEngine(encoder, threads, half, in_8_bits=in_8_bits)
    except (ImportError, ValueError) as error:
        if engine in ("onnx", "int8"):
            raise ValueError(f"ONNX Runtime cannot run {encoder.name}: {error}; use engine 'torch'") from None
        return TorchEngine(encoder, device, half)


class TorchEngine(Engine):
    """A copy of the encoder, channels last, without gradients."""

    name = "torch"

    def __init__(self, encoder: Encoder, device: str, half: bool = False) -> None:
        self.device = device
        self.dtype = torch.float16 if half else torch.float32
        # A copy: the caller's encoder stays where and as it is.
        self.encoder = copy.deepcopy(encoder).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, pixels: Pixels) -> RegionArray:
        """Return regions (B, L, D)."""
        # (B, S, S, 3) seen as (B, 3, S, S) is channels last as it lies.
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(self.device)
        with torch.inference_mode():
            regions: RegionArray = self.encoder(images).to(self.dtype).cpu().contiguous().numpy()
        return regions

    def close(self) -> None:
        """Do nothing: it has no threads."""


class OnnxEngine(Engine):
    """The encoder as an ONNX graph; parts of a batch run side by side, one core each.

    One core a part beats all cores on each layer: nobody waits for a neighbour at the end of every layer.
    """

    name = "onnx"

    def __init__(
        self, encoder: Encoder, threads: int | None = None, half: bool = False, *, in_8_bits: bool = False
    ) -> None:
        import onnxruntime

        from captioner.model.encoders.onnx_graph import build_graph

        graph = build_graph(encoder, half=half)
        if in_8_bits:
            graph = int8.quantise(graph)
            self.name = "int8"
        self.part = 1 if in_8_bits else PART  # activations are rounded by the largest in a part
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(graph.to_bytes(), options, providers=["CPUExecutionProvider"])
        self.shape = (encoder.grid[0] * encoder.grid[1], encoder.dimensions)  # (L, D)
        self.dtype = np.float16 if half else np.float32
        self.threads = threads or available_cores()
        self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="encode")

    def __call__(self, pixels: Pixels) -> RegionArray:
        """Return regions (B, L, D), the same for an image whatever batch it is in."""
        size = min(self.part, -(-len(pixels) // self.threads))
        regions = np.empty((len(pixels), *self.shape), self.dtype)

        def run(start: int) -> None:
            part = slice(start, start + size)
            (regions[part],) = self.session.run(["regions"], {"pixels": np.stack(pixels[part])})

        list(self.pool.map(run, range(0, len(pixels), size)))
        return regions

    def close(self) -> None:
        """End the threads that ran parts."""
        self.pool.shutdown()
