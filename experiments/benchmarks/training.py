"""Captions per second of a training step, against the decoder as it is usually written, in one run and in turn.

    python experiments/benchmarks/training.py
    python experiments/benchmarks/training.py --regions 81 196 --dimensions 512 --vocabulary 2500 --rounds 8
    python experiments/benchmarks/training.py --profile

The decoder as it is usually written is `captioner.model.textbook`: a row for each caption with its own copy of the
image's regions, which are projected anew at every step; every row is read up to the longest caption of the batch, and
words are scored at every position, of which a mask then leaves out the padding.

A step is the forward pass, the loss and the backward pass, on random regions and on captions as long as Flickr8k's. In
a round the textbook's step is timed once and ours before and after it, on the same batch, and a large matrix product
before and after those. Times are added up over the rounds, each of which has a batch of another length, so that a busy
spell of the machine meets all of them. The share is how much of the large product's rate our step reaches in the
multiply-adds that it cannot do without: see `multiply_adds`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.model.config import GATES, AttentionConfig, DecoderConfig
from captioner.model.decoder import Decoder
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.kernels.additive import AdditiveKeys
from captioner.model.losses import cross_entropy, doubly_stochastic_penalty, word_losses
from captioner.model.randomness import Randomness
from captioner.model.textbook import Textbook, soft_loss
from captioner.training.settings import LossConfig

SIZES = ((81, 1280, 2500), (81, 1280, 10000), (196, 512, 2500), (196, 2048, 2500), (196, 2048, 10000))  # L, D, V
CAPTIONS_PER_IMAGE = 5
POOL = 50  # batches whose images are sorted by length together
WARM_UP = 3  # words of each caption that are read before the clock starts
SQUARE = 2048  # rows and columns of the large product


@dataclass(frozen=True)
class Case:
    """L regions of D features, V words, and what is compared: the paper's decoder with a gate, or the recipe."""

    regions: int
    width: int
    words: int
    gate: str | None  # None for training as it is by default, which has no counterpart in the textbook

    @property
    def smoothing(self) -> float:
        """The share of each target that is spread over all words."""
        return 0.0 if self.gate else LossConfig.smoothing

    def decoder(self) -> LSTMDecoder:
        """Return a decoder with random weights."""
        paper = {"regions": 0, "normalise": False, "embedding": 512, "tied": False, "gate": self.gate, "dropout": 0.0}
        config = DecoderConfig(**paper) if self.gate else DecoderConfig()  # type: ignore[arg-type]
        torch.manual_seed(0)
        return LSTMDecoder(config, AttentionConfig(), self.words, self.width, (1, self.regions))

    def batches(self, count: int, captions: int) -> Iterator[Batch]:
        """Yield so many batches of so many captions, evenly spaced in a pool that is sorted by length."""
        images = captions // CAPTIONS_PER_IMAGE
        generator = torch.Generator().manual_seed(0)
        pool = sorted(sample_lengths(POOL * images))
        for place in range(count):
            first = (2 * place + 1) * POOL // (2 * count) * images
            lengths = torch.tensor(pool[first : first + images]).unsqueeze(-1)  # (B, N, 1)
            ids = torch.randint(UNKNOWN, self.words, (*lengths.shape[:2], int(lengths.max()) + 2), generator=generator)
            position = torch.arange(ids.shape[2])  # (T + 1,), the words of a caption being those from 1 to its length
            ids[:, :, 0] = START
            ids[position == lengths + 1] = END
            ids[position > lengths + 1] = PAD
            yield Batch(torch.randn(images, self.regions, self.width, generator=generator), ids)


def sample_lengths(images: int) -> list[list[int]]:
    """Return the words of the five captions of each image, the longest first, drawn to be like Flickr8k's.

    There the mean is 10.8 and the standard deviation 3.8; this distribution's percentiles are within a word of its own.
    """
    words = np.random.default_rng(0).gamma(8.08, 1.337, (images, CAPTIONS_PER_IMAGE))
    return [sorted(lengths, reverse=True) for lengths in np.rint(words).clip(3, 30).astype(int).tolist()]


@dataclass(frozen=True)
class Batch:
    """B images with N captions each."""

    regions: Tensor  # (B, L, D)
    caption_ids: Tensor  # (B, N, T + 1)

    @property
    def mask(self) -> Tensor:
        """Where there is a word to predict, (B, N, T)."""
        return self.caption_ids[:, :, 1:] != PAD

    def first(self, words: int) -> Batch:
        """Return the batch with no more than so many words of each caption."""
        return Batch(self.regions, self.caption_ids[:, :, : words + 1])

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return regions (C, L, D), a copy for each caption, caption ids (C, T + 1) and mask (C, T)."""
        regions = self.regions.repeat_interleave(CAPTIONS_PER_IMAGE, dim=0)
        return regions, self.caption_ids.flatten(0, 1), self.mask.flatten(0, 1)


def our_loss(decoder: Decoder, batch: Batch, smoothing: float) -> Tensor:
    """Return the loss that the textbook has too, the paper's equation 14."""
    mask = batch.mask  # (B, N, T)
    outputs = decoder(batch.regions, batch.caption_ids, Randomness([0], len(mask)), mask)
    targets = batch.caption_ids[:, :, 1:][mask]  # (W,)
    losses, _ = word_losses(outputs.logits, targets, smoothing)
    words = cross_entropy(losses, mask[..., 0].numel(), reduction="sum")
    return words + doubly_stochastic_penalty(outputs.alpha, mask, reduction="sum")


def multiply_adds(decoder: LSTMDecoder, batch: Batch) -> int:
    """Return the multiply-adds in matrix products that a step on the batch cannot do without.

    They are those of the captions' words, without padding, and of the regions, once for all captions of an image. A
    product forward has two backward, for its two factors, but one where a factor is the regions as they come, which
    need no gradient. The decoder's attention is soft and additive, its output deep.
    """
    config, width = decoder.config, decoder.attention.config.width
    images, cells, features = batch.regions.shape
    words = int(batch.mask.sum())
    embedding, hidden, context = config.embedding, config.hidden, config.regions or features
    gate = {"none": 0, "scalar": 1, "vector": context}[config.gate]
    lstm = 4 * hidden * (embedding + context + hidden)
    output = embedding * (hidden + context + decoder.output.out_features)
    energies = cells * width  # v . tanh(...)
    of_words = words * (lstm + output + energies + hidden * (gate + width))
    of_regions = images * (cells * context * width + 2 * context * hidden) + words * cells * context
    if config.regions:
        return 3 * (of_words + of_regions) + 2 * images * cells * features * context
    return 3 * of_words + 2 * of_regions


@dataclass(frozen=True)
class Times:
    """Seconds, in the order in which they passed."""

    product: list[float] = field(default_factory=list)  # two a round
    ours: list[float] = field(default_factory=list)  # two a round
    textbook: list[float] = field(default_factory=list)  # one a round, or none


def time_step(module: nn.Module, loss: Callable[[], Tensor]) -> float:
    """Return the seconds that a loss and its gradients take."""
    module.zero_grad(set_to_none=True)
    started = time.perf_counter()
    loss().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


def time_product(square: Tensor) -> float:
    """Return the seconds that the large product takes."""
    started = time.perf_counter()
    torch.mm(square, square)
    return time.perf_counter() - started


def measure(case: Case, rounds: int, captions: int) -> str:
    """Return the table's line for a case."""
    decoder = case.decoder()
    textbook = Textbook.from_decoder(decoder) if case.gate else None
    square = torch.randn(SQUARE, SQUARE)
    times, work = Times(), 0
    warm = next(case.batches(1, captions)).first(WARM_UP)
    time_product(square)
    time_step(decoder, partial(our_loss, decoder, warm, case.smoothing))
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
        times.product.append(time_product(square))
        work += 2 * multiply_adds(decoder, batch)
    return line(case, times, work, captions)


def line(case: Case, times: Times, work: int, captions: int) -> str:
    """Return the table's line for the times of a case, `work` being the multiply-adds of all our steps."""
    ours = captions * len(times.ours) / sum(times.ours)
    product = SQUARE**3 * len(times.product) / sum(times.product)  # multiply-adds per second
    columns = f"{case.regions:>4}{case.width:>6}{case.words:>7}  {case.gate or 'default recipe':<16}"
    if times.textbook:
        theirs = captions * len(times.textbook) / sum(times.textbook)
        rounds = zip(times.textbook, times.ours[::2], times.ours[1::2], strict=True)
        ratios = [2 * textbook / (before + after) for textbook, before, after in rounds]
        columns += f"{theirs:>9.1f}{ours:>9.1f}{ours / theirs:>8.2f}{min(ratios):>8.2f} to {max(ratios):<6.2f}"
    else:
        columns += f"{'':>9}{ours:>9.1f}{'':>26}"
    return columns + f"{2 * product / 1e9:>9.0f}{work / sum(times.ours) / product:>7.0%}"


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
    ("matrix products", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv_")),
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
        if event.name in operations:
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
        print(HEADER)
    for case in cases:
        print((profile_steps if options.profile else measure)(case, options.rounds, options.captions), flush=True)


if __name__ == "__main__":
    main()
