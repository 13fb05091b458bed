"""Images per second of several encoders in ONNX Runtime, in one run: rounds of all of them in turn, the median of each.

    python experiments/benchmarks/encoders.py efficientnet-lite2:288 tinyvit-5m:192:stride16+32

Those that can run in 8 bits do so as well, in another row. Weights are random: speed does not depend on them. The
difference is the largest from plain torch.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import load_encoder
from captioner.model.encoders.engines import EIGHT_BITS, make_engine
from captioner.threads import available_cores

ENCODERS = (
    "efficientnet-lite2:288",
    "tinyvit-5m:192:stride16+32",
    "tinyvit-5m:224:stride16+32",
    "tinyvit-5m:288:stride16+32",
    "dinov2-small:168:stride28+class",
    "dinov2-small:252:stride28+class",
)


def parse(text: str) -> EncoderConfig:
    """Return the settings of NAME:SIZE or NAME:SIZE:LAYER, with random weights."""
    name, size, *layer = text.split(":")
    return EncoderConfig(name, int(size), layer[0] if layer else None, weights="random")


def main() -> None:
    """Print a table of encoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", default=ENCODERS, metavar="NAME:SIZE[:LAYER]")
    parser.add_argument("--batch", type=int, default=32, help="images a call")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    encoders = {text: load_encoder(parse(text)) for text in options.encoders}
    engines = {text: make_engine(encoder, "onnx") for text, encoder in encoders.items()}
    for text, encoder in list(encoders.items()):
        if encoder.name in EIGHT_BITS:
            encoders[f"{text}, 8 bits"], engines[f"{text}, 8 bits"] = encoder, make_engine(encoder, "int8")
    pixels, differences = {}, {}
    for text, encoder in encoders.items():
        shape = (options.batch, encoder.preprocessing.size, encoder.preprocessing.size, 3)
        pixels[text] = list(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
        expected = make_engine(encoder, "torch")(pixels[text][:2])
        differences[text] = float(np.abs(engines[text](pixels[text][:2]) - expected).max())
    rates: dict[str, list[float]] = {text: [] for text in encoders}
    work: dict[str, list[float]] = {text: [] for text in encoders}
    for _ in range(options.rounds):
        for text, engine in engines.items():
            started, before = time.perf_counter(), time.process_time()
            engine(pixels[text])
            rates[text].append(options.batch / (time.perf_counter() - started))
            work[text].append(1000 * (time.process_time() - before) / options.batch)
    first = statistics.median(next(iter(rates.values())))
    print(f"{available_cores()} cores, batches of {options.batch}, median of {options.rounds} rounds")
    print(f"{'encoder':<40}{'regions':>14}{'images/s':>10}{'ratio':>8}{'core ms/image':>16}{'difference':>12}")
    for text, encoder in encoders.items():
        rows, columns = encoder.grid
        rate, milliseconds = statistics.median(rates[text]), statistics.median(work[text])
        regions = f"{rows} x {columns} x {encoder.dimensions}"
        print(
            f"{text:<40}{regions:>14}{rate:>10.1f}{rate / first:>8.2f}{milliseconds:>16.1f}{differences[text]:>12.1e}"
        )


if __name__ == "__main__":
    main()
