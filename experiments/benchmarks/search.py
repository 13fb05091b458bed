"""Images per second of beam search: one image at a time, as textbooks have it and by ours, and in batches.

    python experiments/benchmarks/search.py
    python experiments/benchmarks/search.py --data PATH/TO/IMAGES

The decoder has the default sizes and no training: `make_decoder` sets its weights so that captions are about as long,
as different and as sure of their words as those of a trained one. Rounds of all contestants in turn are added up, so
that a busy spell of the machine meets all. Where other programs keep the cores busy, compare with `--threads 1`: an
operation shared among threads waits for the slowest of them.

With a folder of images, files are decoded, encoded and captioned side by side instead, against the encoder alone on
images that are decoded already.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.datasets.vocabulary import END, START
from captioner.model.config import AttentionConfig, DecoderConfig, EncoderConfig
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.encoders.encoder import load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.model.search.beam import beam_search
from captioner.model.search.next_words import next_word_scores
from captioner.model.search_settings import SearchConfig
from captioner.model.textbook import Textbook, all_there
from captioner.threads import available_cores, map_ahead

WORDS, LENGTH, WIDTH, GRID = 2540, 81, 1280, (9, 9)  # V, L, D
CONFIG = SearchConfig(beam=5)
Found = list[tuple[int, ...]]


def make_decoder() -> LSTMDecoder:
    """Return a decoder of the default sizes whose captions come out about eleven words long.

    Larger weights between word, state and words make the words follow from image and history, about as sure as a
    trained decoder's. The first unit of the LSTM is cut off from the rest and counts: its cell grows by the same
    amount with every word, and its output adds to the score of the end marker alone.
    """
    torch.manual_seed(0)
    decoder = LSTMDecoder(DecoderConfig(), AttentionConfig(), WORDS, WIDTH, GRID).eval()
    hidden = decoder.config.hidden
    assert decoder.output_context is not None
    with torch.no_grad():
        decoder.from_word.weight.mul_(16)
        decoder.from_context.weight.mul_(4)
        decoder.output_hidden.weight.mul_(32)
        decoder.output_context.weight.mul_(8)
        decoder.output.bias.copy_(-torch.arange(1, WORDS + 1).log())  # (V,), some words are far more frequent
        # Input, forget and output gate stay open, and the candidate is always the same.
        for layer in (decoder.from_word, decoder.from_context, decoder.from_hidden):
            layer.weight[::hidden].zero_()
        decoder.from_word.bias[::hidden] = torch.tensor([10.0, 10.0, math.atanh(0.08), 10.0])
        for initial in (decoder.initial_hidden, decoder.initial_memory):
            assert isinstance(initial, torch.nn.Sequential)
            (linear, _) = initial
            assert isinstance(linear, torch.nn.Linear)
            linear.weight[0], linear.bias[0] = 0, 0
        decoder.output_hidden.weight[0], decoder.output_hidden.bias[0] = 0, 0
        decoder.output_hidden.weight[:, 0] = 0
        decoder.output_hidden.weight[0, 0] = 1
        decoder.output_context.weight[0] = 0
        decoder.embedding.weight[:, 0] = 0
        decoder.embedding.weight[END, 0] = 40.0
        decoder.output.bias[END] = -22.0
    return decoder


class ProjectedOnce(Textbook):
    """The paper's decoder, but the regions of an image, which do not change in a search, are projected only once."""

    projected: Tensor | None = None  # (K, L, A)

    def f_att(self, a: Tensor, h: Tensor) -> Tensor:
        """Return scores (K, L)."""
        if self.projected is None:
            self.projected = self.W_a(a)
        e: Tensor = self.v(torch.tanh(self.projected + self.W_h(h).unsqueeze(1))).squeeze(2)  # (K, L)
        return e


@torch.no_grad()
def textbook_search(page: ProjectedOnce, regions: Tensor) -> tuple[int, ...]:
    """Return the words of the best caption of one image of regions (1, L, D), by a beam search as tutorials write it.

    A row for each beam with its own copy of the regions, a tanh for each pair of beam and region, the whole vocabulary
    sorted, and captions kept as rows of ids. Rules and result are those of `beam_search`.
    """
    beams, page.projected = CONFIG.beam, None
    a = page.encode(regions).expand(beams, -1, -1)  # (K, L, D)
    there = all_there(a)  # (K, L)
    h, c = page.start(a, there)  # (K, H)
    captions = torch.full((beams, 1), START)  # (K, t + 1)
    totals = torch.full((beams,), -math.inf)
    totals[0] = 0
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(CONFIG.maximum_length + 1):
        logits, _, _, h, c = page.step(a, there, h, c, captions[:, -1])  # (K, V)
        scores = totals.unsqueeze(1) + next_word_scores(logits.unsqueeze(0), captions[None, :, 1:], CONFIG)[0]
        tops, places = scores.flatten().topk(2 * beams)
        going: list[tuple[float, int, int]] = []
        for place, (total, flat) in enumerate(zip(tops.tolist(), places.tolist(), strict=True)):
            beam, chosen = divmod(flat, WORDS)
            if chosen == END and place < beams:
                finished.append((total / (length + 1) ** CONFIG.length_power, tuple(captions[beam, 1:].tolist())))
            elif chosen != END and len(going) < beams:
                going.append((total, beam, chosen))
        if len(finished) >= beams or length == CONFIG.maximum_length:
            break
        totals = torch.tensor([total for total, _, _ in going])
        parents = torch.tensor([beam for _, beam, _ in going])
        captions = torch.cat([captions[parents], torch.tensor([[chosen] for _, _, chosen in going])], dim=1)
        h, c = h[parents], c[parents]
    return max(finished)[1]


def search_textbook(decoder: LSTMDecoder, regions: Tensor) -> Found:
    """Return the captions of B images, one after the other by the textbook."""
    page = ProjectedOnce.from_decoder(decoder)
    return [textbook_search(page, image) for image in torch.split(regions, 1)]


def search_batches(decoder: LSTMDecoder, size: int, regions: Tensor) -> Found:
    """Return the captions of B images, so many at a time."""
    return [best.ids for part in torch.split(regions, size) for (best,) in beam_search(decoder, part, CONFIG)]


def search_side_by_side(decoder: LSTMDecoder, size: int, regions: Tensor) -> Found:
    """Return the captions of B images, so many at a time on each core, as `caption_sources` does on a large machine.

    Each search has one thread: threads that share an operation wait for each other at the end of it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts, cores = torch.split(regions, size), available_cores()
        found = map_ahead(partial(search_batches, decoder, size), parts, workers=cores, ahead=cores, name="search")
        return [ids for part in found for ids in part]
    finally:
        torch.set_num_threads(threads)


def compare_searches(options: argparse.Namespace) -> None:
    """Print a table of contestants."""
    decoder = make_decoder()
    regions = torch.randn(options.images, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))  # (B, L, D)
    runs: dict[str, Callable[[Tensor], Found]] = {
        "textbook, one image at a time": partial(search_textbook, decoder),
        **{
            f"beam_search, batches of {size}" if size > 1 else "beam_search, one image at a time": partial(
                search_batches, decoder, size
            )
            for size in (1, *options.batches)
        },
        **{
            f"the same, one thread a core, {size}": partial(search_side_by_side, decoder, size)
            for size in options.batches
        },
    }
    for run in runs.values():
        run(regions[:1])
    times, work, found = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0), dict[str, Found]()
    for _ in range(options.rounds):
        for name, run in runs.items():
            started, before = time.perf_counter(), time.process_time()
            found[name] = run(regions)
            times[name] += time.perf_counter() - started
            work[name] += time.process_time() - before
    single = "beam_search, one image at a time"
    lengths = [len(ids) for ids in found[single]]
    print(
        f"{len(regions):,} images, beam {CONFIG.beam}, captions of {statistics.mean(lengths):.1f} words "
        f"(deviation {statistics.pstdev(lengths):.1f}, {min(lengths)} to {max(lengths)}), {options.rounds} rounds, "
        f"{available_cores()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'search':<36}{'images/s':>10}{'ratio':>8}{'core ms/image':>16}{'ratio':>8}{'same captions':>16}")
    for name, seconds in times.items():
        same = sum(ours == theirs for ours, theirs in zip(found[name], found[single], strict=True))
        total = options.rounds * len(regions)
        print(
            f"{name:<36}{total / seconds:>10.1f}{times[single] / seconds:>8.2f}{1000 * work[name] / total:>16.1f}"
            f"{work[single] / work[name]:>8.2f}{same / len(regions):>16.1%}"
        )


def compare_pipelines(options: argparse.Namespace) -> None:
    """Print images per second of the encoder alone and from files to captions, in turn."""
    torch.set_num_threads(1)  # the other cores have the encoder's work
    encoder, decoder = load_encoder(EncoderConfig()), make_decoder()
    engine = make_engine(encoder)
    paths = sorted(path for path in options.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    paths = paths[: options.images]

    def decode(path: Path) -> NDArray[np.uint8]:
        return encoder.preprocessing.read(path).pixels

    def search(regions: NDArray[Any]) -> Found:
        return search_batches(decoder, len(regions), torch.from_numpy(regions))

    def parts(items: Iterator[NDArray[np.uint8]]) -> Iterator[list[NDArray[np.uint8]]]:
        part: list[NDArray[np.uint8]] = []
        for item in items:
            part.append(item)
            if len(part) == size:
                yield part
                part = []
        if part:
            yield part

    def caption() -> None:
        decoded = map_ahead(decode, paths, workers=available_cores(), ahead=2 * size, name="decode")
        encoded = map_ahead(engine, parts(decoded), workers=1, ahead=1, name="encode")
        assert sum(len(found) for found in map_ahead(search, encoded, workers=1, ahead=1, name="search")) == len(paths)

    size = options.batches[-1]
    pixels = [decode(path) for path in paths]
    engine(pixels[:size])
    runs: dict[str, Callable[[], object]] = {"encoder alone": lambda: engine(pixels), "files to captions": caption}
    times: dict[str, list[float]] = {name: [] for name in runs}
    work = dict.fromkeys(runs, 0.0)
    for _ in range(options.rounds):
        for name, run in runs.items():
            started, before = time.perf_counter(), time.process_time()
            run()
            times[name].append(time.perf_counter() - started)
            work[name] += time.process_time() - before
    print(f"{len(paths):,} images, {options.rounds} rounds, batches of {size}, beam {CONFIG.beam}")
    print(f"{'':<20}{'images/s':>10}{'core ms/image':>16}")
    total = options.rounds * len(paths)
    for name, seconds in times.items():
        print(f"{name:<20}{total / sum(seconds):>10.1f}{1000 * work[name] / total:>16.1f}")
    alone, whole = times.values()
    ratios = [both / encode for encode, both in zip(alone, whole, strict=True)]
    spread = f"rounds from {min(ratios):.2f} to {max(ratios):.2f}"
    busy = work["files to captions"] / work["encoder alone"]
    print(f"captions take {sum(whole) / sum(alone):.2f} times as long ({spread}), {busy:.2f} times the work")


def main() -> None:
    """Compare searches, or pipelines where there are images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 32, 64], help="images searched at a time")
    parser.add_argument("--threads", type=int, help="threads to an operation, by default what torch chooses")
    parser.add_argument("--data", type=Path, help="a folder of images, to caption them from their files")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    compare_pipelines(options) if options.data else compare_searches(options)


if __name__ == "__main__":
    main()
