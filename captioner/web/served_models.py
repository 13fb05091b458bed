"""What a server offers: models under names, and example images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.captioning.captioner import Captioner
from captioner.files import read_whole
from captioner.images.finding import find_images
from captioner.images.headers.header import Damaged, read_header
from captioner.model.bundled import DEFAULT, bundled_models, distinct_names, find_model, model_name
from captioner.model.checkpoint import load_checkpoint
from captioner.model.confidence import find_calibration

EXAMPLES = 24  # shown at most
_EXAMPLE_BYTES = 10_000_000


@dataclass(frozen=True)
class Served:
    """A model under the name that clients know it by, and the mode of its attention."""

    name: str
    captioner: Captioner
    attention: str

    def describe(self) -> dict[str, Any]:
        """Return what clients are told of the model."""
        model = self.captioner
        about = {"name": self.name, "digest": model.digest, "attention": self.attention, "device": model.device}
        return {**about, "grid": list(model.grid), "words": len(model.vocabulary)}


def load_models(
    models: Sequence[str | os.PathLike[str]],
    *,
    device: str = "auto",
    progress: bool = False,
    allow_download: bool = False,
) -> list[Served]:
    """Return models by their names or folders, by default all bundled ones; raise ValueError for one there is not.

    The rest is as for `Captioner`.
    """
    # The first is the default of every request.
    bundled: list[str | None] = [*sorted(bundled_models(), key=lambda name: name != DEFAULT)] or [None]
    folders = [find_model(model) for model in models or bundled]
    served: list[Served] = []
    for folder, name in zip(folders, distinct_names([model_name(folder) for folder in folders]), strict=True):
        checkpoint = load_checkpoint(folder)
        captioner = Captioner(
            checkpoint,
            device=device,
            progress=progress,
            name=name,
            allow_download=allow_download,
            calibration=find_calibration(folder, checkpoint.digest),
        )
        served.append(Served(name, captioner, checkpoint.attention.mode))
    return served


@dataclass(frozen=True)
class Example:
    """An image to try: where it is, and its content type."""

    path: Path
    kind: str

    def read(self) -> bytes | None:
        """Return its bytes, None where it is no longer there, no regular file, or too large."""
        try:
            return read_whole(self.path, most=_EXAMPLE_BYTES)
        except (OSError, ValueError):
            return None


def find_examples(folder: Path) -> dict[str, Example]:
    """Return a folder's first images by name; none where there is no folder."""
    found: dict[str, Example] = {}
    for path in find_images([folder]):
        if len(found) == EXAMPLES:
            break
        try:
            header = read_header(Example(path, "").read() or b"")
        except Damaged:
            continue
        # Those that a browser cannot show would be no help, nor those too large to be sent back.
        if header is not None and header.format != "TIFF":
            found[path.name] = Example(path, f"image/{header.format.lower()}")
    return found
