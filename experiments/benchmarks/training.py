"""Captions per second of a training step, against the decoder as it is usually written, in one run and in turn.

    python experiments/benchmarks/training.py
    python experiments/benchmarks/training.py --regions 81 196 --dimensions 512 --vocabulary 2500 --rounds 8
    python experiments/benchmarks/training.py --profile

The decoder as it is usually written is `captioner.model.textbook`: a row for each caption with its own copy of the
image's regions, which are projected anew at every step; every row is read up to the longest caption of the batch, and
words are scored at every position, of which a mask then leaves out the padding.

A step is the forward pass, the loss and the backward pass, on random regions and on captions as long as Flickr8k's. In
a round the textbook's step is timed once and ours before and after it, on the same batch, and a large matrix product,
by the library that is faster on this processor, before and after those. Times are added up over the rounds, each of
which has a batch of another length, so that a busy spell of the machine meets all of them. The share is how much of the
large product's rate our step reaches in the multiply-adds that it cannot do without: see `multiply_adds`. With
--bfloat16 our step is timed with products in bfloat16 too, as training with `precision: bfloat16` has them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from training_steps import CAPTIONS_PER_IMAGE, POOL, Case, multiply_adds, our_loss, time_step

from captioner.model.config import GATES
from captioner.model.kernels.additive import AdditiveKeys
from captioner.model.kernels.products import product
from captioner.model.randomness import Randomness
from captioner.model.textbook import Textbook, soft_loss

SIZES = ((81, 1280, 2500), (81, 1280, 10000), (196, 512, 2500), (196, 2048, 2500), (196, 2048, 10000))  # L, D, V
WARM_UP = 3  # words of each caption that are read before the clock starts
SQUARE = 2048  # rows and columns of the large product


@dataclass(frozen=True)
class Times:
    """Seconds, in the order in which they passed."""

    product: list[float] = field(default_factory=list)  # two a round
    ours: list[float] = field(default_factory=list)  # two a round
    textbook: list[float] = field(default_factory=list)  # one a round, or none
    bfloat16: list[float] = field(default_factory=list)  # the same


def time_product(square: Tensor) -> float:
    """Return the seconds that the large product takes."""
    started = time.perf_counter()
    product(square, square)
    return time.perf_counter() - started


def in_bfloat16(loss: Callable[[], Tensor]) -> Tensor:
    """Return a loss whose products are of bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return loss()


def measure(case: Case, rounds: int, captions: int, bfloat16: bool) -> str:
    """Return the table's line for a case."""
    decoder = case.decoder()
    textbook = Textbook.from_decoder(decoder) if case.gate else None
    square = torch.randn(SQUARE, SQUARE)
    times, work = Times(), 0
    warm = next(case.batches(1, captions)).first(WARM_UP)
    time_product(square)
    time_step(decoder, partial(our_loss, decoder, warm, case.smoothing))
    if bfloat16:
        time_step(decoder, partial(in_bfloat16, partial(our_loss, decoder, warm, case.smoothing)))
    if textbook is not None:
        time_step(textbook, partial(soft_loss, textbook, *warm.rows()))
    for batch in case.batches(rounds, captions):
        ours = partial(our_loss, decoder, batch, case.smoothing)
        times.product.append(time_product(square))
        times.ours.append(time_step(decoder, ours))
        if textbook is not None:
            # The copies of the regions, which a loader of images with one caption each makes, are not timed.
            times.textbook.append(time_step(textbook, partial(soft_loss, textbook, *batch.rows())))
        times.ours.append(time_step(decoder, ours))
        if bfloat16:
            times.bfloat16.append(time_step(decoder, partial(in_bfloat16, ours)))
        times.product.append(time_product(square))
        work += 2 * multiply_adds(decoder, batch)
    return line(case, times, work, captions)


def line(case: Case, times: Times, work: int, captions: int) -> str:
    """Return the table's line for the times of a case, `work` being the multiply-adds of all our steps."""
    ours = captions * len(times.ours) / sum(times.ours)
    rate = SQUARE**3 * len(times.product) / sum(times.product)  # multiply-adds per second
    columns = f"{case.regions:>4}{case.width:>6}{case.words:>7}  {case.gate or 'default recipe':<16}"
    if times.textbook:
        theirs = captions * len(times.textbook) / sum(times.textbook)
        rounds = zip(times.textbook, times.ours[::2], times.ours[1::2], strict=True)
        ratios = [2 * textbook / (before + after) for textbook, before, after in rounds]
        columns += f"{theirs:>9.1f}{ours:>9.1f}{ours / theirs:>8.2f}{min(ratios):>8.2f} to {max(ratios):<6.2f}"
    else:
        columns += f"{'':>9}{ours:>9.1f}{'':>26}"
    columns += f"{2 * rate / 1e9:>9.0f}{work / sum(times.ours) / rate:>7.0%}"
    return columns + (f"{captions * len(times.bfloat16) / sum(times.bfloat16):>10.1f}" if times.bfloat16 else "")


HEADER = (
    f"{'L':>4}{'D':>6}{'V':>7}  {'gate':<16}{'textbook':>9}{'ours':>9}{'ratio':>8}{'of single rounds':>18}"
    f"{'GFLOP/s':>9}{'share':>7}"
)

# What the profiler is told to name, so that the operations inside can be told from others; the rest has names already.
SCOPES = ((AdditiveKeys, "scores"), (AdditiveKeys, "add_gradients"), (Randomness, "dropout"))
# Where the time of an operation goes: to the first group that has a part of its name, or of a name around it.
GROUPS = (
    ("additive pairs", ("AdditiveKeys.",)),
    ("dropout", ("Randomness.",)),
    ("LSTM arithmetic", ("_Cell",)),
    ("softmax and cross entropy", ("softmax", "nll_loss", "cross_entropy")),
)
KINDS = (
    (
        "matrix products",
        ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv_", "mkldnn::"),
    ),
    ("copies and zeros", ("aten::copy_", "aten::cat", "aten::fill_", "aten::index", "aten::index_select")),
)


def profile_steps(case: Case, rounds: int, captions: int) -> str:
    """Return lines that say where the time of our steps goes, in milliseconds a step."""
    decoder = case.decoder()
    warm = next(case.batches(1, captions))
    time_step(decoder, partial(our_loss, decoder, warm, case.smoothing))
    with ExitStack() as patches, profile(activities=[ProfilerActivity.CPU]) as profiler:
        for owner, name in SCOPES:
            patches.enter_context(patch.object(owner, name, named(getattr(owner, name))))
        for batch in case.batches(rounds, captions):
            with record_function("step"):
                time_step(decoder, partial(our_loss, decoder, batch, case.smoothing))
    spent: Counter[str] = Counter()
    for event in profiler.events() or ():
        spent[group(event)] += event.self_cpu_time_total  # microseconds
    total = sum(spent.values())
    lines = [f"L {case.regions}, D {case.width}, V {case.words}, {case.gate or 'default recipe'}: ms a step"]
    lines += [f"{name:<28}{value / 1000 / rounds:>8.1f}{value / total:>7.1%}" for name, value in spent.most_common()]
    return "\n".join([*lines, f"{'all':<28}{total / 1000 / rounds:>8.1f}"])


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in a scope of its own name."""

    @wraps(function)
    def run(*arguments: Any) -> Any:
        with record_function(function.__qualname__):
            return function(*arguments)

    return run


def group(event: Any) -> str:
    """Return which part of the work an event of the profiler belongs to."""
    around = event
    while around is not None:
        for name, parts in GROUPS:
            if any(part in around.name for part in parts):
                return name
        around = around.cpu_parent
    for name, operations in KINDS:
        if event.name.startswith(operations):
            return name
    return "other arithmetic" if event.name.startswith("aten::") else "Python and autograd's graph"


def main() -> None:
    """Print a table of rates, or with --profile where the time goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=int, nargs="+", help="L, all of them with all of the other two")
    parser.add_argument("--dimensions", type=int, nargs="+", help="D")
    parser.add_argument("--vocabulary", type=int, nargs="+", help="V")
    parser.add_argument("--gate", choices=GATES, default="scalar", help="of the paper's decoder")
    parser.add_argument("--rounds", type=int, default=3, help="batches, of different lengths")
    parser.add_argument("--captions", type=int, default=80, help="of a batch, five to an image")
    parser.add_argument("--bfloat16", action="store_true", help="time our step in bfloat16 too")
    parser.add_argument("--profile", action="store_true", help="show where the time of our step goes instead")
    options = parser.parse_args()
    if options.captions < CAPTIONS_PER_IMAGE or options.captions % CAPTIONS_PER_IMAGE:
        parser.error(f"--captions is {options.captions}; it must be a multiple of {CAPTIONS_PER_IMAGE}")
    if not 1 <= options.rounds <= POOL:
        parser.error(f"--rounds is {options.rounds}; it must be from 1 to {POOL}")
    sizes = list(SIZES)
    if options.regions or options.dimensions or options.vocabulary:
        lists = (options.regions or [81], options.dimensions or [1280], options.vocabulary or [2500])
        sizes = list(itertools.product(*lists))
    cases = [*(Case(*size, options.gate) for size in sizes), Case(*sizes[0], None)]
    about = f"{options.captions} captions a batch, {options.rounds} rounds, {torch.get_num_threads()} threads"
    print(f"{about}, torch {torch.__version__}")
    if not options.profile:
        print(HEADER + f"{'bfloat16':>10}" * options.bfloat16)
    for case in cases:
        if options.profile:
            print(profile_steps(case, options.rounds, options.captions), flush=True)
        else:
            print(measure(case, options.rounds, options.captions, options.bfloat16), flush=True)


if __name__ == "__main__":
    main()
