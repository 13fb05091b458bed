"""Captions per second of decoders, trained and searched with, in one run and in turn.

    python experiments/benchmarks/decoders.py
    python experiments/benchmarks/decoders.py --rounds 8 --images 256

The decoders are those of the recipes flickr8k-soft, the same with two layers, and flickr8k-transformer, with random
weights, on random regions of EfficientNet-Lite2's shape. A training step is the forward pass, the loss and the backward
pass on captions as long as Flickr8k's; a search has a beam of 5 and ends every caption at its eleventh word, about
where trained ones do. Core milliseconds are those of all threads together, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from training_steps import POOL, Case, our_loss, time_step

from captioner.model.decoder import Decoder, make_decoder
from captioner.model.search.beam import beam_search
from captioner.model.search_settings import SearchConfig
from captioner.training.recipe import load_recipe

DECODERS = {
    "LSTM": ("flickr8k-soft", ()),
    "two LSTM layers": ("flickr8k-soft", ("decoder.layers=2",)),
    "transformer": ("flickr8k-transformer", ()),
}
CASE = Case(81, 1280, 2540, None)
GRID = (9, 9)
SEARCH = SearchConfig(beam=5, minimum_length=11, maximum_length=11)
BATCH = 64  # images searched together


@dataclass
class Clock:
    """What work has taken so far."""

    seconds: float = 0.0
    core_seconds: float = 0.0
    captions: int = 0

    def time(self, captions: int, work: Callable[[], object]) -> None:
        """Do the work of so many captions."""
        started, before = time.perf_counter(), time.process_time()
        work()
        self.seconds += time.perf_counter() - started
        self.core_seconds += time.process_time() - before
        self.captions += captions

    def columns(self) -> str:
        """Return captions per second, and core milliseconds per caption."""
        return f"{self.captions / self.seconds:>12.1f}{1000 * self.core_seconds / self.captions:>10.2f}"


def load_decoder(recipe: str, overrides: tuple[str, ...]) -> Decoder:
    """Return the decoder of a recipe with random weights."""
    settings = load_recipe(recipe, list(overrides))
    torch.manual_seed(0)
    return make_decoder(settings.decoder, settings.attention, CASE.words, CASE.width, GRID)


def search(decoder: Decoder, regions: Tensor) -> None:
    """Search for captions of B images, so many at a time."""
    for part in torch.split(regions, BATCH):
        beam_search(decoder, part, SEARCH)


def main() -> None:
    """Print a table of decoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of all decoders, each with batches of other lengths")
    parser.add_argument("--captions", type=int, default=80, help="of a training batch, five to an image")
    parser.add_argument("--images", type=int, default=128, help="that captions are searched for in a round")
    options = parser.parse_args()
    if not 1 <= options.rounds <= POOL:
        parser.error(f"--rounds is {options.rounds}; it must be from 1 to {POOL}")
    decoders = {name: load_decoder(*settings) for name, settings in DECODERS.items()}
    regions = torch.randn(options.images, CASE.regions, CASE.width)  # (B, L, D)
    clocks = {name: (Clock(), Clock()) for name in decoders}
    for decoder in decoders.values():  # what is only slow the first time
        search(decoder, regions[:1])
    for batch in CASE.batches(options.rounds, options.captions):
        for name, decoder in decoders.items():
            training, searching = clocks[name]
            training.time(
                options.captions, partial(time_step, decoder, partial(our_loss, decoder, batch, CASE.smoothing))
            )
            searching.time(len(regions), partial(search, decoder, regions))
    print(
        f"{options.rounds} rounds of {options.captions} captions and {options.images} images, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'decoder':<18}{'weights':>10}{'trained/s':>12}{'core ms':>10}{'searched/s':>12}{'core ms':>10}")
    for name, decoder in decoders.items():
        weights = sum(parameter.numel() for parameter in decoder.parameters())
        print(f"{name:<18}{weights:>10,}" + "".join(clock.columns() for clock in clocks[name]))


if __name__ == "__main__":
    main()
