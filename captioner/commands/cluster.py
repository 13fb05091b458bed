"""`captioner cluster`: captions of data sets beyond one machine, on a Ray cluster."""

from __future__ import annotations

import argparse
import importlib.util
from typing import TYPE_CHECKING, Any

from captioner.captioning.options import SETTINGS
from captioner.captioning.output.parts import FORMATS, UNIT
from captioner.commands.arguments import add_model_argument, add_search_arguments, add_setting, read_search
from captioner.commands.messages import complain, say
from captioner.commands.parser import UsageError, add_command, positive
from captioner.files import printable
from captioner.model.bundled import find_model

if TYPE_CHECKING:
    from captioner.ray import Progress


def add_cluster(commands: Any) -> None:
    """Add `captioner cluster`."""
    parser = add_command(commands, "cluster", run_cluster, "caption a data set on a Ray cluster, into part files")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="paths or URLs of images, of .tar shards, of folders of either, or patterns of them",
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="search subfolders of paths too")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder or URL for the part files")
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="format of the part files (default: %(default)s)"
    )
    add_model_argument(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--workers", type=positive, metavar="N", help="number of workers (default: as many as there is room for)"
    )
    group.add_argument("--cores", type=positive, default=1, metavar="N", help="cores of each worker (default: 1)")
    group.add_argument("--gpus", type=float, default=0, metavar="N", help="GPUs of each worker, or a share of one")
    group.add_argument(
        "--unit",
        type=positive,
        default=UNIT,
        metavar="N",
        help="images that a worker takes at a time, for one part file",
    )
    searching = parser.add_argument_group("search")
    add_setting(searching, "n_best")
    add_search_arguments(searching)
    add_setting(searching, "seed")


def run_cluster(options: argparse.Namespace) -> int:
    """Caption the data set, and say what was done."""
    if options.seed is not None and not options.sample:
        raise UsageError("--seed needs --sample")
    read_search(options)  # refuses what does not go together, before anything slow
    folder = find_model(options.model)
    if importlib.util.find_spec("ray") is None:
        raise ValueError("captioner cluster needs ray, which is not installed: pip install 'captioner[ray]'")
    from captioner.ray import caption_dataset

    settings: dict[str, Any] = {name: getattr(options, name, None) for name in (*SETTINGS, "sample")}
    del settings["workers"]
    done = caption_dataset(
        options.inputs,
        options.out,
        folder,
        format=options.format,
        workers=options.workers,
        cores=options.cores,
        gpus=options.gpus,
        unit=options.unit,
        recursive=options.recursive,
        listen=_Listener(options.quiet),
        **settings,
    )
    for name, reason in done.unfinished:
        complain(f"{printable(name)}: {reason}; the next run tries it again")
    rate = done.captioned / max(done.seconds, 1e-9)
    deaths = f", {done.deaths:,} workers died" if done.deaths else ""
    say(
        f"{printable(options.out)}: {done.captioned:,} captioned ({rate:.1f} images/s), {done.skipped:,} skipped, "
        f"{done.failed:,} failed{deaths}"
    )
    return int(bool(done.failed or done.unfinished))


class _Listener:
    """Says how far a run is, each time that the number of images done has doubled."""

    def __init__(self, quiet: bool) -> None:
        self.next = float("inf") if quiet else 1

    def __call__(self, progress: Progress) -> None:
        """Hear of a unit that is done."""
        if (done := progress.captioned + progress.failed) >= self.next:
            say(f"{progress.captioned:,} captioned, {progress.failed:,} failed, {progress.skipped:,} skipped so far")
            self.next = 2 * done
