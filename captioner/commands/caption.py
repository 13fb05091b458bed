"""`captioner caption`: captions of files, folders, patterns, lists and archives."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.corrections import Applied, apply_corrections, correct_folder, read_corrections
from captioner.captioning.options import CaptionOptions, OutputOptions
from captioner.captioning.records import CAPTIONS, Origin, caption_record, error_record, read_lines, to_line
from captioner.commands.arguments import (
    cores_per_process,
    read_device,
    read_search,
    search_beside_encoding,
    with_features,
)
from captioner.commands.caption_arguments import GALLERY, add_caption_arguments, read_output
from captioner.commands.collection import Collection
from captioner.commands.messages import announce, complain, report, say
from captioner.commands.parser import UsageError, add_command
from captioner.commands.screen import Screen
from captioner.commands.startup import in_one_thread, without_collecting
from captioner.figures.overlay_files import OverlayOptions, draw_overlays, overlay_path
from captioner.files import printable
from captioner.images.kinds import describe_unread
from captioner.images.sources import Source
from captioner.model.bundled import find_model, model_name
from captioner.model.confidence import is_low

if TYPE_CHECKING:
    from captioner.captioning.caption import Result
    from captioner.captioning.captioner import Captioner
    from captioner.captioning.folder_run import Report
    from captioner.captioning.output.derived import Derived

OVERLAYS = "overlays"  # the folder of overlays in --out


def add_caption(commands: Any) -> None:
    """Add `captioner caption`."""
    add_caption_arguments(add_command(commands, "caption", run_caption, "caption images, a few or millions"))


def run_caption(options: argparse.Namespace) -> int:
    """Caption images onto standard output, or into a folder."""
    if options.seed is not None and not options.sample:
        raise UsageError("--seed needs --sample")
    if not options.paths and not options.corrections:
        raise UsageError("nothing to caption: name images, folders or archives; see `captioner caption --help`")
    captioning = replace(read_search(options), heads=options.attention == "all")
    output = read_output(options)
    if options.corrections:
        if not options.paths:
            return _correct(options)
        output = replace(output, corrections=read_corrections(options.corrections))
    folder = find_model(options.model)
    collection = Collection(
        options.paths,
        recursive=options.recursive,
        null=options.null,
        leave_out=options.out / OVERLAYS if options.out is not None else None,
    )
    collection.check()
    announce(f"loading {model_name(folder)} ...", quiet=options.quiet)
    with without_collecting(), in_one_thread():
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
    return _print_captions(options, model, collection, captioning, output)


def _correct(options: argparse.Namespace) -> int:
    """Take corrections over into a folder that has captions; no model is needed."""
    finish = _Pictures(options, None).finish
    applied = correct_folder(options.out, options.corrections, finish, embed=options.embed)
    return _report_corrections(options, applied)


def _report_corrections(options: argparse.Namespace, applied: Applied) -> int:
    """Say how many corrections there are, and which are of no known image; return the exit code."""
    if not options.quiet:
        say(f"{options.out / CAPTIONS}: {applied.corrected:,} caption{'s' * (applied.corrected != 1)} corrected")
        _say_left(applied.left)
    if applied.unknown:
        names = ", ".join(map(printable, applied.unknown[:3]))
        more = f" and {len(applied.unknown) - 3:,} more" if len(applied.unknown) > 3 else ""
        complain(f"corrections of images without a caption in {options.out}, or of several of one name: {names}{more}")
    return int(bool(applied.unknown))


def _print_captions(
    options: argparse.Namespace,
    model: Captioner,
    collection: Collection,
    captioning: CaptionOptions,
    output: OutputOptions,
) -> int:
    from captioner.captioning.collection import caption_sources
    from captioner.captioning.output.sidecars import Sidecars
    from captioner.captioning.output.written_files import WrittenFiles

    started = time.monotonic()
    captioned = failed = low = 0
    sidecars = Sidecars(WrittenFiles(None), output.naming)
    pending = _Pending(collection, lambda path: all(sidecars.is_beside(path, kind) for kind in output.beside_kinds))
    lines = _json_lines(model, captioning, output) if options.json else _table_lines
    # A terminal that shows the captions needs no bar.
    with Screen(collection.aside(), quiet=options.quiet or sys.stdout.isatty()) as screen:
        for result in caption_sources(model, pending if output.beside else collection, captioning):
            captions = tuple(replace(each, text=output.wording.apply(each.text)) for each in result.captions)
            result = replace(result, captions=captions)
            captioned += result.error is None
            failed += result.error is not None
            low += bool(captions) and is_low(captions[0].confidence)
            screen.show_error(result)
            for line in lines(result):
                screen.write(_print, line)
            if captions and result.source.offset is None and result.source.contents is None:
                for kind in output.beside_kinds:
                    sidecars.write_beside(result.source.path, kind, captions[0].text)
            screen.progress(captioned + failed + pending.skipped, pending.skipped)
    if not options.quiet:
        say(_summary(captioned, pending.skipped, failed, time.monotonic() - started, low))
        _say_left_out(collection, [str(path) for path in sidecars.written.left])
    return int(failed > 0)


class _Pending:
    """The images that are not done, and how many are."""

    def __init__(self, sources: Iterable[Source], is_done: Callable[[Path], bool]) -> None:
        self.sources, self.is_done, self.skipped = sources, is_done, 0

    def __iter__(self) -> Iterator[Source]:
        for source in self.sources:
            if source.offset is None and source.contents is None and self.is_done(source.path):
                self.skipped += 1
            else:
                yield source


def _table_lines(result: Result) -> list[str]:
    return [f"{printable(result.name)}\t{printable(caption.text)}" for caption in result.captions]


def _json_lines(model: Captioner, captioning: CaptionOptions, output: OutputOptions) -> Callable[[Result], list[str]]:
    wording = output.wording.identity()
    origin = Origin(
        model.digest, captioning.identity(), output.attention, captioning.heads, name=model.name, wording=wording
    )

    def lines(result: Result) -> list[str]:
        if result.error is not None:
            record = error_record(result.name, result.error.reason)
        else:
            record = caption_record(result.name, result.captions, origin)
        return [to_line(record).decode().rstrip("\n")]

    return lines


def _fill_folder(
    options: argparse.Namespace,
    model: Captioner,
    collection: Collection,
    captioning: CaptionOptions,
    output: OutputOptions,
) -> int:
    from captioner.captioning.folder_run import caption_into
    from captioner.processes import joined_processes

    with joined_processes() as processes:
        quiet = options.quiet or not processes.is_first
        with Screen(collection.aside(), quiet=quiet, share=processes.rank, shares=processes.count) as screen:
            done = caption_into(
                options.out,
                model,
                collection,
                captioning,
                output,
                pictures=_Pictures(options, model.name),
                processes=processes,
                listen=screen.show_error,
                progress=screen.progress,
                covers=collection.covers,
            )
    if not done.found:
        raise collection.nothing()
    if processes.is_first:
        _report(options.out, done)
        _say_left_out(collection, done.left, done.no_place)
    if processes.count > 1:
        # torchrun ends all processes once one has failed, but all of them end here, and have nothing left to do.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    unknown = _report_corrections(options, apply_corrections(options.out)) if output.corrections else 0
    return max(unknown, int(done.failed > 0))


def _report(out: Path, done: Report) -> None:
    gone = f", {done.gone:,} gone" if done.gone else ""
    summary = _summary(done.captioned, done.skipped, done.failed, done.seconds, done.low)
    report(f"{printable(str(out / CAPTIONS))}: {summary}{gone}")


def _first(lines: Sequence[str]) -> str:
    """Return the first of some lines, and how many more there are."""
    return printable(lines[0]) + (f" and {len(lines) - 1:,} more" if len(lines) > 1 else "")


def _say_left_out(collection: Collection, left: Sequence[str], no_place: Sequence[str] = ()) -> None:
    """Name what was not read, which files of others were not replaced, and images with no place for a caption."""
    if collection.unread:
        say(f"left out: {describe_unread(collection.unread)}")
    if no_place:
        say(f"no caption put into {_first(no_place)}")
    _say_left(left)


def _say_left(left: Sequence[str]) -> None:
    """Count the files that were not replaced, because they are not the program's."""
    if left:
        count = "1 file" if len(left) == 1 else f"{len(left):,} files"
        say(f"{count} left as before, because others wrote or changed what is there: {_first(left)}")


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

    def finish(self, derived: Derived) -> None:
        """Write the gallery of all captions in the record, where it is asked for or there already."""
        path = self.out / GALLERY
        if not (self.gallery or derived.written.holds(path)) or not any(True for _ in read_lines(self.out / CAPTIONS)):
            return
        from captioner.web.gallery import gallery_from_record

        try:
            with derived.written.replacing(path) as file:
                if file is not None:
                    gallery_from_record(self.out, file.name, model=self.model)
        except ValueError:
            if self.gallery:
                raise
            say(f"{path} is not up to date: some captions have no attention; --existing overwrite adds it")


def _print(line: str) -> None:
    print(line, flush=True)


def _summary(captioned: int, skipped: int, failed: int, seconds: float, low: int) -> str:
    rate = f" ({captioned / seconds:.1f} per second)" if captioned else ""
    doubtful = f", {low:,} caption{'s' * (low > 1)} of low confidence" if low else ""
    return f"{captioned:,} captioned{rate}, {skipped:,} skipped, {failed:,} failed{doubtful}"
