"""`captioner evaluate`: captions of a split by models, or by others, scored and compared."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.bundled import find_model
from captioner.caption_options import EXISTING, CaptionOptions, make_options
from captioner.commands.parts import add_command, complain, positive, progress_bar, say
from captioner.config import SearchConfig
from captioner.files import digest
from captioner.images import printable
from captioner.measures.bootstrap import RESAMPLES
from captioner.measures.results import RESULTS, read_results
from captioner.sources import is_in_share, name_key

if TYPE_CHECKING:
    from captioner.captioning import Result
    from captioner.captions import Caption
    from captioner.distributed import Processes
    from captioner.evaluation import EvaluationSplit
    from captioner.measures.score_tables import Comparison


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
    _add_search_arguments(parser.add_argument_group("search"))
    _add_data_arguments(parser.add_argument_group("data set"))


def _add_search_arguments(group: Any) -> None:
    default = SearchConfig()
    group.add_argument("--beam", type=positive, metavar="K", help="captions followed side by side (default: 5)")
    group.add_argument("--groups", type=positive, metavar="G", help="of beams that make different captions")
    group.add_argument(
        "--length-power", type=float, default=default.length_power, metavar="P", help="0 for short captions, 1 for long"
    )
    group.add_argument(
        "--no-repeat", type=int, default=default.no_repeat, metavar="N", help="words in a row that are not said twice"
    )
    group.add_argument(
        "--maximum-length", type=positive, default=default.maximum_length, metavar="N", help="words of a caption"
    )
    group.add_argument("--sample", action="store_true", help="draw words at random, as probable as they are")
    group.add_argument("--temperature", type=float, metavar="T", help="of samples, below 1 for likelier words")
    group.add_argument("--top-k", type=positive, metavar="N", help="sample among so many words only")
    group.add_argument("--top-p", type=float, metavar="P", help="sample among the words that make up this share only")


def _add_data_arguments(group: Any) -> None:
    group.add_argument("--format", help="its format, when it is not recognised (default: recognise)")
    group.add_argument("--restval-to-train", action="store_true", help="join Karpathy's restval images to train")
    group.add_argument("--tolerance", type=float, default=0.01, help="share of bad lines or images to put up with")


@dataclass(frozen=True)
class _System:
    """One row of the comparison: its name, its folder, and the model or the file that its captions come from."""

    name: str
    folder: Path
    model: Path | None
    results: Path | None


@dataclass
class _Submission:
    """The captions of a system by file name, with their attention where a model made them, and where they are from."""

    system: _System
    texts: dict[str, str]
    about: dict[str, Any]
    captions: dict[str, Caption] | None = None


def run_evaluate(options: argparse.Namespace) -> int:
    """Caption, score, print a table and write everything into a folder."""
    captioning = _caption_options(options)
    *models, data = options.paths
    systems = _name_systems([find_model(model) for model in models], options.results or [], options.out)
    if not systems and not options.human:
        raise ValueError("there is nothing to evaluate; name a model before the data set, or --results, or --human")
    if options.report is not None and options.report.exists() and not options.report.is_dir():
        raise ValueError(f"{options.report} is not a folder; name one for the report")
    from captioner.datasets import load_dataset
    from captioner.evaluation import take_split

    dataset = load_dataset(data, options.format, restval_to_train=options.restval_to_train, tolerance=options.tolerance)
    split = take_split(dataset, options.split, options.limit)
    submissions = [_read_submission(own, split) for own in systems if own.results is not None]
    if models:
        found = _caption_all([own for own in systems if own.model is not None], split, captioning, options)
        if found is None:
            return 0  # what has failed is the first process's to tell: torchrun would end it amid its work
        submissions = [*found, *submissions]
    missing = [
        image.file_name for image in split.images if any(image.file_name not in own.texts for own in submissions)
    ]
    if missing:
        split = split.leave_out(missing)
    _score(submissions, split, options, captioning.identity() if models else None)
    return int(bool(missing))


def _caption_options(options: argparse.Namespace) -> CaptionOptions:
    made = make_options(
        beam=options.beam,
        groups=options.groups,
        sample=options.sample,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed if options.sample else None,
        batch_size=options.batch_size,
    )
    search = replace(
        made.search,
        length_power=options.length_power,
        no_repeat=options.no_repeat,
        maximum_length=options.maximum_length,
    )
    return replace(made, search=search)


def _name_systems(models: Sequence[Path], results: Sequence[Path], out: Path) -> list[_System]:
    """Name models by their folders, or the run's that they are of, and results by their files, each name once."""
    given: list[tuple[str, Path | None, Path | None]] = [(_model_name(path), path, None) for path in models]
    given += [(_results_name(path), None, path) for path in results]
    seen: Counter[str] = Counter()
    systems = []
    for name, model, file in given:
        seen[name] += 1
        own = name if seen[name] == 1 else f"{name}-{seen[name]}"
        systems.append(_System(own, out if len(given) == 1 else out / own, model, file))
    return systems


def _model_name(folder: Path) -> str:
    folder = folder.resolve()
    if folder.name == "best":
        return folder.parent.name
    return f"{folder.parent.name}-last" if folder.name == "last" else folder.name


def _results_name(path: Path) -> str:
    # What this command writes is called the same everywhere.
    return path.resolve().parent.name if path.name == RESULTS else path.stem


def _read_submission(system: _System, split: EvaluationSplit) -> _Submission:
    assert system.results is not None
    about = {"file": system.results.name, "checksum": digest(system.results)}
    return _Submission(system, read_results(system.results, split.images, split.whole), about)


def _caption_all(
    systems: Sequence[_System], split: EvaluationSplit, captioning: CaptionOptions, options: argparse.Namespace
) -> list[_Submission] | None:
    """Caption the split with each model; return the captions, None in all processes but the first."""
    from captioner.distributed import choose_own_device, joined_processes
    from captioner.measures.split_captions import read_captions

    device = choose_own_device(options.device)
    with joined_processes() as processes:
        about = [_caption_one(own, split, captioning, options, device, processes) for own in systems]
    if not processes.is_first:
        return None
    submissions = []
    for system, own in zip(systems, about, strict=True):
        captions = read_captions(system.folder, split.images)
        texts = {name: caption.text for name, caption in captions.items()}
        submissions.append(_Submission(system, texts, own, captions))
    return submissions


def _caption_one(
    system: _System,
    split: EvaluationSplit,
    captioning: CaptionOptions,
    options: argparse.Namespace,
    device: str,
    processes: Processes,
) -> dict[str, Any]:
    """Caption the split with a model into its folder, and return what names the model."""
    from torch import set_num_threads

    from captioner.checkpoint import load_checkpoint
    from captioner.engines import available_cores
    from captioner.measures.split_captions import SplitCaptioner, caption_split, open_cache

    assert system.model is not None
    checkpoint = load_checkpoint(system.model)
    cache = open_cache(options.features, checkpoint) if options.features else None
    quiet = options.quiet or not processes.is_first
    if options.features and cache is None and not quiet:
        say(f"{system.name}: no regions of its encoder in {options.features}; images are encoded")
    threads = max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    model = SplitCaptioner(checkpoint, split.images, cache, device=device, threads=threads, progress=not options.quiet)
    if model.device == "cpu" and not model.encodes_in_torch:
        # Threads that wait for each other at every step of a search come off badly beside those that encode.
        set_num_threads(1)
    own = sum(is_in_share(name_key(image.file_name), processes.rank, processes.count) for image in split.images)
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
            progress=lambda done: progress(done, own),
        )
    if not quiet:
        rate = f" ({report.captioned / report.seconds:.1f} a second)" if report.captioned else ""
        say(f"{system.name}: {report.captioned:,} captioned{rate}, {report.skipped:,} there, {report.failed:,} failed")
    identity = checkpoint.encoder_identity
    encoder = f"{identity['encoder']} {identity['layer']} at {identity['preprocessing']['size']}"
    return {"checksum": checkpoint.digest, "encoder": f"{encoder} ({identity['weights']})"}


def _complain_of(result: Result) -> None:
    if result.error is not None:
        complain(f"{printable(result.source.name)}: {result.error}")


def _score(
    submissions: Sequence[_Submission],
    split: EvaluationSplit,
    options: argparse.Namespace,
    search: dict[str, Any] | None,
) -> None:
    """Score captions, print the table, and write all files."""
    from captioner.evaluation import Evaluator
    from captioner.measures.attention_files import write_attention, write_lengths
    from captioner.measures.paper_rows import find_paper_rows
    from captioner.measures.score_tables import Comparison, write_comparison, write_evaluation
    from captioner.measures.scoring import Judge

    with Judge() as judge:
        judge.start()
        evaluator = Evaluator(judge, split, resamples=options.resamples, seed=options.seed)
        evaluations = []
        for own in submissions:
            if not options.quiet:
                say(f"{own.system.name}: scoring {len(split.images):,} captions")
            evaluations.append(
                evaluator.evaluate(
                    own.system.name,
                    [own.texts[image.file_name] for image in split.images],
                    kind="results" if own.captions is None else "model",
                    captions=None
                    if own.captions is None
                    else [own.captions[image.file_name] for image in split.images],
                    about=own.about,
                )
            )
        if options.human and not options.quiet:
            say("humans: scoring references against each other")
        humans = evaluator.evaluate_humans() if options.human else None
        paper = find_paper_rows(split.data, split.format, split.split, len(split.images))
        comparison = Comparison(evaluator.protocol(search), tuple(evaluations), humans, paper, judge.missing)
    if comparison.missing:
        complain(comparison.missing)
    for own, evaluation in zip(submissions, evaluations, strict=True):
        write_evaluation(own.system.folder, evaluation, comparison)
        if evaluation.captions is not None:
            write_attention(own.system.folder, evaluation, split.root, resamples=options.resamples, seed=options.seed)
    if evaluations:
        write_lengths(options.out, evaluations, resamples=options.resamples, seed=options.seed)
    write_comparison(options.out, comparison)
    print(comparison.to_text(), end="")
    if options.report is not None:
        _report(options.report, comparison, split, quiet=options.quiet)


def _report(folder: Path, comparison: Comparison, split: EvaluationSplit, *, quiet: bool) -> None:
    from captioner.measures.analysis import analyse
    from captioner.reports.report import write_report  # matplotlib, which only a report needs

    path = write_report(folder, comparison, analyse(comparison, split.root))
    if not quiet:
        say(f"report: {path}")
