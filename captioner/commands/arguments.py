"""What several commands share: their arguments, what they say, and progress bars."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.images.preprocessing import FITS
from captioner.model.config import WEIGHTS, EncoderConfig
from captioner.model.extensions import allow

if TYPE_CHECKING:
    from captioner.captioning.captioner import Captioner
    from captioner.datasets.dataset import CaptionDataset


def add_command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
    """Add a subcommand that `run` carries out, with `text` for its help."""
    description = text[0].upper() + text[1:] + "."
    parser = commands.add_parser(name, help=text, description=description, formatter_class=HelpFormatter)
    parser.set_defaults(run=run)
    return parser


class HelpFormatter(argparse.HelpFormatter):
    """Show the default of every option that has one, unless its help tells it in words."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = "default:" in (action.help or "") or action.default in (None, False, argparse.SUPPRESS)
        return (action.help or "") if told else f"{action.help} (default: %(default)s)"


def add_dataset_arguments(parser: Any) -> None:
    """Add DATA and how it is read."""
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data set")
    add_reading_arguments(parser)
    parser.add_argument("--seed", type=int, help="of the split that is made where the data has none (default: 0)")


def add_reading_arguments(parser: Any) -> None:
    """Add how a data set is read."""
    parser.add_argument("--format", help="its format, when it is not recognised (default: recognise)")
    parser.add_argument("--restval-to-train", action="store_true", help="join Karpathy's restval images to train")
    parser.add_argument("--tolerance", type=float, default=0.01, help="share of bad lines or images to put up with")


def read_dataset(options: argparse.Namespace) -> CaptionDataset:
    """Return the data set that the arguments name."""
    from captioner.datasets.dataset import load_dataset

    return load_dataset(
        options.data,
        options.format,
        restval_to_train=options.restval_to_train,
        tolerance=options.tolerance,
        seed=options.seed,
    )


def add_encoder_arguments(parser: Any) -> None:
    """Add a group of options that name an encoder."""
    group = parser.add_argument_group("encoder")
    default = EncoderConfig()
    group.add_argument("--encoder", metavar="NAME", default=default.name, help="its name, see `captioner encoders`")
    group.add_argument("--size", metavar="S", type=positive, help="side of its input in pixels (default: its own)")
    group.add_argument("--layer", metavar="strideN", help="a finer layer, such as stride16 (default: its last)")
    group.add_argument("--fit", choices=FITS, help="how an image becomes a square (default: squash)")
    known = ", ".join(WEIGHTS)
    group.add_argument("--weights", metavar="W", default=default.weights, help=f"{known}, or a safetensors file")


def encoder_config(options: argparse.Namespace) -> EncoderConfig:
    """Return the encoder's settings that the arguments give; a module outside of captioner may be named in them."""
    allow(options.encoder)
    return EncoderConfig(options.encoder, options.size, options.layer, options.fit, options.weights)


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of how many images are done, on stderr where that is a terminal."""
    from tqdm import tqdm

    with tqdm(desc=label, unit="image", smoothing=0.05, disable=quiet or None, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            if bar.total is None:
                bar.initial = done  # what was there already is not part of the rate
                bar.reset(total)
            bar.update(done - bar.n)

        yield show


def own_cores() -> int:
    """Return how many cores this process has, beside others that torchrun has started on this machine."""
    from captioner.threads import available_cores

    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def search_beside_encoding(model: Captioner) -> None:
    """Let torch search with one thread where others encode: threads that wait for each other come off badly then."""
    from torch import set_num_threads

    if model.device == "cpu" and not model.encodes_in_torch:
        set_num_threads(1)


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def say(message: object) -> None:
    """Tell the user something, on stderr."""
    print(message, file=sys.stderr)


def complain(message: object) -> None:
    """Tell the user what is wrong, in one line on stderr."""
    print(f"captioner: {message}", file=sys.stderr)
