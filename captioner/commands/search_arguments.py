"""The arguments by which commands are told how captions are searched for."""

from __future__ import annotations

import argparse
from typing import Any

from captioner.captioning.options import CaptionOptions, make_options
from captioner.commands.arguments import positive
from captioner.model.config import SearchConfig


def add_search_arguments(group: Any) -> None:
    """Add all settings of a search but its seed and how many captions it gives."""
    default = SearchConfig()
    group.add_argument(
        "--beam", type=positive, metavar="K", help=f"captions followed at once (default: {default.beam})"
    )
    group.add_argument("--groups", type=positive, metavar="G", help="of beams that make different captions")
    group.add_argument("--sample", action="store_true", help="draw words at random, as probable as they are")
    group.add_argument("--temperature", type=float, metavar="T", help="of samples, below 1 for likelier words")
    group.add_argument("--top-k", type=positive, metavar="N", help="sample among so many words only")
    group.add_argument("--top-p", type=float, metavar="P", help="sample among the words that make up this share only")
    group.add_argument(
        "--length-power", type=float, default=default.length_power, metavar="P", help="0 for short captions, 1 for long"
    )
    group.add_argument(
        "--minimum-length", type=int, default=default.minimum_length, metavar="N", help="words of a caption"
    )
    group.add_argument(
        "--maximum-length", type=positive, default=default.maximum_length, metavar="N", help="words of a caption"
    )
    group.add_argument(
        "--no-repeat", type=int, default=default.no_repeat, metavar="N", help="words in a row that are not said twice"
    )


def read_search(
    options: argparse.Namespace, *, n_best: int | None = None, workers: int | None = None
) -> CaptionOptions:
    """Return what the arguments ask for; a seed counts for samples only, and may mean something else to the command."""
    return make_options(
        n_best=n_best,
        beam=options.beam,
        groups=options.groups,
        sample=options.sample,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed if options.sample else None,
        length_power=options.length_power,
        minimum_length=options.minimum_length,
        maximum_length=options.maximum_length,
        no_repeat=options.no_repeat,
        batch_size=getattr(options, "batch_size", None),
        workers=workers,
    )
