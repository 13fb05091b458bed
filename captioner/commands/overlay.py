"""`captioner overlay`: figures of where a model looked for each word, of images or of a record of captions."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.caption import Result
from captioner.captioning.options import CaptionOptions
from captioner.captioning.records import CAPTIONS
from captioner.commands.arguments import (
    add_device_argument,
    add_download_argument,
    add_features_argument,
    add_model_argument,
    add_search_arguments,
    read_device,
    read_search,
    with_features,
)
from captioner.commands.collection import Collection
from captioner.commands.messages import announce, complain, progress_bar, report
from captioner.commands.parser import UsageError, add_command, checking_usage, positive
from captioner.figures.masks import STYLES
from captioner.figures.overlay_files import (
    ANIMATIONS,
    DPI,
    FIGURES,
    KINDS,
    WIDTH,
    OverlayOptions,
    draw_overlays,
    overlay_path,
)
from captioner.files import printable
from captioner.images.sources import Source
from captioner.model.bundled import distinct_names, find_model, model_name
from captioner.model.search_settings import SearchConfig, settings_of

if TYPE_CHECKING:
    from captioner.captioning.captioner import Captioner


def add_overlay(commands: Any) -> None:
    """Add `captioner overlay`."""
    parser = add_command(commands, "overlay", run_overlay, "draw where a model looked for each word")
    parser.add_argument("paths", nargs="*", metavar="IMAGE", help="images, folders, archives or glob patterns")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder for the figures")
    parser.add_argument("-r", "--recursive", action="store_true", help="search subfolders too")
    parser.add_argument(
        "--from",
        dest="records",
        type=Path,
        action="append",
        metavar="FILE",
        help="draw a captions.jsonl of `captioner caption --attention` instead; give two to compare them",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    _add_model_arguments(parser.add_argument_group("model"))
    _add_figure_arguments(parser.add_argument_group("figures"))


def _add_model_arguments(group: Any) -> None:
    add_model_argument(group, several="give two to compare them")
    add_download_argument(group)
    add_features_argument(group)
    add_device_argument(group)
    group.add_argument("--caption", metavar="TEXT", help="show where the model looks when it is made to say TEXT")
    add_search_arguments(group)
    group.add_argument("--seed", type=int, default=0, help="seed of sampled words and of sampled attention")


def _add_figure_arguments(group: Any) -> None:
    group.add_argument(
        "--kind",
        type=_list,
        metavar="K,...",
        help=f"figures to draw, any of {', '.join(KINDS)} (default: grid, or compare for two models)",
    )
    group.add_argument("--style", choices=STYLES, default="mask", help="how to show attention")
    group.add_argument(
        "--format",
        type=_list,
        default=(),
        metavar="F,...",
        help=f"one of {', '.join(FIGURES)}; for animations, one of {', '.join(ANIMATIONS)} (default: png,gif)",
    )
    group.add_argument("--width", type=float, metavar="INCHES", help=f"width of a figure (default: {WIDTH:g})")
    group.add_argument("--dpi", type=positive, metavar="N", help=f"pixels per inch (default: {DPI})")
    group.add_argument("--html", action="store_true", help="also write a page to explore; without --kind, only that")
    group.add_argument("--samples", type=positive, default=3, metavar="N", help="rows of sampled attention in a figure")


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def run_overlay(options: argparse.Namespace) -> int:
    """Draw the captions of images, or those of a record, into a folder."""
    _check(options)
    captioning = read_search(options)
    drawing = _drawing(options)
    captioning = replace(captioning, heads="heads" in drawing.kinds)
    results, total = _from_records(options) if options.records else _from_models(options, captioning)
    options.out.mkdir(parents=True, exist_ok=True)
    work = _Work(options, drawing)
    drawn = work.watch(draw_overlays(results, options.out, drawing), total)
    if options.html:
        from captioner.web.gallery import GALLERY, GalleryEntry, write_gallery

        labels = drawing.names if len(drawing.names) > 1 else ()
        entries = (GalleryEntry(result.name, result.captions, result.source, labels) for result in drawn)
        write_gallery(entries, options.out / GALLERY, model=" and ".join(drawing.names) or None)
    else:
        deque(drawn, maxlen=0)
    report(f"{printable(str(options.out))}: {work.summary()}")
    return int(work.failed > 0)


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments that do not go together."""
    if options.records:
        given = [name for name in ("paths", "model", "caption", "sample") if getattr(options, name)]
        given += [name for name in settings_of(SearchConfig) if getattr(options, name) is not None]
        if given:
            shown = "images" if given[0] == "paths" else f"--{given[0].replace('_', '-')}"
            raise UsageError(f"--from draws recorded captions; it does not go with {shown}")
    elif not options.paths:
        raise UsageError("name images, or a file of recorded captions with --from")
    for name, compared in (("--model", options.model), ("--from", options.records)):
        if len(compared or ()) > 2:
            raise UsageError(f"{name} is given {len(compared)} times; at most two are compared")


def _drawing(options: argparse.Namespace) -> OverlayOptions:
    named = options.records or options.model or []
    kinds = options.kind
    if not kinds and not options.html:
        moving = options.format and set(options.format) <= set(ANIMATIONS)
        kinds = ("compare",) if len(named) == 2 else ("animation",) if moving else ("grid",)
    names = distinct_names([model_name(find_model(name)) for name in options.model or ()] or _record_names(options))
    with checking_usage():
        return OverlayOptions(
            kinds or (),
            options.style,
            options.format,
            options.width,
            options.dpi,
            options.samples,
            options.seed,
            names,
        )


def _record_names(options: argparse.Namespace) -> list[str]:
    """Return what to call files of captions: what everybody's are called says nothing, but their folder's name does."""
    return [path.resolve().parent.name if path.name == CAPTIONS else path.stem for path in options.records or ()]


def _from_records(options: argparse.Namespace) -> tuple[Iterator[Result], int]:
    from captioner.captioning.recorded_captions import recorded_captions, recorded_images

    first, *others = options.records
    second = {source.key: record for other in others for source, record in recorded_images(other)}

    def read() -> Iterator[Result]:
        for source, record in recorded_images(first):
            try:
                if others and source.key not in second:
                    raise ValueError(f"not in {others[0]}")
                lines = (record, second[source.key]) if others else (record,)
                yield Result(source, tuple(recorded_captions(line)[0] for line in lines))
            except ValueError as error:
                yield Result.failed(source, str(error))

    return read(), sum(1 for _ in recorded_images(first))


def _from_models(options: argparse.Namespace, captioning: CaptionOptions) -> tuple[Iterator[Result], int]:
    folders = [find_model(name) for name in options.model or [None]]
    collection = Collection(options.paths, recursive=options.recursive, leave_out=options.out)
    collection.check()
    for folder in folders:
        announce(f"loading {model_name(folder)} ...", quiet=options.quiet)
    sources = list(collection)
    from captioner.captioning.captioner import load

    device, progress = read_device(options), not options.quiet
    loaded = (
        load(folder, device=device, progress=progress, allow_download=options.allow_download) for folder in folders
    )
    models = [with_features(model, options.features) for model in loaded]
    if options.caption is not None:
        _name_unknown(options.caption, models)
    results = zip(*(_captions(model, sources, options.caption, captioning) for model in models), strict=True)
    return map(_join, results), len(sources)


def _name_unknown(text: str, models: list[Captioner]) -> None:
    from captioner.captioning.teacher_forcing import unknown_words

    for model in models:
        if unknown := unknown_words(model.vocabulary, text):
            complain(f"{model.name} does not know {', '.join(map(repr, unknown))}; it reads them as <unk>")


def _captions(
    model: Captioner, sources: Iterable[Source], text: str | None, captioning: CaptionOptions
) -> Iterator[Result]:
    if text is None:
        from captioner.captioning.collection import caption_sources

        return caption_sources(model, sources, captioning)
    from captioner.captioning.teacher_forcing import force_images

    return force_images(model, sources, text, heads=captioning.heads)


def _join(results: tuple[Result, ...]) -> Result:
    """Return the best caption of each model as those of one image."""
    error = next((result.error for result in results if result.error is not None), None)
    return Result(results[0].source, tuple(caption for each in results for caption in each.captions[:1]), error)


class _Work:
    """What was drawn, and what was not."""

    def __init__(self, options: argparse.Namespace, drawing: OverlayOptions) -> None:
        self.options, self.drawing = options, drawing
        self.drawn = self.failed = 0
        self.started = time.monotonic()

    def watch(self, results: Iterator[Result], total: int) -> Iterator[Result]:
        """Yield the images that were drawn, in order; name the others."""
        with progress_bar("figures", quiet=self.options.quiet) as show:
            show(0, total)
            for result in results:
                self.drawn, self.failed = self.drawn + (result.error is None), self.failed + (result.error is not None)
                show(self.drawn + self.failed, total)
                if result.error is None:
                    self._print(result)
                    yield result
                else:
                    complain(result.error)

    def _print(self, result: Result) -> None:
        """Print where the figures of an image are, and its caption, or the two that are compared."""
        paths = [overlay_path(self.options.out, result.name, kind, self.drawing) for kind in self.drawing.kinds]
        for caption in result.captions:
            report("\t".join(printable(str(text)) for text in (*paths, caption.text)))

    def summary(self) -> str:
        """Return what was done in one line."""
        rate = f" ({self.drawn / (time.monotonic() - self.started):.1f} per second)" if self.drawn else ""
        what = ", ".join((*self.drawing.kinds, *(["page"] if self.options.html else [])))
        return f"{what} of {self.drawn:,} image{'s' * (self.drawn != 1)}{rate}, {self.failed:,} failed"
