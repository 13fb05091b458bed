"""The folder of one training run: settings, log, curves, word grids; checkpoints are in its best/ and last/.

settings.yaml     every setting, as the run uses it
log.jsonl         one line per step, and one per validation
run.html          a page of all this, refreshed as training goes
curves.png        losses and scores so far
overlays/         word grids of some validation images, a folder per epoch
best/, last/      checkpoints: the best by the chosen metric, and the newest, with what training needs to resume
tensorboard/      on request, as is wandb/
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
from captioner.files import check_regular, read_json, try_lock, write_whole
from captioner.images.opening import ImageError, open_image
from captioner.model.bundled import LARGEST_MANIFEST, MANIFEST
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.region_cache import RegionCache
from captioner.model.search.beam import Hypothesis
from captioner.training.curves import draw_curves
from captioner.training.log import Line, OnLog
from captioner.training.recipe import Recipe, load_recipe, to_yaml
from captioner.training.trackers import Tracker, start_tracker


class RunFolder:
    """A run's files, written by the first process only; the log is cut back to where a run resumes.

    `on_log` is told every line of the log.
    """

    def __init__(self, folder: Path, on_log: OnLog | None = None) -> None:
        self.folder = folder
        self.best, self.last = folder / "best", folder / "last"
        self.log_path, self.settings_path = folder / "log.jsonl", folder / "settings.yaml"
        self.trackers: list[Tracker] = []
        self.on_log = on_log
        self.held: IO[bytes] | None = None  # the log, while this process writes here

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        for tracker in self.trackers:
            tracker.close()
        if self.held is not None:
            self.held.close()

    def has_run(self) -> bool:
        """Tell whether a run has begun here."""
        return self.settings_path.exists()

    def can_resume(self) -> bool:
        """Tell whether there is a checkpoint to resume from."""
        return (self.last / MANIFEST).exists()

    def settings(self) -> Recipe:
        """Return the settings that the run here was begun with."""
        return load_recipe(self.settings_path)

    def progress(self, checkpoint: Path) -> dict[str, int]:
        """Return the whole epochs, batches of the next and steps after which a checkpoint, best or last, was saved."""
        path = checkpoint / MANIFEST
        match read_json(path, most=LARGEST_MANIFEST):
            case {"progress": {"epoch": int(epoch), "batch": int(batch), "step": int(step)}}:
                return {"epoch": epoch, "batch": batch, "step": step}
        raise ValueError(f"{path} does not tell how far training had come")

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
            try:
                self.trackers.append(start_tracker("tensorboard", self.folder, recipe))
            except ImportError as error:
                raise ValueError(f"tensorboard is true, but {error}") from None

    def track(self, name: str, recipe: Recipe) -> None:
        """Let a tracker be told every line from now on, unless it is already; an ImportError tells what it needs."""
        if not (name == "tensorboard" and recipe.tensorboard):
            self.trackers.append(start_tracker(name, self.folder, recipe))

    def log(self, line: Line) -> None:
        """Append a line to the log; what is not finite becomes text, as JSON has no such numbers."""
        plain = {key: _plain(value) for key, value in line.items()}
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")
        for tracker in self.trackers:
            tracker.log(line)
        if self.on_log is not None:
            self.on_log(plain)

    def log_bytes(self) -> int:
        """Return the length of the log."""
        return self.log_path.stat().st_size

    def draw_curves(self) -> None:
        """Draw the log so far."""
        draw_curves(self.log_path, self.folder / "curves.png")

    def draw_overlays(
        self,
        name: str,
        images: Sequence[CaptionedImage],
        hypotheses: Sequence[Hypothesis],
        vocabulary: Vocabulary,
        encoder: Encoder,
        cache: RegionCache,
    ) -> list[dict[str, Any]]:
        """Draw a word grid of each image with the caption found for it, into a folder of that name.

        The cache has the boxes of their regions, where they have boxes. Return for each image what the log tells: its
        name, caption, references, and the grid's path within this folder.
        """
        preprocessing, grid = encoder.preprocessing, encoder.grid
        folder = self.folder / "overlays" / name
        folder.mkdir(parents=True, exist_ok=True)
        samples = []
        for number, (image, hypothesis) in enumerate(zip(images, hypotheses, strict=True)):
            path: Path | None = folder / f"{number:02d}.png"
            try:
                picture = open_image(image.path)
                geometry = cache.geometry(image.file_name, preprocessing.geometry(*picture.size))
                caption = make_caption(hypothesis, vocabulary, geometry, grid, preprocessing.filled(geometry))
                save_figure(word_grid(picture, caption), folder / f"{number:02d}.png")
            except ImageError:  # it could be read when the cache was filled; training need not end over it
                path = None
            samples.append(
                {
                    "image": image.file_name,
                    "caption": " ".join(vocabulary.words(hypothesis.ids)),
                    "references": list(image.captions),
                    "overlay": path.relative_to(self.folder).as_posix() if path else None,
                }
            )
        return samples


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return float(f"{value:.9g}") if isinstance(value, float) else value
