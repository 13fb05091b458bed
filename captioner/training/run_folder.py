"""The folder of one training run: settings, log, curves, word grids; checkpoints are in its best/ and last/.

settings.yaml     every setting, as the run uses it
log.jsonl         one line per step, and one per validation
curves.png        losses and scores so far
overlays/         word grids of some validation images, a folder per epoch
best/, last/      checkpoints: the best by the chosen metric, and the newest, with what training needs to resume
tensorboard/      on request
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from captioner.captioning.captioner import make_caption
from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import Vocabulary
from captioner.figures.drawing import save_figure
from captioner.figures.word_grid import word_grid
from captioner.files import check_regular, try_lock, write_whole
from captioner.images.opening import ImageError, open_image
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.region_cache import RegionCache
from captioner.model.search.beam import Hypothesis
from captioner.training.curves import draw_curves
from captioner.training.recipe import Recipe, load_recipe, recipe_to_dict, to_yaml

# What may differ between the run that began and the one that resumes it: where things lie, and what is only looked at.
# That a file of encoder weights holds the same ones is checked when they are loaded.
FREE_SETTINGS = ("root", "features", "weights", "tensorboard", "save_every", "overlays")


class RunFolder:
    """A run's files, written by the first process only; the log is cut back to where a run resumes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best, self.last = folder / "best", folder / "last"
        self.log_path, self.settings_path = folder / "log.jsonl", folder / "settings.yaml"
        self.writer: Any = None  # TensorBoard's
        self.held: IO[bytes] | None = None  # the log, while this process writes here

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self.held is not None:
            self.held.close()

    def has_run(self) -> bool:
        """Tell whether a run has begun here."""
        return self.settings_path.exists()

    def can_resume(self) -> bool:
        """Tell whether there is a checkpoint to resume from."""
        return (self.last / "checkpoint.json").exists()

    def check_settings(self, recipe: Recipe) -> None:
        """Raise ValueError, naming the first key, where the run here was begun with other settings."""
        before = recipe_to_dict(load_recipe(self.settings_path))
        for key, now, then in _differences(recipe_to_dict(recipe), before):
            if key.rsplit(".", 1)[-1] not in FREE_SETTINGS:
                raise ValueError(
                    f"{self.folder} was begun with {key} {then!r}, not {now!r}; keep that, or name another --run"
                )

    def hold(self) -> None:
        """Keep others from writing here until this is left; raise ValueError where one does already."""
        if self.held is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        check_regular(self.log_path)
        log = self.log_path.open("ab")
        if not try_lock(log):
            log.close()
            raise ValueError(f"{self.folder} is being trained by another process; wait for it, or name another --run")
        self.held = log

    def begin(self, recipe: Recipe, log_bytes: int) -> None:
        """Write the settings, and cut the log back to its first `log_bytes`."""
        self.hold()
        write_whole(self.settings_path, to_yaml(recipe))
        os.truncate(self.log_path, min(log_bytes, self.log_path.stat().st_size))
        if recipe.tensorboard:
            self.writer = _tensorboard_writer(self.folder / "tensorboard")

    def log(self, numbers: dict[str, Any]) -> None:
        """Append a line to the log; what is not finite becomes text, as JSON has no such numbers."""
        plain = {key: _plain(value) for key, value in numbers.items()}
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")
        if self.writer is not None:
            place = f"{numbers['set']}/" if "set" in numbers else ""
            for key, value in numbers.items():
                if isinstance(value, int | float) and key != "step":
                    self.writer.add_scalar(place + key, value, numbers["step"])

    def log_bytes(self) -> int:
        """Return the length of the log."""
        return self.log_path.stat().st_size

    def draw_curves(self) -> None:
        """Draw the log so far."""
        draw_curves(self.log_path, self.folder / "curves.png")
        if self.writer is not None:
            self.writer.flush()

    def draw_overlays(
        self,
        name: str,
        images: Sequence[CaptionedImage],
        hypotheses: Sequence[Hypothesis],
        vocabulary: Vocabulary,
        encoder: Encoder,
        cache: RegionCache,
    ) -> None:
        """Draw a word grid of each image with the caption found for it, into a folder of that name.

        The cache has the boxes of their regions, where they have boxes.
        """
        preprocessing, grid = encoder.preprocessing, encoder.grid
        folder = self.folder / "overlays" / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, (image, hypothesis) in enumerate(zip(images, hypotheses, strict=True)):
            try:
                picture = open_image(image.path)
            except ImageError:  # it could be read when the cache was filled; training need not end over it
                continue
            geometry = cache.geometry(image.file_name, preprocessing.geometry(*picture.size))
            caption = make_caption(hypothesis, vocabulary, geometry, grid, preprocessing.filled(geometry))
            save_figure(word_grid(picture, caption), folder / f"{number:02d}.png")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _differences(now: Any, before: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return the dotted keys at which two settings differ, with both values."""
    if isinstance(now, dict) and isinstance(before, dict):
        keys = [*now, *(name for name in before if name not in now)]
        return [
            each for name in keys for each in _differences(now.get(name), before.get(name), f"{key}.{name}".strip("."))
        ]
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = enumerate(zip(now, before, strict=True))
        return [each for index, (one, two) in pairs for each in _differences(one, two, f"{key}.{index}")]
    return [(key, now, before)] if now != before else []


def _tensorboard_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "tensorboard is true, but TensorBoard is not installed: pip install 'captioner[tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))
