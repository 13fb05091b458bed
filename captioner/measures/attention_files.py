"""What attention does in evaluated captions, as files: diagnostics, grounding where objects are known, and lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioner.evaluation import Evaluation
from captioner.files import write_whole
from captioner.measures.bootstrap import RESAMPLES
from captioner.measures.diagnostics import diagnose
from captioner.measures.grounding import measure_grounding
from captioner.measures.instances import instance_files, read_instances
from captioner.measures.length_curves import BUCKETS, length_curves

DIAGNOSTICS, GROUNDING, LENGTHS = "diagnostics", "grounding", "lengths"  # each .json and .txt


def write_attention(
    folder: Path, evaluation: Evaluation, root: Path, *, resamples: int = RESAMPLES, seed: int = 0
) -> None:
    """Write a model's diagnostics, and its grounding where the data set in `root` has the objects of all its images."""
    if evaluation.captions is None:
        raise ValueError(f"{evaluation.name} has no attention; only captions that a model made here have")
    diagnostics = diagnose(evaluation.captions)
    _write(folder / DIAGNOSTICS, diagnostics.to_json(), diagnostics.table())
    ids = [image.image_id for image in evaluation.images]
    files = instance_files(root, [image.file_name for image in evaluation.images])
    if not files:
        return
    instances = read_instances(files, set(ids))
    known = [place for place, image_id in enumerate(ids) if image_id in instances.images]
    if known:
        grounding = measure_grounding(
            [evaluation.captions[place] for place in known],
            [ids[place] for place in known],
            instances,
            resamples=resamples,
            seed=seed,
        )
        _write(folder / GROUNDING, grounding.to_json(), grounding.table())


def write_lengths(
    folder: Path, evaluations: Sequence[Evaluation], *, resamples: int = RESAMPLES, seed: int = 0
) -> None:
    """Write the scores of all by the length of references, against the first."""
    references = evaluations[0].references
    curves = length_curves(
        {own.name: own.candidates for own in evaluations},
        references,
        buckets=min(BUCKETS, len(references)),
        resamples=resamples,
        seed=seed,
    )
    _write(folder / LENGTHS, curves.to_json(), curves.table())


def _write(path: Path, content: dict[str, Any], table: str) -> None:
    write_whole(path.with_name(f"{path.name}.json"), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_whole(path.with_name(f"{path.name}.txt"), table + "\n")
