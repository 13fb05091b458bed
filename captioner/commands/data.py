"""`captioner describe` and `captioner features`: data sets, and the regions of their images."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from captioner.commands.arguments import (
    add_dataset_arguments,
    add_device_argument,
    add_encoder_arguments,
    add_setting,
    encoder_config,
    read_dataset,
    read_device,
)
from captioner.commands.messages import complain, progress_bar, say, show
from captioner.commands.parser import UsageError, add_command, positive
from captioner.model.config import ENGINES


def add_describe(commands: Any) -> None:
    """Add `captioner describe`."""
    parser = add_command(commands, "describe", run_describe, "count and check the images and captions of a data set")
    add_dataset_arguments(parser)
    parser.add_argument(
        "--min-count",
        type=positive,
        default=5,
        metavar="N",
        help="count words that occur at least N times as the vocabulary",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a report")
    parser.add_argument("--histogram", type=Path, metavar="PNG", help="also draw a histogram of caption lengths")


def run_describe(options: argparse.Namespace) -> int:
    """Print what is in a data set."""
    from captioner.datasets.describe import describe, length_histogram

    dataset = read_dataset(options)
    description = describe(dataset, options.min_count)
    print(json.dumps(description.to_dict(), indent=2) if options.json else description.to_text())
    if options.histogram:
        length_histogram(dataset, options.histogram)
        say(f"wrote {options.histogram}")
    return 0


def add_features(commands: Any) -> None:
    """Add `captioner features`."""
    parser = add_command(commands, "features", run_features, "encode the images of a data set into a region cache")
    add_dataset_arguments(parser)
    add_encoder_arguments(parser)
    group = parser.add_argument_group("regions of a detector, instead of an encoder's")
    group.add_argument(
        "--import",
        dest="files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="take boxes and vectors from .jsonl (with .safetensors) or bottom-up .tsv files",
    )
    group.add_argument(
        "--name", help="name of these regions, for encoder.name=imported/NAME (default: the first file's)"
    )
    group.add_argument("--most", type=positive, metavar="N", help="keep the first N boxes of each image (default: all)")
    parser.add_argument("--split", help="encode only this split (default: all)")
    parser.add_argument("--flips", action="store_true", help="also encode every image mirrored, for augmentation")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the caches (default: features/NAME-OF-DATA)")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="runtime of the encoder")
    add_device_argument(parser)
    add_setting(parser, "workers")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run_features(options: argparse.Namespace) -> int:
    """Fill the region caches of a data set, plain and mirrored, or import one."""
    if options.files:
        return _run_import(options)
    if options.name is not None or options.most is not None:
        raise UsageError("--name and --most go with --import")
    config = encoder_config(options)
    dataset = read_dataset(options)
    for note in dataset.notes:
        say(note)
    images = dataset.split(options.split) if options.split else dataset.images
    from captioner.model.encoders.encoder import load_encoder
    from captioner.model.encoders.fill_cache import fill_cache

    encoder = load_encoder(config, progress=not options.quiet)
    device = read_device(options)
    root = options.out or Path("features") / dataset.root.resolve().name
    failed = False
    for flip in (False, True) if options.flips else (False,):
        started = time.monotonic()
        with progress_bar("mirrored" if flip else "regions", quiet=options.quiet) as progress:
            folder, report = fill_cache(
                images,
                root,
                encoder,
                flip=flip,
                engine=options.engine,
                device=device,
                workers=options.workers,
                progress=progress,
            )
        for reason in report.refused:
            complain(reason)
        failed |= bool(report.refused)
        rate = report.encoded / (time.monotonic() - started)
        done = f"{report.encoded:,} encoded ({rate:.1f} per second)" if report.encoded else "nothing to encode"
        show(f"{folder}: {done}, {report.skipped:,} encoded before, {len(report.refused):,} refused")
    return int(failed)


def _run_import(options: argparse.Namespace) -> int:
    """Fill the region cache of a data set from files of detected regions."""
    if options.flips:
        raise UsageError("--flips needs an encoder; imported regions cannot be mirrored")
    dataset = read_dataset(options)
    for note in dataset.notes:
        say(note)
    images = dataset.split(options.split) if options.split else dataset.images
    from captioner.model.encoders.import_regions import import_regions

    root = options.out or Path("features") / dataset.root.resolve().name
    name = options.name or options.files[0].stem
    with progress_bar("regions", quiet=options.quiet) as progress:
        folder, report = import_regions(images, root, options.files, name, most=options.most, progress=progress)
    for reason in report.refused:
        complain(reason)
    for count, what in (
        (report.absent, "images of the data without regions"),
        (report.unknown, "images of the files that are not in the data"),
        (report.cut, f"images of which only the first {options.most} boxes are kept"),
    ):
        if count:
            say(f"{what}: {count:,}")
    done = f"{report.encoded:,} imported" if report.encoded else "nothing to import"
    print(f"{folder}: {done}, {report.skipped:,} imported before, {len(report.refused):,} refused")
    return int(bool(report.refused))
