"""A trained model made ready to hand on: half precision, no training state, none of the machine's paths, its scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from captioner.files import write_whole
from captioner.model.bundled import SCORES, read_evaluation
from captioner.model.checkpoint import Checkpoint, save_checkpoint, to_half
from captioner.model.confidence import CONFIDENCE, read_calibration

KEPT = ("scores", "intervals", "diversity", "protocol")  # of what an evaluation wrote about a model


def export_model(
    checkpoint: Checkpoint,
    folder: str | os.PathLike[str],
    *,
    evaluation: Path | None = None,
    confidence: Path | None = None,
    half: bool = True,
    size: int | None = None,
) -> None:
    """Put a model into `folder`, with the scores in an `evaluation`, the `metrics.json` of `captioner evaluate`.

    `confidence` is a calibration, the `confidence.json` of `captioner evaluate --calibrate`. Rounding to `half`
    precision may change a caption, and so does another input `size`, so that both must be of the model as it is
    exported: export it, evaluate what came of it, and export that with its scores.
    """
    folder = Path(folder)
    exported = to_half(checkpoint) if half else checkpoint
    exported = at_size(exported, size) if size is not None else exported
    scores = read_scores(evaluation, exported.digest) if evaluation is not None else None
    calibration = read_calibration(confidence, exported.digest) if confidence is not None else None
    folder.mkdir(parents=True, exist_ok=True)
    encoder = replace(exported.encoder, weights=_without_path(exported.encoder.weights))
    save_checkpoint(folder, replace(exported, encoder=encoder, settings=without_paths(exported.settings)))
    if scores is not None:
        write_whole(folder / SCORES, json.dumps(scores, indent=2) + "\n")
    if calibration is not None:
        write_whole(folder / CONFIDENCE, calibration.to_text())
    else:
        _remove_stale_calibration(folder / CONFIDENCE, exported.digest)


def at_size(checkpoint: Checkpoint, size: int) -> Checkpoint:
    """Return a model that sees images at `size` pixels a side: more regions of them, or fewer and sooner."""
    if checkpoint.encoder.is_imported:
        raise ValueError(f"{checkpoint.encoder.name} is no encoder, and has no input size")
    config = replace(checkpoint.encoder, size=size)
    identity = checkpoint.build_encoder().at_size(size).identity()
    return replace(checkpoint, encoder=config, encoder_identity=identity, metrics={})


def _remove_stale_calibration(path: Path, digest: str) -> None:
    """Remove a calibration that is not of the model of a digest, which would not load beside it."""
    try:
        read_calibration(path, digest)
    except FileNotFoundError:
        return
    except ValueError:
        path.unlink()


def read_scores(path: Path, digest: str) -> dict[str, Any]:
    """Return what to keep of an evaluation's `metrics.json`; raise ValueError unless it is of the model of a digest."""
    found = read_evaluation(path)
    if not {"checksum", *KEPT} <= set(found):
        raise ValueError(f"{path} is no evaluation of a model; expected a metrics.json of `captioner evaluate`")
    if found["checksum"] != digest:
        raise ValueError(f"{path} is of the model {found['checksum']}, not {digest}; evaluate the exported model")
    return {name: found[name] for name in KEPT}


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which every path is its last part alone: where data lay is nobody else's business."""
    return {name: _without_path(value) for name, value in settings.items()}


def _without_path(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_paths(value)
    if isinstance(value, list | tuple):
        return [_without_path(inner) for inner in value]
    if isinstance(value, str) and ("/" in value or "\\" in value):
        return PureWindowsPath(PurePosixPath(value).name).name
    return value
