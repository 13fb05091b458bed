"""A tiny data set, settings that train on it in a moment, and what is needed to watch, stop and compare runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import captioner.model.checkpoint
import captioner.training.run_folder
import captioner.training.start
import captioner.training.validator
from captioner.model.checkpoint import load_checkpoint, load_training_state
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.processes import Processes
from captioner.training.recipe import Recipe, recipe_from_dict
from captioner.training.start import Position
from captioner.training.train import Outcome, Stopped, train
from captioner.training.validation import Findings, validate

ANIMALS = ("dog", "cat", "horse", "bird")
DEEDS = ("runs", "sleeps", "eats slowly", "looks at the sea", "jumps over a low wall")
TIMINGS = ("captions_per_second", "memory_mb", "seconds")
ENCODER: dict[str, Any] = {"name": "efficientnet-lite0", "size": 64}  # 2 x 2 regions


def toy_caption(number: int, form: int = 0) -> str:
    """Return a caption of a picture; each picture's are its own, of four to eight words."""
    animal, deed = ANIMALS[number % 4], DEEDS[(number + form) % 5]
    return f"{('a', 'one', 'the')[form % 3]} {('red', 'small')[number // 4 % 2]} {animal} {deed}"


def write_toy_data(
    folder: Path, train: Sequence[int] = (2,) * 8, val: Sequence[int] = (1,) * 5, first: int = 0
) -> Path:
    """Write a data set of little pictures; `train` and `val` are how many captions each of their pictures has."""
    folder.mkdir(parents=True)
    splits = [("train", count) for count in train] + [("val", count) for count in val]
    with (folder / "metadata.jsonl").open("w") as lines:
        for number, (split, count) in enumerate(splits, start=first):
            coarse = np.random.default_rng(number).integers(0, 256, (3, 3, 3), dtype=np.uint8)
            name = f"{number:03d}.png"
            Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC).save(folder / name)
            for form in range(count):
                line = {"file_name": name, "text": toy_caption(number, form), "split": split}
                lines.write(json.dumps(line) + "\n")
    return folder


def write_toy_boxes(data: Path, images: int = 7) -> None:
    """Write boxes of what the first pictures of a data set show, a quarter of each picture or more, beside it."""
    categories = [{"id": number, "name": name} for number, name in enumerate(ANIMALS, start=1)]
    listed = [{"id": f"{number:03d}.png", "width": 64, "height": 64} for number in range(images)]
    boxes = [
        {"image_id": image["id"], "category_id": number % 4 + 1, "bbox": [2 * number, 3 * number, 40, 36]}
        for number, image in enumerate(listed)
    ]
    (data / "annotations").mkdir()
    content = {"categories": categories, "images": listed, "annotations": boxes}
    (data / "annotations" / "instances_train.json").write_text(json.dumps(content))


def toy_recipe(data: Path | Sequence[Path], **sections: Any) -> Recipe:
    """Return settings for data written by `write_toy_data`; `sections` are laid over them, one level deep."""
    folders = [data] if isinstance(data, Path) else list(data)
    values: dict[str, Any] = {
        "data": [
            {"root": str(folder), "features": str(folder.parent / f"{folder.name}-regions")} for folder in folders
        ],
        "epochs": 2,
        "encoder": ENCODER,
        "attention": {"width": 8},
        "decoder": {"embedding": 8, "hidden": 12, "regions": 10, "dropout": 0.2},
        "vocabulary": {"minimum_count": 1},
        "optimiser": {"rate": 0.01},
        "schedule": {"warmup": 2},
        "batches": {"captions": 4, "captions_per_image": 2},
        "validation": {"beam": 2, "overlays": 0},
        "save_every": 0,
    }
    for name, section in sections.items():
        both = isinstance(section, dict) and isinstance(values.get(name), dict)
        values[name] = {**values[name], **section} if both else section
    return recipe_from_dict(values)


@dataclass
class Recorder:
    """A listener that keeps what it is told."""

    said: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    shown: list[tuple[str, int, int]] = field(default_factory=list)
    steps: list[tuple[Position, int, dict[str, float]]] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.shown.append((what, done, total))

    def step(self, position: Position, batches: int, numbers: dict[str, float]) -> None:
        self.steps.append((position, batches, numbers))


def run_toy(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    stop: Callable[[Recorder], bool] = lambda recorder: False,
    processes: Processes | None = None,
) -> tuple[Outcome | None, Recorder]:
    """Train, and return the outcome, None where the run was stopped, with all that was told on the way."""
    recorder = Recorder()
    try:
        outcome = train(
            recipe,
            folder,
            processes=processes or Processes(),
            listener=recorder,
            resume=resume,
            stop=lambda: stop(recorder),
        )
    except Stopped:
        return None, recorder
    return outcome, recorder


def at_step(number: int) -> Callable[[Recorder], bool]:
    """Return a wish to stop that comes up while a run does its `number`th step."""
    return lambda recorder: len(recorder.steps) >= number - 1


def in_validation(number: int) -> Callable[[Recorder], bool]:
    """Return a wish to stop that comes up within a run's `number`th validation."""
    return lambda recorder: sum(what == "validation" for what, _, _ in recorder.shown) >= number


def after_epoch(number: int) -> Callable[[Recorder], bool]:
    """Return a wish to stop that comes up at the first step after an epoch that was validated."""
    return lambda recorder: any(text.startswith(f"epoch {number}: ") for text in recorder.said)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def untimed_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log without what differs from run to run."""
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in read_log(folder)]


def step_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log that are about steps."""
    return [line for line in read_log(folder) if "loss" in line]


def validation_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log that are about validations."""
    return [line for line in read_log(folder) if "bleu4" in line]


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, its training state's too."""
    checkpoint, training = load_checkpoint(folder), load_training_state(folder)
    tensors = {f"model.{name}": value for name, value in checkpoint.weights.items()}
    tensors |= {f"trunk.{name}": value for name, value in (checkpoint.encoder_weights or {}).items()}
    return tensors | ({f"training.{name}": value for name, value in training.tensors.items()} if training else {})


def assert_same_runs(one: Path, other: Path) -> None:
    """Check that two runs have the same log but for timings, and the same checkpoints to the bit."""
    assert untimed_log(one) == untimed_log(other)
    for name in ("best", "last"):
        first, second = tensors_of(one / name), tensors_of(other / name)
        assert first.keys() == second.keys()
        different = [key for key, tensor in first.items() if not torch.equal(tensor, second[key])]
        assert not different, f"{name}: {len(different)} of {len(first)} tensors differ, {different[0]} first"
        states = [load_training_state(folder / name) for folder in (one, other)]
        values = [state.values for state in states if state is not None]
        for value in values:
            value.pop("log_bytes")  # timings have more or fewer digits
        assert values[:1] == values[1:]


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longest and is tested elsewhere: reading encoders from disk again, and drawing curves."""

    def load(config: EncoderConfig | None = None, **_: object) -> Encoder:
        config = config or EncoderConfig()
        if config.weights == "random":  # which must follow from the seed
            return load_encoder(config)
        return copy.deepcopy(load_once(config))

    for module in (captioner.model.checkpoint, captioner.training.start):
        monkeypatch.setattr(module, "load_encoder", load)
    monkeypatch.setattr(captioner.training.run_folder, "draw_curves", lambda log, picture: None)


@cache
def load_once(config: EncoderConfig) -> Encoder:
    """Return an encoder that is kept for the next time."""
    return load_encoder(config)


def script_scores(monkeypatch: pytest.MonkeyPatch, *values: float, metric: str = "bleu4") -> None:
    """Let each validation find the next of these scores."""
    left = list(values)

    def scripted(*arguments: Any, **options: Any) -> Findings:
        found = validate(*arguments, **options)
        return replace(found, scores={**found.scores, metric: left.pop(0)})

    monkeypatch.setattr(captioner.training.validator, "validate", scripted)
