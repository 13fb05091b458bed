"""`captioner evaluate`: captions of a split by models, or by others, scored and compared."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.captioning.options import EXISTING, CaptionOptions
from captioner.commands.arguments import (
    add_command,
    add_reading_arguments,
    add_search_arguments,
    complain,
    own_cores,
    positive,
    progress_bar,
    read_search,
    say,
    search_beside_encoding,
)
from captioner.evaluation.metrics.bootstrap import RESAMPLES
from captioner.model.bundled import find_model

if TYPE_CHECKING:
    from captioner.captioning.caption import Result
    from captioner.evaluation.evaluator import EvaluationSplit
    from captioner.evaluation.score_tables import Comparison
    from captioner.evaluation.submissions import Submission, System
    from captioner.processes import Processes


def add_evaluate(commands: Any) -> None:
    """Add `captioner evaluate`."""
    parser = add_command(commands, "evaluate", run_evaluate, "score models, or captions of others, on a data set")
    parser.usage = "captioner evaluate [MODEL ...] DATA --out DIR [options]"
    parser.add_argument(
        "paths", nargs="+", metavar="MODEL ... DATA", help="bundled models or checkpoint folders, then the data set's"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of everything that is found")
    parser.add_argument("--report", type=Path, metavar="DIR", help="also write a page with figures, to be sent, there")
    parser.add_argument("--split", default="test", help="the images to caption")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        metavar="JSON",
        help="captions of others to score, as COCO results; may be given several times",
    )
    parser.add_argument("--human", action="store_true", help="also score the references against each other")
    parser.add_argument("--limit", type=positive, metavar="N", help="only N images, spread over the split")
    parser.add_argument("--features", type=Path, metavar="DIR", help="region caches to read where they fit a model")
    parser.add_argument("--existing", choices=EXISTING, default="skip", help="what becomes of captions in DIR")
    parser.add_argument("--resamples", type=positive, default=RESAMPLES, metavar="R", help="of the bootstrap")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap, and of --sample (default: 0)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="images at a time (default: chosen)")
    parser.add_argument("--quiet", action="store_true", help="nothing on stderr but what is wrong")
    add_search_arguments(parser.add_argument_group("search"))
    add_reading_arguments(parser.add_argument_group("data set"))


def run_evaluate(options: argparse.Namespace) -> int:
    """Caption, score, print a table and write everything into a folder."""
    from captioner.datasets.dataset import load_dataset
    from captioner.evaluation.evaluator import take_split
    from captioner.evaluation.submissions import captioned_by_all, name_systems, read_submission

    captioning = read_search(options)
    *models, data = options.paths
    systems = name_systems([find_model(model) for model in models], options.results or [], options.out)
    if not systems and not options.human:
        raise ValueError("there is nothing to evaluate; name a model before the data set, or --results, or --human")
    if options.report is not None and options.report.exists() and not options.report.is_dir():
        raise ValueError(f"{options.report} is not a folder; name one for the report")
    dataset = load_dataset(data, options.format, restval_to_train=options.restval_to_train, tolerance=options.tolerance)
    split = take_split(dataset, options.split, options.limit)
    submissions = [read_submission(own, split) for own in systems if own.results is not None]
    if models:
        found = _caption_all([own for own in systems if own.model is not None], split, captioning, options)
        if found is None:
            return 0  # what has failed is the first process's to tell: torchrun would end it amid its work
        submissions = [*found, *submissions]
    split = captioned_by_all(split, submissions)
    comparison = _compare(submissions, split, options, captioning.identity() if models else None)
    _tell(comparison, systems, split.root, options)
    return int(bool(split.left_out))


def _caption_all(
    systems: Sequence[System], split: EvaluationSplit, captioning: CaptionOptions, options: argparse.Namespace
) -> list[Submission] | None:
    """Caption the split with each model; return the captions, None in all processes but the first."""
    from captioner.evaluation.split_captions import read_captions
    from captioner.evaluation.submissions import Submission
    from captioner.processes import choose_own_device, joined_processes

    device = choose_own_device(options.device)
    with joined_processes() as processes:
        about = [_caption_one(own, split, captioning, options, device, processes) for own in systems]
    if not processes.is_first:
        return None
    submissions = []
    for system, own in zip(systems, about, strict=True):
        captions = read_captions(system.folder, split.images)
        texts = {name: caption.text for name, caption in captions.items()}
        submissions.append(Submission(system, texts, own, captions))
    return submissions


def _caption_one(
    system: System,
    split: EvaluationSplit,
    captioning: CaptionOptions,
    options: argparse.Namespace,
    device: str,
    processes: Processes,
) -> dict[str, Any]:
    """Caption the split with a model into its folder, and return what names the model."""
    from captioner.evaluation.split_captions import SplitCaptioner, caption_split, open_cache
    from captioner.evaluation.submissions import describe_model
    from captioner.model.checkpoint import load_checkpoint

    assert system.model is not None
    checkpoint = load_checkpoint(system.model)
    cache = open_cache(options.features, checkpoint) if options.features else None
    quiet = options.quiet or not processes.is_first
    if options.features and cache is None and not quiet:
        say(f"{system.name}: no regions of its encoder in {options.features}; images are encoded")
    threads = own_cores()
    model = SplitCaptioner(checkpoint, split.images, cache, device=device, threads=threads, progress=not options.quiet)
    search_beside_encoding(model)
    with progress_bar(f"{system.name}: captions", quiet=quiet) as progress:
        report = caption_split(
            system.folder,
            model,
            split.images,
            replace(captioning, workers=threads),
            split.identity(),
            existing=options.existing,
            processes=processes,
            listen=_complain_of,
            progress=progress,
        )
    if not quiet:
        rate = f" ({report.captioned / report.seconds:.1f} a second)" if report.captioned else ""
        say(f"{system.name}: {report.captioned:,} captioned{rate}, {report.skipped:,} there, {report.failed:,} failed")
    return describe_model(checkpoint.digest, checkpoint.encoder_identity)


def _complain_of(result: Result) -> None:
    if result.error is not None:
        complain(result.error)


def _compare(
    submissions: Sequence[Submission],
    split: EvaluationSplit,
    options: argparse.Namespace,
    search: dict[str, Any] | None,
) -> Comparison:
    """Score captions, each system's and people's."""
    from captioner.evaluation.evaluator import Evaluator
    from captioner.evaluation.metrics.judge import Judge
    from captioner.evaluation.score_tables import Comparison, find_paper_rows

    with Judge() as judge:
        judge.start()
        evaluator = Evaluator(judge, split, resamples=options.resamples, seed=options.seed)
        evaluations = []
        for own in submissions:
            if not options.quiet:
                say(f"{own.system.name}: scoring {len(split.images):,} captions")
            evaluations.append(own.evaluate(evaluator))
        if options.human and not options.quiet:
            say("humans: scoring references against each other")
        humans = evaluator.evaluate_humans() if options.human else None
        paper = find_paper_rows(split.data, split.format, split.split, len(split.images))
        return Comparison(evaluator.protocol(search), tuple(evaluations), humans, paper, judge.missing)


def _tell(comparison: Comparison, systems: Sequence[System], root: Path, options: argparse.Namespace) -> None:
    """Print the table, and write all files."""
    from captioner.evaluation.analysis.analysis import analyse, write_analysis
    from captioner.evaluation.score_tables import write_comparison, write_evaluation

    if comparison.missing:
        complain(comparison.missing)
    folders = {own.name: own.folder for own in systems}
    for evaluation in comparison.evaluations:
        write_evaluation(folders[evaluation.name], evaluation, comparison)
    analysis = analyse(comparison, root)
    write_analysis(options.out, folders, analysis)
    write_comparison(options.out, comparison)
    print(comparison.to_text(), end="")
    if options.report is not None:
        from captioner.evaluation.report.report import write_report  # matplotlib, which only a report needs

        path = write_report(options.report, comparison, analysis)
        if not options.quiet:
            say(f"report: {path}")
