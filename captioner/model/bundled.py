"""Models by name: those that come with the package, and checkpoint folders anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from captioner.files import printable, read_json_object

MANIFEST = "checkpoint.json"  # of a checkpoint folder, see `checkpoint_files`
SHARED = "encoders"  # a folder beside those of models, for encoders that several of them share
LARGEST_MANIFEST = 16_000_000  # bytes; a model of ten thousand words has a hundredth of it
LARGEST_SCORES = 16_000_000  # bytes of what an evaluation tells
LARGEST_SCORE = 1e6
SCORES = "scores.json"  # beside it, where the model was evaluated
SPEEDS = "speed.json"  # images per second of all bundled models, measured in one run by a benchmark
PRETRAINED = Path(__file__).parent.parent / "pretrained"
DEFAULT = "coco-best"
_HOW_TO = "train one with `captioner train flickr8k-soft` and name its folder"


def bundled_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in PRETRAINED.glob(f"*/{MANIFEST}"))


@dataclass(frozen=True)
class ModelSummary:
    """What there is to say about a model without loading it.

    `attention` is its mode, `size` its bytes on disk with an encoder that it shares, `evaluation` what `captioner
    evaluate` found, where it was asked, `speed` its images per second as a share of the fastest bundled model's, where
    that was measured.
    """

    name: str
    folder: Path
    encoder: str
    attention: str
    words: int
    size: int
    evaluation: dict[str, Any] | None
    speed: float | None = None


def summarise(folder: Path) -> ModelSummary:
    """Return what the files in a checkpoint folder say about their model."""
    match read_json_object(folder / MANIFEST, most=LARGEST_MANIFEST):
        case {
            "encoder": {"name": str(encoder)},
            "attention": {"mode": str(mode)},
            "vocabulary": {"words": [*words]},
            "files": {**files},
        }:
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) + _shared(folder, files)
            evaluation = read_evaluation(folder / SCORES) if (folder / SCORES).exists() else None
            speed = relative_speed(folder.name) if folder.resolve().parent == PRETRAINED.resolve() else None
            return ModelSummary(model_name(folder), folder, encoder, mode, len(words), size, evaluation, speed)
    raise ValueError(f"{folder} is damaged: {MANIFEST} has no encoder, attention, vocabulary or files")


def _shared(folder: Path, files: Mapping[Any, Any]) -> int:
    """Return the bytes of those files of a model that lie beside its folder, not in it."""
    total = 0
    for entry in files.values():
        match entry:
            case {"name": str(name), "bytes": int(size)} if not (folder / name).exists():
                total += size
    return total


def relative_speed(name: str) -> float | None:
    """Return a bundled model's images per second as a share of the fastest one's, None where it was not measured."""
    path = PRETRAINED / SPEEDS
    rates = read_json_object(path, most=LARGEST_SCORES) if path.exists() else {}
    return rates[name] / max(rates.values()) if name in rates else None


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return what `captioner evaluate` wrote about a model: `scores` by metric, and the `protocol` they are from."""
    evaluation = read_json_object(path, most=LARGEST_SCORES)
    match evaluation:
        case {"scores": dict(scores), "protocol": {"data": str(), "split": str(), "images": int()}}:
            if all(isinstance(score, int | float) and abs(score) < LARGEST_SCORE for score in scores.values()):
                return evaluation
    raise ValueError(
        f"{printable(str(path))} is no evaluation of a model; expected a metrics.json of `captioner evaluate`"
    )


def model_name(folder: Path) -> str:
    """Return what to call the model in a checkpoint folder: the folder's name, or that of the run it is of."""
    folder = folder.resolve()
    if folder.name == "best":
        return folder.parent.name
    return f"{folder.parent.name}-last" if folder.name == "last" else folder.name


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of models that stand side by side, no two alike: the second `a` is `a-2`."""
    found: list[str] = []
    for name in names:
        candidates = (f"{name}-{number}" for number in count(2))
        taken = {*found, *names}
        found.append(name if name not in found else next(each for each in candidates if each not in taken))
    return tuple(found)


def find_model(model: str | os.PathLike[str] | None = None, *, setting: str = "model") -> Path:
    """Return the checkpoint folder of a model: a bundled one by name, by default the default one, or a folder.

    A folder may also be that of a training run, of which the best checkpoint is taken. A folder comes before a bundled
    model of the same name only when its path says so, as in `./flickr8k-soft`. `setting` is what named it, for the
    message where there is no such model.
    """
    names = bundled_models()
    if model is None:
        if not names:
            raise ValueError(f"no model comes with this version; {_HOW_TO}")
        return PRETRAINED / (DEFAULT if DEFAULT in names else names[0])
    if isinstance(model, str) and model in names:
        return PRETRAINED / model
    folder = Path(model)
    for candidate in (folder, folder / "best"):
        if (candidate / MANIFEST).is_file():
            return candidate
    if folder.is_dir():
        raise ValueError(f"{folder} holds no model: neither it nor its best/ has a {MANIFEST}")
    choices = f"choose from {', '.join(names)}, or name a checkpoint folder" if names else f"none is bundled; {_HOW_TO}"
    raise ValueError(f"{setting} is {str(model)!r}; {choices}")
