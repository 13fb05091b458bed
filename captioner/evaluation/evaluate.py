"""From models and a data set to scores: caption a split, score it, compare, look into it, write it all down."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.captioning.caption import Result
from captioner.captioning.captioner import Captioner, load
from captioner.captioning.options import CaptionOptions, CaptionSettings, make_options
from captioner.datasets.dataset import CaptionDataset, load_dataset
from captioner.evaluation import calibration
from captioner.evaluation.analysis.analysis import Analysis, analyse, write_analysis
from captioner.evaluation.comparison import Comparison, find_paper_rows, write_comparison, write_evaluation
from captioner.evaluation.metrics import judge as judges
from captioner.evaluation.metrics.bootstrap import RESAMPLES
from captioner.evaluation.model_captions import SplitCaptioner, caption_split, open_cache, read_captions
from captioner.evaluation.scoring import EvaluationSplit, Evaluator, take_split
from captioner.evaluation.systems import (
    Submission,
    System,
    captioned_by_all,
    describe_model,
    name_systems,
    read_submission,
)
from captioner.files import write_whole
from captioner.model.bundled import find_model
from captioner.model.confidence import CONFIDENCE
from captioner.processes import Processes

if TYPE_CHECKING:
    from typing_extensions import Unpack

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]


def evaluate(
    models: PathLike | Captioner | Sequence[PathLike | Captioner],
    data: PathLike | CaptionDataset,
    split: str = "test",
    out: PathLike | None = None,
    *,
    results: PathLike | Sequence[PathLike] = (),
    human: bool = False,
    calibrate: bool = False,
    report: PathLike | None = None,
    features: PathLike | None = None,
    limit: int | None = None,
    existing: str = "skip",
    resamples: int = RESAMPLES,
    device: str = "auto",
    workers: int | None = None,
    processes: Processes | None = None,
    progress: Progress = lambda name, done, total: None,
    listen: Callable[[Result], None] = lambda result: None,
    note: Callable[[str], None] = lambda message: None,
    **search: Unpack[CaptionSettings],
) -> Comparison:
    """Caption a split of a data set with each model, score the captions, and compare them with the first model's.

    `models` are bundled names, checkpoint folders or loaded models, one or a list, which may be empty; `results` are
    files of other systems' captions as COCO results; `human` scores the references against each other. `limit` takes so
    many images, spread over the split; `features` is a folder of region caches, read where one fits a model.
    `calibrate` also writes a `confidence.json` of each model into its folder in `out`.

    Everything is written into the folder `out`, where captions that are there already are kept (`existing` is as for
    captioning), and nothing is kept without it. `report` is a folder for a page with figures. Images that cannot be
    read are left out for all systems (`Comparison.protocol.left_out`).

    Search settings are those of `Captioner.caption`; `seed` is also that of the `resamples` of images. `device` is for
    models that are not loaded yet, `workers` how many threads decode images. `progress` is told a system's name and how
    many of how many images are done, `listen` what came of each image, `note` what happens in between. Several
    `processes` share the captioning; the first scores and writes, and all return the same comparison.
    """
    processes = processes or Processes()
    seed = search.get("seed") or 0
    if not search.get("sample"):
        search["seed"] = None
    options = make_options(**search, workers=workers)
    given, files = _find_systems(models, results)
    if not given and not files and not human:
        raise ValueError("there is nothing to evaluate; give a model, results of others, or human")
    if calibrate and (out is None or not given or options.search.method != "beam"):
        raise ValueError("calibrate needs a model, a beam search, and a folder out to write confidence.json into")
    if report is not None and Path(report).exists() and not Path(report).is_dir():
        raise ValueError(f"{report} is not a folder; name one for the report")
    dataset = data if isinstance(data, CaptionDataset) else load_dataset(data)
    chosen = take_split(dataset, split, limit)
    with _folder(out) as folder:
        systems = name_systems(given, files, folder)
        submissions = [read_submission(system, chosen) for system in systems if system.results is not None]
        run = _Captioning(chosen, options, device, features, existing, processes, progress, listen, note)
        told = [(system, run.caption(system)) for system in systems if system.model is not None]
        if not processes.is_first:
            return _share(None, processes)
        submissions = [*(_read_back(system, about, chosen) for system, about in told), *submissions]
        chosen = captioned_by_all(chosen, submissions)
        with judges.Judge() as judge:
            judge.start()
            evaluator = Evaluator(judge, chosen, resamples=resamples, seed=seed)
            comparison = _compare(evaluator, submissions, options if given else None, human=human, note=note)
        analysis = analyse(comparison, chosen.root)
        comparison = replace(comparison, analysis=analysis)
        if out is not None:
            folders = {system.name: system.folder for system in systems}
            _write(folder, folders, comparison, analysis)
            if calibrate:
                _calibrate(comparison, folders, note)
    if report is not None:
        from captioner.evaluation.report.report import write_report  # matplotlib, which only a report needs

        note(f"report: {write_report(Path(report), comparison, analysis)}")
    return _share(comparison, processes)


def _find_systems(
    models: PathLike | Captioner | Sequence[PathLike | Captioner], results: PathLike | Sequence[PathLike]
) -> tuple[list[Path | Captioner], list[Path]]:
    """Return the models and the files of results, one or several of each; a text is one, though a sequence of texts."""
    several = [models] if isinstance(models, str | os.PathLike | Captioner) else models
    files = [results] if isinstance(results, str | os.PathLike) else results
    given = [model if isinstance(model, Captioner) else find_model(model) for model in several]
    return given, [Path(path) for path in files]


def _write(folder: Path, folders: Mapping[str, Path], comparison: Comparison, analysis: Analysis) -> None:
    """Write the comparison into the folder, and what is said of each system into its own in `folders`."""
    for evaluation in comparison.evaluations:
        write_evaluation(folders[evaluation.name], evaluation, comparison)
    write_analysis(folder, folders, analysis)
    write_comparison(folder, comparison)


def _calibrate(comparison: Comparison, folders: Mapping[str, Path], note: Callable[[str], None]) -> None:
    """Write the calibration of each model into its folder."""
    for evaluation in comparison.evaluations:
        if evaluation.kind == "model":
            found = calibration.calibrate(evaluation, comparison.protocol)
            write_whole(folders[evaluation.name] / CONFIDENCE, found.to_text())
            note(f"{evaluation.name}: {calibration.describe(found)}")


@contextmanager
def _folder(out: PathLike | None) -> Iterator[Path]:
    """Yield the folder of what is written, one for a while where nothing is to be kept."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="captioner-") as folder:
        yield Path(folder)


def _share(comparison: Comparison | None, processes: Processes) -> Comparison:
    """Return the first process's comparison in all of them."""
    try:
        shared = processes.gather(comparison)[0]
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the first process has ended early ({reason})") from None
    assert shared is not None
    return shared


@dataclass(frozen=True)
class _Captioning:
    """How each model captions the split."""

    split: EvaluationSplit
    options: CaptionOptions
    device: str
    features: PathLike | None
    existing: str
    processes: Processes
    progress: Progress
    listen: Callable[[Result], None]
    note: Callable[[str], None]

    def caption(self, system: System) -> dict[str, str]:
        """Caption the split with a system's model into its folder, and return what names the model."""
        threads = self.options.workers
        given = system.model
        model = given if isinstance(given, Captioner) else load(given, device=self.device, threads=threads)
        cache = open_cache(Path(self.features), model.encoder_identity) if self.features is not None else None
        if self.features is not None and cache is None:
            self.note(f"{system.name}: no regions of its encoder in {self.features}; images are encoded")
        with cache if cache is not None else nullcontext():
            done = caption_split(
                system.folder,
                SplitCaptioner(model, self.split.images, cache),
                self.split.images,
                self.options,
                self.split.identity(),
                existing=self.existing,
                processes=self.processes,
                listen=self.listen,
                progress=lambda done, total: self.progress(system.name, done, total),
            )
        rate = f" ({done.captioned / done.seconds:.1f} per second)" if done.captioned else ""
        self.note(
            f"{system.name}: {done.captioned:,} captioned{rate}, {done.skipped:,} there already, {done.failed:,} failed"
        )
        return describe_model(model.digest, model.encoder_identity)


def _read_back(system: System, about: dict[str, str], split: EvaluationSplit) -> Submission:
    captions = read_captions(system.folder, split.images)
    return Submission(system, {name: caption.text for name, caption in captions.items()}, about, captions)


def _compare(
    evaluator: Evaluator,
    submissions: Sequence[Submission],
    options: CaptionOptions | None,
    *,
    human: bool,
    note: Callable[[str], None],
) -> Comparison:
    """Score each system's captions, and people's; `options` are those of the models, None where there is none."""
    split, evaluations = evaluator.split, []
    for submission in submissions:
        note(f"{submission.system.name}: scoring {len(split.images):,} captions")
        evaluations.append(submission.evaluate(evaluator))
    if human:
        note("humans: scoring references against each other")
    return Comparison(
        evaluator.protocol(None if options is None else options.identity()),
        tuple(evaluations),
        evaluator.evaluate_humans() if human else None,
        find_paper_rows(split.data, split.format, split.split, len(split.images)),
        evaluator.judge.missing,
    )
