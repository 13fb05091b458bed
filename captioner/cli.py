"""The command line: each subcommand parses, calls one function and prints. torch is imported only by those that run it.

Exit codes: 0 all good, 1 something failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner import __version__
from captioner.config import ENGINES, WEIGHTS, EncoderConfig
from captioner.images import FITS, ImageError, find_images, open_image, printable

if TYPE_CHECKING:
    from captioner.datasets import CaptionDataset


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = make_parser().parse_args(arguments)
    # A decoder's warning about a file is either repeated in our own words when the file is refused, or of no interest.
    warnings.filterwarnings("ignore", module="PIL")
    signal.signal(signal.SIGTERM, _interrupt)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        _complain("interrupted; what is done is kept, and the same command goes on from there")
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        return 1
    except (ValueError, OSError) as error:
        _complain(error)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="captioner", description="Image captioning with visible attention.")
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_describe(commands)
    _add_features(commands)
    _add_inspect(commands)
    _add_encoders(commands)
    return parser


def _add_command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
    description = text[0].upper() + text[1:] + "."
    parser = commands.add_parser(name, help=text, description=description, formatter_class=_HelpFormatter)
    parser.set_defaults(run=run)
    return parser


class _HelpFormatter(argparse.HelpFormatter):
    """Show the default of every option that has one, unless its help tells it in words."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = "default:" in (action.help or "") or action.default in (None, False, argparse.SUPPRESS)
        return (action.help or "") if told else f"{action.help} (default: %(default)s)"


def _add_describe(commands: Any) -> None:
    parser = _add_command(commands, "describe", run_describe, "count and check the images and captions of a data set")
    _add_dataset_arguments(parser)
    parser.add_argument("--min-count", type=int, default=5, help="how often a word must occur to be in the vocabulary")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.add_argument("--histogram", type=Path, metavar="PNG", help="also draw the caption lengths into this file")


def run_describe(options: argparse.Namespace) -> int:
    """Print what is in a data set."""
    from captioner.describe import describe, length_histogram

    dataset = _load_dataset(options)
    description = describe(dataset, options.min_count)
    print(json.dumps(description.to_dict(), indent=2) if options.json else description.to_text())
    if options.histogram:
        length_histogram(dataset, options.histogram)
        _say(f"wrote {options.histogram}")
    return 0


def _add_features(commands: Any) -> None:
    parser = _add_command(commands, "features", run_features, "encode the images of a data set into a region cache")
    _add_dataset_arguments(parser)
    _add_encoder_arguments(parser)
    parser.add_argument("--split", help="encode only this split (default: all)")
    parser.add_argument("--flips", action="store_true", help="also encode every image mirrored, for augmentation")
    parser.add_argument("--out", type=Path, help="folder of the caches (default: features/NAME-OF-DATA)")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="what runs the encoder")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--workers", type=_positive, metavar="N", help="decoding threads (default: one a core)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run_features(options: argparse.Namespace) -> int:
    """Fill the region caches of a data set, plain and mirrored."""
    dataset = _load_dataset(options)
    for note in dataset.notes:
        _say(note)
    images = dataset.split(options.split) if options.split else dataset.images
    from captioner.encoder import load_encoder
    from captioner.features import fill_cache

    encoder = load_encoder(_encoder_config(options), progress=not options.quiet)
    root = options.out or Path("features") / dataset.root.resolve().name
    failed = False
    for flip in (False, True) if options.flips else (False,):
        started = time.monotonic()
        with _progress_bar("mirrored" if flip else "regions", quiet=options.quiet) as progress:
            folder, report = fill_cache(
                images,
                root,
                encoder,
                flip=flip,
                engine=options.engine,
                device=options.device,
                workers=options.workers,
                progress=progress,
            )
        for reason in report.refused:
            _complain(reason)
        failed |= bool(report.refused)
        rate = report.encoded / (time.monotonic() - started)
        done = f"{report.encoded:,} encoded ({rate:.1f} a second)" if report.encoded else "nothing to encode"
        print(f"{folder}: {done}, {report.skipped:,} there already, {len(report.refused):,} refused")
    return int(failed)


def _add_inspect(commands: Any) -> None:
    parser = _add_command(commands, "inspect", run_inspect, "show the regions and the class that the encoder sees")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="images or folders of images")
    parser.add_argument("--recursive", action="store_true", help="look into subfolders too")
    _add_encoder_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="also draw a figure of each image into this folder")


def run_inspect(options: argparse.Namespace) -> int:
    """Print the geometry and ImageNet classes of images; draw them on request."""
    paths = list(find_images(options.paths, recursive=options.recursive))
    if not paths:
        raise ValueError(f"no images in {', '.join(str(path) for path in options.paths)}")
    from captioner.encoder import load_encoder
    from captioner.inspection import draw_inspection, inspect_images

    encoder = load_encoder(_encoder_config(options), progress=True)
    failed = False
    names = _distinct_names(paths)
    for path, name, seen in zip(paths, names, inspect_images(paths, encoder), strict=True):
        if isinstance(seen, ImageError):
            _complain(seen)
            failed = True
            continue
        rows, columns = seen.evidence.shape
        classes = ", ".join(f"{label} {probability:.0%}" for label, probability in seen.classes)
        size = f"{seen.geometry.width} x {seen.geometry.height}"
        print(f"{printable(str(path))}\t{size}\t{rows} x {columns} regions\t{classes}", flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            draw_inspection(open_image(path), seen).savefig(options.out / name, dpi=150)
    if options.out:
        _say(f"the figures are in {options.out}/: the regions of each image, and the evidence for its class")
    return int(failed)


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a PNG name for each path, no two alike: a/1.jpg and b/1.jpg become 1.jpg.png and 1.jpg-2.png."""
    taken: set[str] = set()
    names = []
    for path in paths:
        number = 1
        name = f"{path.name}.png"
        while name in taken:
            number += 1
            name = f"{path.name}-{number}.png"
        taken.add(name)
        names.append(name)
    return names


def _add_encoders(commands: Any) -> None:
    _add_command(commands, "encoders", run_encoders, "list the encoders that can be named")


def run_encoders(_: argparse.Namespace) -> int:
    """Print the names of encoders, one a line."""
    from captioner.backbones import names

    print("\n".join([*names(), "timm/NAME"]))
    return 0


def _add_dataset_arguments(parser: Any) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data set")
    parser.add_argument("--format", help="its format, when it is not recognised (default: recognise)")
    parser.add_argument("--restval-to-train", action="store_true", help="join Karpathy's restval images to train")
    parser.add_argument("--tolerance", type=float, default=0.01, help="share of bad lines or images to put up with")
    parser.add_argument("--seed", type=int, help="of the split that is made where the data has none (default: 0)")


def _load_dataset(options: argparse.Namespace) -> CaptionDataset:
    from captioner.datasets import load_dataset

    return load_dataset(
        options.data,
        options.format,
        restval_to_train=options.restval_to_train,
        tolerance=options.tolerance,
        seed=options.seed,
    )


def _add_encoder_arguments(parser: Any) -> None:
    group = parser.add_argument_group("encoder")
    default = EncoderConfig()
    group.add_argument("--encoder", metavar="NAME", default=default.name, help="its name, see `captioner encoders`")
    group.add_argument("--size", metavar="S", type=_positive, help="side of its input in pixels (default: its own)")
    group.add_argument("--layer", metavar="strideN", help="a finer layer, such as stride16 (default: its last)")
    group.add_argument("--fit", choices=FITS, help="how an image becomes a square (default: squash)")
    group.add_argument("--weights", choices=WEIGHTS, default=default.weights, help="its weights")


def _encoder_config(options: argparse.Namespace) -> EncoderConfig:
    return EncoderConfig(options.encoder, options.size, options.layer, options.fit, options.weights)


@contextmanager
def _progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of how many images are done, on stderr where that is a terminal."""
    from tqdm import tqdm

    with tqdm(desc=label, unit="image", smoothing=0.05, disable=quiet or None, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            if bar.total is None:
                bar.initial = done  # what was there already is not part of the rate
                bar.reset(total)
            bar.update(done - bar.n)

        yield show


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(message: object) -> None:
    print(message, file=sys.stderr)


def _complain(message: object) -> None:
    print(f"captioner: {message}", file=sys.stderr)
