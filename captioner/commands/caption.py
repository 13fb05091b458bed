"""`captioner caption`: captions of files, folders, patterns, lists and tar archives."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.options import EXISTING, CaptionOptions, OutputOptions
from captioner.captioning.outputs import FORMATS
from captioner.captioning.records import CAPTIONS, read_lines
from captioner.commands.arguments import (
    UsageError,
    add_command,
    add_device_argument,
    add_download_argument,
    add_features_argument,
    add_model_argument,
    add_search_arguments,
    add_setting,
    complain,
    cores_per_process,
    no_images,
    progress_bar,
    read_device,
    read_search,
    say,
    search_beside_encoding,
    show,
    with_features,
)
from captioner.figures.overlay_files import OverlayOptions, draw_overlays, overlay_path
from captioner.files import printable
from captioner.images.finding import Source, expand_patterns, find_sources, is_in_share, read_list
from captioner.model.bundled import find_model

if TYPE_CHECKING:
    from captioner.captioning.caption import Result
    from captioner.captioning.captioner import Captioner

OVERLAYS = "overlays"  # the folder of overlays in --out
LIST = "-"  # the path that stands for a list on standard input
ATTENTION = ("mean", "all")  # what `--attention` records: the weights that are alpha, or those of all heads too


def add_caption(commands: Any) -> None:
    """Add `captioner caption`."""
    parser = add_command(commands, "caption", run_caption, "caption images, a few or millions")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="images, folders, tar archives or glob patterns; - reads a list of them from standard input",
    )
    parser.add_argument("--recursive", action="store_true", help="search subfolders too")
    parser.add_argument("-0", "--null", action="store_true", help="paths in the list end with NUL, not with a newline")
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
    _add_output_arguments(parser.add_argument_group("output"))


def _add_output_arguments(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="DIR", help="write captions into this folder (default: print them)")
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
        "--attention",
        nargs="?",
        const="mean",
        choices=ATTENTION,
        metavar="all",
        help="also record the attention of each word; all: of every layer and head of a transformer too",
    )
    group.add_argument("--overlays", action="store_true", help="draw where the model looked, into DIR/overlays")
    group.add_argument("--gallery", action="store_true", help="write DIR/gallery.html, a page to explore the captions")
    group.add_argument("--beside", action="store_true", help="also write a text file next to each image")


def _formats(text: str) -> tuple[str, ...]:
    formats = tuple(part.strip() for part in text.split(","))
    if unknown := next((format for format in formats if format not in FORMATS), None):
        raise argparse.ArgumentTypeError(f"{unknown!r} is not a format; choose from {', '.join(FORMATS)}")
    return formats


def run_caption(options: argparse.Namespace) -> int:
    """Caption images onto standard output, or into a folder."""
    if options.seed is not None and not options.sample:
        raise UsageError("--seed needs --sample")
    captioning = replace(read_search(options), heads=options.attention == "all")
    output = OutputOptions(
        options.format,
        options.existing,
        attention=options.attention is not None or options.gallery,
        beside=options.beside,
    )
    _check_output(options, output)
    folder = find_model(options.model)
    collection = _Collection(options)
    from captioner.captioning.captioner import load

    threads = cores_per_process()
    model = load(
        folder,
        device=read_device(options),
        threads=threads,
        progress=not options.quiet,
        allow_download=options.allow_download,
    )
    model = with_features(model, options.features)
    captioning = replace(captioning, workers=captioning.workers or threads)
    search_beside_encoding(model)
    if options.out:
        return _fill_folder(options, model, collection, captioning, output)
    return _print_table(options, model, collection, captioning)


def _check_output(options: argparse.Namespace, output: OutputOptions) -> None:
    """Raise UsageError where what is asked for needs a folder, or cannot be shared."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and LIST in options.paths:
        raise UsageError("only one process can read standard input; name files or folders instead")
    if options.out:
        return
    if several:
        raise UsageError("several processes need --out DIR, the folder that they write to")
    wanted = {
        "--format": output.formats != ("jsonl",),
        "--existing": output.existing != "skip",
        "--attention": options.attention is not None,
        "--overlays": options.overlays,
        "--gallery": options.gallery,
        "--beside": output.beside,
    }
    if name := next((name for name, given in wanted.items() if given), None):
        raise UsageError(f"{name} needs --out DIR, the folder to write to")


class _Collection:
    """The images that the arguments name, as often as they are asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.listed = read_list(sys.stdin.buffer, null=options.null) if LIST in options.paths else []

    def __iter__(self) -> Iterator[Source]:
        out = self.options.out
        return find_sources(
            self._paths(), recursive=self.options.recursive, leave_out=out / OVERLAYS if out is not None else None
        )

    def _paths(self) -> Iterator[str]:
        for path in self.options.paths:
            yield from self.listed if path == LIST else expand_patterns([path])

    def check_found(self, found: int) -> None:
        """Raise ValueError where there is nothing."""
        if not found:
            raise no_images(self.options.paths, recursive=self.options.recursive)


def _print_table(
    options: argparse.Namespace, model: Captioner, collection: _Collection, captioning: CaptionOptions
) -> int:
    from captioner.captioning.captioner import caption_sources

    started = time.monotonic()
    captioned = failed = 0
    # A terminal that shows the captions needs no bar.
    with _Screen(collection, quiet=options.quiet or sys.stdout.isatty()) as screen:
        for result in caption_sources(model, collection, captioning):
            captioned += result.error is None
            failed += result.error is not None
            screen.show_error(result)
            for caption in result.captions:
                screen.write(_print, f"{printable(result.name)}\t{printable(caption.text)}")
            screen.progress(captioned + failed)
    collection.check_found(captioned + failed)
    if not options.quiet:
        say(_summary(captioned, 0, failed, time.monotonic() - started))
    return int(failed > 0)


def _fill_folder(
    options: argparse.Namespace,
    model: Captioner,
    collection: _Collection,
    captioning: CaptionOptions,
    output: OutputOptions,
) -> int:
    from captioner.captioning.folder_run import caption_into
    from captioner.processes import joined_processes

    with joined_processes() as processes:
        quiet = options.quiet or not processes.is_first
        with _Screen(collection, quiet=quiet, share=processes.rank, shares=processes.count) as screen:
            report = caption_into(
                options.out,
                model,
                collection,
                captioning,
                output,
                pictures=_Pictures(options, model.name),
                processes=processes,
                listen=screen.show_error,
                progress=screen.progress,
            )
    collection.check_found(report.found)
    if processes.is_first:
        summary = _summary(report.captioned, report.skipped, report.failed, report.seconds)
        show(f"{options.out / CAPTIONS}: {summary}")
    if processes.count > 1:
        # torchrun ends all processes once one has failed, but all of them end here, and have nothing left to do.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return int(report.failed > 0)


class _Pictures:
    """What the arguments ask to be drawn: an overlay of each image, a gallery of them all."""

    def __init__(self, options: argparse.Namespace, model: str | None) -> None:
        self.out, self.model, self.overlays, self.gallery = options.out, model, options.overlays, options.gallery
        self.options = OverlayOptions(folder=OVERLAYS)

    def is_drawn(self, source: Source) -> bool:
        """Tell whether an image has its overlay, where it is to have one."""
        return not self.overlays or os.path.lexists(overlay_path(self.out, source.name, "grid", self.options))

    def draw(self, results: Iterator[Result]) -> Iterator[Result]:
        """Draw overlays, and pass the results on."""
        if not self.overlays:
            return results
        (self.out / OVERLAYS).mkdir(exist_ok=True)  # which is left out of the images from now on
        return draw_overlays(results, self.out, self.options)

    def finish(self) -> None:
        """Write the gallery of all captions in the record."""
        if self.gallery and any(True for _ in read_lines(self.out / CAPTIONS)):
            from captioner.web.gallery import gallery_from_record

            gallery_from_record(self.out, model=self.model)


def _print(line: str) -> None:
    print(line, flush=True)


def _summary(captioned: int, skipped: int, failed: int, seconds: float) -> str:
    rate = f" ({captioned / seconds:.1f} per second)" if captioned else ""
    return f"{captioned:,} captioned{rate}, {skipped:,} skipped, {failed:,} failed"


class _Screen:
    """What the user sees meanwhile: complaints, and a progress bar where stderr is a terminal."""

    def __init__(self, collection: _Collection, *, quiet: bool, share: int = 0, shares: int = 1) -> None:
        self.has_bar = not quiet and sys.stderr.isatty()
        self.bar = ExitStack()
        if self.has_bar:
            self.total = sum(is_in_share(source.key, share, shares) for source in collection)
            self.show = self.bar.enter_context(progress_bar("captions", quiet=quiet))

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def progress(self, done: int) -> None:
        """Show how many images are done with."""
        if self.has_bar:
            self.show(done, self.total)

    def show_error(self, result: Result) -> None:
        """Name an image that failed, and why."""
        if result.error is not None:
            self.write(complain, str(result.error))

    def write(self, write: Callable[[str], None], line: str) -> None:
        """Write a line, above the bar."""
        if not self.has_bar:
            write(line)
            return
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            write(line)
