"""All that is looked into beyond scores: quality by length, what attention does, and what captions get wrong.

It is computed once, for the files of an evaluation and for its report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from captioner.captioning.caption import Caption
from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.instances import Instances, instance_files, read_instances
from captioner.evaluation.analysis.common_errors import CommonErrors, find_errors
from captioner.evaluation.analysis.diagnostics import Diagnostics, diagnose
from captioner.evaluation.analysis.grounding import Grounding, measure_grounding
from captioner.evaluation.analysis.length_curves import BUCKETS, LengthCurves, length_curves
from captioner.evaluation.comparison import Comparison
from captioner.evaluation.scoring import Evaluation
from captioner.evaluation.tables import json_text
from captioner.files import write_whole

DIAGNOSTICS, GROUNDING, LENGTHS = "diagnostics", "grounding", "lengths"  # each .json and .txt


@dataclass(frozen=True, eq=False)
class Analysis:
    """What was found, by the names of a comparison's evaluations.

    `diagnostics` and `grounding` are there for models whose attention is known, the latter where the boxes of objects
    are, too; `errors` are there for people as well. `curves` are None where no system was evaluated.
    """

    curves: LengthCurves | None = None
    diagnostics: dict[str, Diagnostics] = field(default_factory=dict)
    grounding: dict[str, Grounding] = field(default_factory=dict)
    errors: dict[str, CommonErrors] = field(default_factory=dict)


def analyse(comparison: Comparison, root: Path | None = None) -> Analysis:
    """Look into the evaluations of a comparison; `root` is the data set's folder, where COCO's has boxes of objects."""
    systems, protocol = comparison.evaluations, comparison.protocol
    errors = {
        row.name: find_errors(_words(row.candidates), list(map(_words, row.references))) for row in comparison.rows
    }
    if not systems:
        return Analysis(errors=errors)
    images = systems[0].images
    curves = length_curves(
        {system.name: system.candidates for system in systems},
        systems[0].references,
        buckets=min(BUCKETS, len(images)),
        resamples=protocol.resamples,
        seed=protocol.seed,
    )
    models = {system.name: system.captions for system in systems if system.captions is not None}
    instances = _read_objects(root, images) if root is not None and models else None
    diagnostics = {name: diagnose(captions) for name, captions in models.items()}
    grounding = {}
    if instances:
        grounding = {name: _ground(captions, images, instances, comparison) for name, captions in models.items()}
    return Analysis(curves, diagnostics, grounding, errors)


def _words(texts: Sequence[str]) -> list[list[str]]:
    return [text.split() for text in texts]


def example_of(evaluation: Evaluation, place: int) -> tuple[str, tuple[str, ...]]:
    """Return the caption and the references, as they were written, at a place that `Analysis.errors` names."""
    references = evaluation.images[place].captions
    return evaluation.texts[place], references[1:] if evaluation.kind == "humans" else references


def _read_objects(root: Path, images: Sequence[CaptionedImage]) -> Instances | None:
    """Return the objects of images, None where the data set has none of any."""
    files = instance_files(root, images)
    found = read_instances(files, {image.image_id for image in images}) if files else None
    return found if found is not None and found.images else None


def _ground(
    captions: Sequence[Caption], images: Sequence[CaptionedImage], instances: Instances, comparison: Comparison
) -> Grounding:
    known = [place for place, image in enumerate(images) if image.image_id in instances.images]
    return measure_grounding(
        [captions[place] for place in known],
        [images[place].image_id for place in known],
        instances,
        resamples=comparison.protocol.resamples,
        seed=comparison.protocol.seed,
    )


class _Finding(Protocol):
    """What can be written both for programs and for people."""

    def to_dict(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


def write_analysis(out: Path, folders: Mapping[str, Path], analysis: Analysis) -> None:
    """Write quality by length into `out`, and what attention does into the folder of each model, as JSON and text.

    `folders` are by the names of the evaluations. There are no files of what is not known.
    """
    found: list[tuple[Path, _Finding]] = [] if analysis.curves is None else [(out / LENGTHS, analysis.curves)]
    found += [(folders[name] / DIAGNOSTICS, finding) for name, finding in analysis.diagnostics.items()]
    found += [(folders[name] / GROUNDING, finding) for name, finding in analysis.grounding.items()]
    for path, finding in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path.with_name(f"{path.name}.json"), json_text(finding.to_dict()))
        write_whole(path.with_name(f"{path.name}.txt"), finding.to_text() + "\n")
