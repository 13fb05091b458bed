"""All that is looked into beyond scores: quality by length, what attention does, and what captions get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from captioner.captions import Caption
from captioner.datasets import CaptionedImage
from captioner.evaluation import Evaluation
from captioner.measures.common_errors import CommonErrors, find_errors
from captioner.measures.diagnostics import Diagnostics, diagnose
from captioner.measures.grounding import Grounding, measure_grounding
from captioner.measures.instances import Instances, instance_files, read_instances
from captioner.measures.length_curves import BUCKETS, LengthCurves, length_curves
from captioner.measures.score_tables import Comparison


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
        own.name: find_errors(_words(own.candidates), list(map(_words, own.references))) for own in comparison.rows
    }
    if not systems:
        return Analysis(errors=errors)
    images = systems[0].images
    curves = length_curves(
        {own.name: own.candidates for own in systems},
        systems[0].references,
        buckets=min(BUCKETS, len(images)),
        resamples=protocol.resamples,
        seed=protocol.seed,
    )
    models = {own.name: _with_grids(own.captions) for own in systems if own.captions is not None}
    instances = _read_objects(root, images) if root is not None and models else None
    grounding = {name: _ground(own, images, instances, comparison) for name, own in models.items()} if instances else {}
    return Analysis(curves, {name: diagnose(own) for name, own in models.items()}, grounding, errors)


def _words(texts: Sequence[str]) -> list[list[str]]:
    return [text.split() for text in texts]


def example_of(evaluation: Evaluation, place: int) -> tuple[str, tuple[str, ...]]:
    """Return the caption and the references, as they were written, at a place that `Analysis.errors` names."""
    references = evaluation.images[place].captions
    return evaluation.texts[place], references[1:] if evaluation.kind == "humans" else references


def _with_grids(captions: Sequence[Caption]) -> list[Caption]:
    """Return captions with the grid of the others for those without words, which have none of their own."""
    grid = next((caption.attention.shape[1:] for caption in captions if caption.words), (1, 1))
    return [
        caption if caption.words else replace(caption, attention=np.zeros((0, *grid), np.float32))  # (0, rows, columns)
        for caption in captions
    ]


def _read_objects(root: Path, images: Sequence[CaptionedImage]) -> Instances | None:
    """Return the objects of images, None where the data set has none of any."""
    files = instance_files(root, [image.file_name for image in images])
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
