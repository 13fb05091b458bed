"""`captioner evaluate`: captions of a split by models, or by others, scored and compared."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.options import EXISTING, CaptionSettings
from captioner.commands.arguments import (
    add_device_argument,
    add_download_argument,
    add_features_argument,
    add_reading_arguments,
    add_search_arguments,
    add_setting,
    cores_per_process,
    read_device,
    read_search,
    search_beside_encoding,
)
from captioner.commands.messages import complain, progress_bar, say, show
from captioner.commands.parser import UsageError, add_command, positive
from captioner.evaluation.metrics.bootstrap import RESAMPLES
from captioner.model.bundled import find_model

if TYPE_CHECKING:
    from captioner.captioning.caption import Result
    from captioner.captioning.captioner import Captioner


def add_evaluate(commands: Any) -> None:
    """Add `captioner evaluate`."""
    parser = add_command(commands, "evaluate", run_evaluate, "score models, or captions from elsewhere, on a data set")
    parser.usage = "captioner evaluate [MODEL ...] DATA --out DIR [options]"
    parser.add_argument(
        "paths", nargs="+", metavar="MODEL ... DATA", help="bundled models or checkpoint folders, then the data set"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for captions, scores and tables")
    parser.add_argument("--report", type=Path, metavar="DIR", help="also write a report to share, a page with figures")
    parser.add_argument("--split", default="test", help="split of the data set to caption and score")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        metavar="JSON",
        help="also score these captions, a file of COCO results; may be given several times",
    )
    parser.add_argument("--human", action="store_true", help="also score the references against each other")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="also fit how likely people are to accept a caption, and write confidence.json; use a split that the "
        "model was not trained on, and not the test split",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="take only N images, spread over the split")
    add_features_argument(parser)
    parser.add_argument(
        "--existing",
        choices=EXISTING,
        default="skip",
        help="images that have captions in DIR already: keep those, replace them, or stop",
    )
    parser.add_argument("--resamples", type=positive, default=RESAMPLES, metavar="N", help="resamples of the bootstrap")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap and of samples")
    add_download_argument(parser)
    add_device_argument(parser)
    add_setting(parser, "batch_size")
    parser.add_argument("--quiet", action="store_true", help="print only errors on stderr")
    add_search_arguments(parser.add_argument_group("search"))
    add_reading_arguments(parser.add_argument_group("data set"))


def run_evaluate(options: argparse.Namespace) -> int:
    """Evaluate and print the table; the files are written into a folder."""
    read_search(options)  # refuses a setting before torch has loaded
    *names, data = options.paths
    if not names and not options.results and not options.human:
        raise UsageError("there is nothing to evaluate; name a model before the data set, or give --results or --human")
    if options.calibrate and (not names or options.sample):
        raise UsageError("--calibrate needs a model, and a beam search instead of --sample")
    folders = [find_model(name) for name in names]
    device = read_device(options)
    from captioner.datasets.dataset import load_dataset
    from captioner.evaluation.evaluate import evaluate
    from captioner.processes import joined_processes

    with joined_processes() as processes, _Shown(quiet=options.quiet or not processes.is_first) as shown:
        comparison = evaluate(
            [_load(folder, device, options) for folder in folders],
            load_dataset(data, options.format, restval_to_train=options.restval_to_train, tolerance=options.tolerance),
            options.split,
            options.out,
            results=options.results or [],
            human=options.human,
            calibrate=options.calibrate,
            report=options.report,
            features=options.features,
            limit=options.limit,
            existing=options.existing,
            resamples=options.resamples,
            workers=cores_per_process(),
            processes=processes,
            progress=shown.progress,
            listen=_complain_of,
            note=shown.note,
            **_search_settings(options),
        )
    if not processes.is_first:
        return 0  # what has failed is the first process's to tell: torchrun would end it amid its work
    if comparison.missing:
        complain(comparison.missing)
    show(comparison.to_text().removesuffix("\n"))
    return int(bool(comparison.protocol.left_out))


def _search_settings(options: argparse.Namespace) -> CaptionSettings:
    given = {name: getattr(options, name) for name in CaptionSettings.__annotations__}
    return {name: value for name, value in given.items() if value is not None}  # type: ignore[return-value]


def _load(folder: Path, device: str, options: argparse.Namespace) -> Captioner:
    from captioner.captioning.captioner import load

    model = load(
        folder,
        device=device,
        threads=cores_per_process(),
        progress=not options.quiet,
        allow_download=options.allow_download,
    )
    search_beside_encoding(model)
    return model


class _Shown:
    """What an evaluation tells, on stderr: a progress bar for each model, and notes between them."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.name = ""
        self.bar: Callable[[int, int], None] | None = None
        self.open = ExitStack()

    def progress(self, name: str, done: int, total: int) -> None:
        """Show how many of how many images a model has captioned."""
        if self.bar is None or name != self.name:
            self.open.close()
            self.name, self.bar = name, self.open.enter_context(progress_bar(f"{name}: captions", quiet=self.quiet))
        self.bar(done, total)

    def note(self, message: str) -> None:
        """Say something, below what was shown so far."""
        self.open.close()
        self.bar = None
        if not self.quiet:
            say(message)

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.close()


def _complain_of(result: Result) -> None:
    if result.error is not None:
        complain(result.error)
