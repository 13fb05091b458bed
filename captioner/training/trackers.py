"""Where a run's log goes beside log.jsonl: TensorBoard and Weights & Biases, each told every line."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from captioner.files import one_line, read_whole, write_whole
from captioner.images.opening import ImageError, open_image
from captioner.training.log import TRACKERS, Line, is_validation, tagged
from captioner.training.recipe import Recipe, recipe_to_dict, to_yaml


class Tracker(Protocol):
    """Who is told every line of a run's log."""

    def log(self, line: Line) -> None:
        """Take a line."""

    def close(self) -> None:
        """Write what is left."""


def start_tracker(name: str, folder: Path, recipe: Recipe) -> Tracker:
    """Return a tracker for the run in a folder; an ImportError tells how to install what it needs."""
    if name not in TRACKERS:
        raise ValueError(f"no tracker is called {name!r}; choose from {', '.join(TRACKERS)}")
    return TensorBoard(folder, recipe) if name == "tensorboard" else WeightsAndBiases(folder, recipe)


class TensorBoard:
    """Numbers as train/loss and validation/cider, word grids of validation images, and all settings as text."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoard is not installed: pip install 'captioner[tensorboard]'") from None
        self.folder = folder
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))
        # As Markdown, which four spaces make code.
        self.writer.add_text("settings", "".join(f"    {line}\n" for line in to_yaml(recipe).splitlines()), 0)

    def log(self, line: Line) -> None:
        """Write numbers and pictures."""
        for tag, value in tagged(line).items():
            self.writer.add_scalar(tag, value, line["step"])
        for number, (tag, picture, _) in enumerate(_pictures(self.folder, line)):
            try:
                pixels = np.asarray(open_image(picture))
            except ImageError:
                continue
            self.writer.add_image(f"{tag}/{number:02d}", pixels, line["step"], dataformats="HWC")
        if is_validation(line):
            self.writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class WeightsAndBiases:
    """The same at wandb.ai or, with WANDB_MODE=offline, in the run folder's wandb/; a run that resumes is one there."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        try:
            import wandb
        except ImportError:
            raise ImportError("wandb is not installed: pip install 'captioner[wandb]'") from None
        self.folder, self.wandb = folder, wandb
        try:
            self.run: Any = wandb.init(
                project="captioner",
                name=folder.resolve().name,
                dir=str(folder),
                id=_run_id(folder / "wandb-id.txt"),
                resume="allow",
                config=recipe_to_dict(recipe),
            )
        except Exception as error:  # whatever its own client raises: no key, no network
            raise ValueError(f"wandb: {one_line(error)}") from None

    def log(self, line: Line) -> None:
        """Send numbers and pictures."""
        values: dict[str, Any] = dict(tagged(line))
        for number, (tag, picture, caption) in enumerate(_pictures(self.folder, line)):
            values[f"{tag}/{number:02d}"] = self.wandb.Image(str(picture), caption=caption)
        self.run.log(values, step=line["step"])

    def close(self) -> None:
        """Send what is left."""
        self.run.finish()


def _pictures(folder: Path, line: Line) -> list[tuple[str, Path, str]]:
    """Return a tag, the word grid's file and the caption of each sample of a validation."""
    place = f"validation/{line['set']}/overlays" if "set" in line else "validation/overlays"
    return [
        (place, folder / sample["overlay"], sample["caption"])
        for sample in line.get("samples", ())
        if sample["overlay"] is not None
    ]


def _run_id(path: Path) -> str:
    """Return the name by which a run is known there, made and kept where it has none."""
    if not path.exists():
        write_whole(path, secrets.token_hex(4) + "\n")
    return read_whole(path, most=100).decode("utf-8").strip()
