"""Models by name: those that come with the package, and checkpoint folders anywhere."""

from __future__ import annotations

import os
from pathlib import Path

MANIFEST = "checkpoint.json"  # as in `checkpoint_files`, which imports torch
PRETRAINED = Path(__file__).parent / "pretrained"
DEFAULT = "flickr8k-soft"
_HOW_TO = "train one with `captioner train experiments/flickr8k-soft.yaml` and name its folder"


def bundled_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in PRETRAINED.glob(f"*/{MANIFEST}"))


def find_model(model: str | os.PathLike[str] | None = None) -> Path:
    """Return the checkpoint folder of a model: a bundled one by name, by default the default one, or a folder.

    A folder may also be that of a training run, of which the best checkpoint is taken. A folder comes before a bundled
    model of the same name only when its path says so, as in `./flickr8k-soft`.
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
    raise ValueError(f"model is {str(model)!r}; {choices}")
