"""Rate and memory of filling a region cache, against the encoder alone on images that are decoded already.

    python experiments/benchmarks/features.py PATH/TO/FLICKR8K

Rounds of both in turn are added up, so that a busy spell of the machine meets both. Memory is the peak of a fresh
process that fills a cache of so many images.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from captioner.datasets.dataset import load_dataset
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.model.encoders.fill_cache import fill_cache


def main() -> None:
    """Print the two rates, their ratio, and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", default=EncoderConfig.name)
    parser.add_argument("--size", type=int)
    parser.add_argument("--images", type=int, default=1000, help="for the rates")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="*", default=[1000, 8000], help="numbers of images")
    parser.add_argument("--only-fill", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_fill:
        measure_memory(options)
    else:
        measure_rates(options)
        for count in options.memory:
            arguments = [str(options.data), "--encoder", options.encoder, "--only-fill", str(count)]
            arguments += ["--size", str(options.size)] if options.size else []
            subprocess.run([sys.executable, __file__, *arguments], check=True)


def measure_rates(options: argparse.Namespace) -> None:
    """Print images per second of the encoder alone and of filling a cache, in turn."""
    encoder = load_encoder(EncoderConfig(options.encoder, size=options.size))
    images = load_dataset(options.data).images[: options.images]
    pixels = [encoder.preprocessing.read(image.path).pixels for image in images]
    engine = make_engine(encoder, half=True)
    engine(pixels[:32])
    alone, filling = [], []
    for _ in range(options.rounds):
        started = time.perf_counter()
        engine(pixels)
        alone.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            fill_cache(images, Path(folder), encoder)
            filling.append(time.perf_counter() - started)
    ratios = [encode / fill for encode, fill in zip(alone, filling, strict=True)]
    total = options.rounds * len(images)
    print(f"{options.encoder} at {encoder.preprocessing.size} pixels, {len(images)} images, {options.rounds} rounds")
    print(f"encoder alone   {total / sum(alone):8.1f} images/s")
    print(f"filling a cache {total / sum(filling):8.1f} images/s")
    spread = f"rounds from {min(ratios):.1%} to {max(ratios):.1%}"
    print(f"ratio           {sum(alone) / sum(filling):8.1%} ({spread})", flush=True)


def measure_memory(options: argparse.Namespace) -> None:
    """Fill one cache in this process and print its peak memory."""
    encoder = load_encoder(EncoderConfig(options.encoder, size=options.size))
    images = load_dataset(options.data).images[: options.only_fill]
    before = peak_memory()
    with tempfile.TemporaryDirectory() as folder:
        fill_cache(images, Path(folder), encoder)
    print(f"{len(images):,} images: peak {peak_memory():,.0f} MB, of which {before:,.0f} MB before the first image")


def peak_memory() -> float:
    """Return the peak resident memory of this process in MB, on Linux; unlike rusage it starts anew with a program."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    main()
