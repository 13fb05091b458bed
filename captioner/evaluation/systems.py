"""Systems that are evaluated side by side: what each is called, where its files lie, and the captions it hands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.evaluation.coco_results import RESULTS, read_results
from captioner.evaluation.scoring import Evaluation, EvaluationSplit, Evaluator
from captioner.files import digest
from captioner.model.bundled import distinct_names, model_name


@dataclass(frozen=True)
class System:
    """One row of a comparison: its name, its folder, and the model or the file of results that its captions are of."""

    name: str
    folder: Path
    model: Path | Captioner | None = None
    results: Path | None = None


@dataclass(frozen=True, eq=False)
class Submission:
    """The captions of a system by file name, where they are from, and their attention where a model made them."""

    system: System
    texts: Mapping[str, str]
    about: Mapping[str, Any]
    captions: Mapping[str, Caption] | None = None

    def evaluate(self, evaluator: Evaluator) -> Evaluation:
        """Score the captions of the evaluator's images."""
        names = [image.file_name for image in evaluator.split.images]
        return evaluator.evaluate(
            self.system.name,
            [self.texts[name] for name in names],
            kind="results" if self.captions is None else "model",
            captions=None if self.captions is None else [self.captions[name] for name in names],
            about=self.about,
        )


def name_systems(models: Sequence[Path | Captioner], results: Sequence[Path], out: Path) -> list[System]:
    """Name models by their folders, or the run's that they are of, and results by their files, each name once.

    Each has a folder of its own below `out`, or `out` itself where it is alone.
    """
    given: list[tuple[str, Path | Captioner | None, Path | None]] = [
        (_model_name(model), model, None) for model in models
    ]
    given += [(_results_name(path), None, path) for path in results]
    return [
        System(name, out if len(given) == 1 else out / name, model, file)
        for name, (_, model, file) in zip(distinct_names([name for name, _, _ in given]), given, strict=True)
    ]


def _model_name(model: Path | Captioner) -> str:
    return model_name(model) if isinstance(model, Path) else model.name or "model"


def _results_name(path: Path) -> str:
    # What an evaluation writes is called the same everywhere.
    return path.resolve().parent.name if path.name == RESULTS else path.stem


def read_submission(system: System, split: EvaluationSplit) -> Submission:
    """Return the captions of a split in a system's file of results."""
    if system.results is None:
        raise ValueError(f"{system.name} has no file of results to read")
    about = {"file": system.results.name, "checksum": digest(system.results)}
    return Submission(system, read_results(system.results, split.images, split.whole), about)


def describe_model(checksum: str, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return what a comparison tells of a model, of its checkpoint's checksum and its encoder's identity."""
    encoder = f"{identity['encoder']} {identity['layer']} at {identity['preprocessing']['size']}"
    return {"checksum": checksum, "encoder": f"{encoder} ({identity['weights']})"}


def captioned_by_all(split: EvaluationSplit, submissions: Sequence[Submission]) -> EvaluationSplit:
    """Return a split without the images that a system has no caption of."""
    names = [image.file_name for image in split.images]
    missing = [name for name in names if any(name not in submission.texts for submission in submissions)]
    return split.leave_out(missing) if missing else split
