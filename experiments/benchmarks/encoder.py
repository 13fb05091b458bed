"""Images per second of one encoder under every engine, in one run: rounds of all engines in turn, the median of each.

    python experiments/benchmarks/encoder.py --encoder efficientnet-lite0 --size 256

torch.compile needs a C++ compiler; OpenVINO is measured where it is installed (pip install 'captioner[benchmark]').
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.threads import available_cores

Run = Callable[[NDArray[np.uint8]], NDArray[Any]]


def torch_run(encoder: Encoder, memory_format: torch.memory_format, compiled: bool = False) -> Run:
    """Return plain torch, its weights and images in the given memory format."""
    encoder = encoder.to(memory_format=memory_format)
    forward = torch.compile(encoder) if compiled else encoder

    def run(pixels: NDArray[np.uint8]) -> NDArray[Any]:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
        with torch.no_grad():
            regions: NDArray[Any] = forward(images).numpy()
        return regions

    return run


def openvino_run(encoder: Encoder, batch: int) -> Run:
    """Return OpenVINO at its throughput setting, each request a part of the batch."""
    import openvino

    part, size = 4, encoder.preprocessing.size
    with torch.no_grad():
        example = torch.zeros(part, 3, size, size, dtype=torch.uint8)
        model = openvino.convert_model(encoder, example_input=example, input=[part, 3, size, size])
    compiled = openvino.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    queue = openvino.AsyncInferQueue(compiled)
    results: list[NDArray[Any]] = [np.empty(0, np.float32)] * (batch // part)
    queue.set_callback(lambda request, index: results.__setitem__(index, request.get_output_tensor(0).data.copy()))

    def run(pixels: NDArray[np.uint8]) -> NDArray[Any]:
        images = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        for index in range(batch // part):
            queue.start_async({0: images[index * part : (index + 1) * part]}, index)
        queue.wait_all()
        return np.concatenate(results)

    return run


def main() -> None:
    """Print a table of engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32, help="images a call, a multiple of 4")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()

    def load() -> Encoder:
        return load_encoder(EncoderConfig(options.encoder, size=options.size))

    runs: dict[str, Run] = {
        "torch, eager": torch_run(load(), torch.contiguous_format),
        "torch, channels last": torch_run(load(), torch.channels_last),
        "torch.compile": torch_run(load(), torch.channels_last, compiled=True),
    }
    if find_spec("openvino"):
        runs["OpenVINO"] = openvino_run(load(), options.batch)
    engine = make_engine(load(), "onnx")
    runs["captioner, engine onnx"] = lambda pixels: engine(list(pixels))

    shape = (options.batch, options.size, options.size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    expected = runs["torch, eager"](pixels)
    differences = {name: float(np.abs(run(pixels) - expected).max()) for name, run in runs.items()}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run(pixels)
            rates[name].append(options.batch / (time.perf_counter() - started))
    baseline = statistics.median(rates["torch, eager"])
    print(f"{options.encoder} at {options.size} pixels, {available_cores()} cores, torch {torch.__version__}")
    print(f"{'engine':<26}{'images/s':>10}{'ratio':>8}{'largest difference':>22}")
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:<26}{rate:>10.1f}{rate / baseline:>8.2f}{differences[name]:>22.1e}")


if __name__ == "__main__":
    main()
