"""The arguments of `captioner caption`: what they are, and which go together."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from captioner.captioning.options import EXISTING, OutputOptions
from captioner.captioning.output.tables import FORMATS, NAMINGS
from captioner.captioning.output.wording import Wording
from captioner.commands.arguments import (
    add_device_argument,
    add_download_argument,
    add_features_argument,
    add_model_argument,
    add_search_arguments,
    add_setting,
)
from captioner.commands.collection import STDIN
from captioner.commands.parser import UsageError, checking_usage

ATTENTION = ("mean", "all")  # what `--attention` records: the weights that are alpha, or those of all heads too
GALLERY = "gallery.html"  # in --out


def add_caption_arguments(parser: Any) -> None:
    """Add all of them."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="images, folders, archives or glob patterns; - reads an image, or a list of paths, from standard input",
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="search subfolders too")
    parser.add_argument("-0", "--null", action="store_true", help="paths in the list end with NUL, not a newline")
    add_model_argument(parser)
    add_download_argument(parser)
    add_features_argument(parser)
    add_device_argument(parser)
    add_setting(parser, "batch_size")
    add_setting(parser, "workers")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar and, without --out, no summary")
    searching = parser.add_argument_group("search")
    add_setting(searching, "n_best")
    add_search_arguments(searching)
    add_setting(searching, "seed")
    _add_wording_arguments(parser.add_argument_group("wording"))
    _add_output_arguments(parser.add_argument_group("output"))
    _add_sidecar_arguments(parser.add_argument_group("captions with the images"))


def _add_wording_arguments(group: Any) -> None:
    group.add_argument("--sentence", action="store_true", help="write sentences: a capital first, a full stop last")
    group.add_argument("--prefix", default="", metavar="TEXT", help="text to put before every caption, verbatim")
    group.add_argument("--suffix", default="", metavar="TEXT", help="text to put after every caption, verbatim")


def _add_output_arguments(group: Any) -> None:
    group.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="write captions into this folder (default: print them)"
    )
    group.add_argument("--json", action="store_true", help="without --out: print lines of JSON, see `captioner schema`")
    group.add_argument(
        "--format",
        type=_formats,
        default="jsonl",
        metavar="F,...",
        help=f"formats to write, any of {', '.join(FORMATS)}; jsonl is always written",
    )
    group.add_argument(
        "--existing",
        choices=EXISTING,
        default="skip",
        help="images that have captions in DIR already: keep those, replace them, or stop",
    )
    group.add_argument(
        "--prune", action="store_true", help="remove records of images that the named folders no longer have"
    )
    group.add_argument(
        "--attention",
        nargs="?",
        const="mean",
        choices=ATTENTION,
        metavar="all",
        help="also record the attention of each word; all: of every layer and head of a transformer too",
    )
    group.add_argument("--overlays", action="store_true", help="draw where the model looked, into DIR/overlays")
    group.add_argument("--gallery", action="store_true", help="write DIR/gallery.html, a page to explore the captions")
    group.add_argument(
        "--corrections",
        type=Path,
        metavar="FILE",
        help='apply captions that people have corrected, lines of {"image", "caption"}; needs no PATH',
    )


def _add_sidecar_arguments(group: Any) -> None:
    group.add_argument(
        "--beside",
        action="store_true",
        help="write a file next to each image: txt, or those of txt and xmp in --format",
    )
    group.add_argument(
        "--txt-name", choices=NAMINGS, default="full", help="name such files cat.jpg.txt, or cat.txt by the stem"
    )
    group.add_argument(
        "--embed",
        action="store_true",
        help="put captions into JPEG and PNG files as XMP; their pixels stay as they are",
    )


def _formats(text: str) -> tuple[str, ...]:
    formats = tuple(part.strip() for part in text.split(","))
    if unknown := next((format for format in formats if format not in FORMATS), None):
        raise argparse.ArgumentTypeError(f"{unknown!r} is not a format; choose from {', '.join(FORMATS)}")
    return formats


def read_output(options: argparse.Namespace) -> OutputOptions:
    """Return what the arguments ask to be written; raise UsageError where that needs a folder, or cannot be shared."""
    needed = options.attention is not None or options.gallery
    # A gallery that is there is kept up to date, and shows attention.
    has_gallery = options.out is not None and (options.out / GALLERY).exists()
    with checking_usage():
        output = OutputOptions(
            options.format,
            options.existing,
            attention=needed or has_gallery,
            beside=options.beside,
            naming=options.txt_name,
            embed=options.embed,
            prune=options.prune,
            wording=Wording(options.sentence, options.prefix, options.suffix),
            needed=needed,
        )
    _check_output(options, output)
    return output


def _check_output(options: argparse.Namespace, output: OutputOptions) -> None:
    """Raise UsageError where what is asked for needs a folder, or cannot be shared."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and STDIN in options.paths:
        raise UsageError("only one process can read standard input; name files or folders instead")
    if options.txt_name != "full" and not (options.beside or "txt" in output.formats or "xmp" in output.formats):
        raise UsageError("--txt-name names text files; it needs --beside, or --format txt")
    if options.out:
        if options.json:
            raise UsageError("--json prints captions; with --out they are in captions.jsonl")
        return
    if several:
        raise UsageError("several processes need --out DIR, the folder that they write to")
    besides = output.beside and set(output.formats) <= {"jsonl", "txt", "xmp"}
    wanted = {
        "--format": output.formats != ("jsonl",) and not besides,
        "--existing": output.existing != "skip",
        "--prune": options.prune,
        "--attention": options.attention is not None and not options.json,
        "--overlays": options.overlays,
        "--gallery": options.gallery,
        "--embed": options.embed,
        "--corrections": options.corrections is not None,
    }
    if name := next((name for name, given in wanted.items() if given), None):
        raise UsageError(f"{name} needs --out DIR, the folder to write to")
    if not sys.stdout.writable():
        raise ValueError("standard output is closed, so there is nowhere to print captions; use --out DIR")
