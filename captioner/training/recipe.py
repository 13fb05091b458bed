"""A recipe: every setting of a training run, read from YAML and from KEY=VALUE overrides; no torch here.

Whatever is wrong with a file or an override is a ValueError of one line that names it, the dotted key and the choices.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from captioner.datasets.annotations import shown
from captioner.files import read_whole
from captioner.model.config import AttentionConfig, DecoderConfig, EncoderConfig, check_parts
from captioner.training.bundled_recipes import bundled_recipes, find_recipe
from captioner.training.conversion import convert, describe_value
from captioner.training.settings import (
    BatchConfig,
    DataConfig,
    LossConfig,
    OptimiserConfig,
    ScheduleConfig,
    SelfCriticalConfig,
    TuningConfig,
    ValidationConfig,
    VocabularyConfig,
)
from captioner.training.yaml_text import parse_yaml, write_yaml

PRECISIONS = ("float32", "bfloat16", "float16")
LARGEST = 100_000  # bytes of a file; a recipe with every setting has two thousand
MOST_BASES = 10  # files, each the base of the one before


@dataclass(frozen=True)
class Recipe:
    """Every setting of a training run.

    `data` are the data sets that are trained on together. `epochs` are those of cross entropy; the self-critical ones
    come after them. `precision` is that of the decoder's arithmetic; weights are float32 always. `start` is a bundled
    model, or the folder of a run or a checkpoint, whose weights and vocabulary training starts from. After every so
    many steps (`save_every`, 0 for never) and after each validation all is saved that training needs to resume. With
    `tensorboard` the curves are also written for TensorBoard. Each other field is a section with an explanation of its
    own.
    """

    data: tuple[DataConfig, ...]
    seed: int = 0
    epochs: int = 12
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    self_critical: SelfCriticalConfig = field(default_factory=SelfCriticalConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    precision: str = "float32"
    start: str | None = None
    save_every: int = 1000
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data is empty; it needs at least one data set")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be at least 0 and below 2^63")
        for name in ("epochs", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; choose from {', '.join(PRECISIONS)}")
        if self.start == "":
            raise ValueError("start is ''; it names a bundled model, or the folder of a run or a checkpoint")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Refuse what no model or training could be made of; what only the encoder can tell is left to the model."""
        last = self.epochs + self.self_critical.epochs
        if last < 1:
            raise ValueError("epochs and self_critical.epochs are both 0; there is nothing to train")
        if self.tuning.from_epoch > last:
            raise ValueError(
                f"tuning.from_epoch is {self.tuning.from_epoch}; training ends with epoch {last} "
                "(epochs + self_critical.epochs)"
            )
        check_parts(self.decoder, self.attention)
        self._check_imported()
        if self.attention.mode == "none" and self.loss.guide:
            raise ValueError(f"loss.guide is {self.loss.guide}; attention.mode none has no attention to guide")
        width, score = self.decoder.regions, self.attention.score
        compares = self.decoder.kind == "lstm" and self.attention.mode != "none"
        if compares and score in ("dot", "scaled-dot") and width not in (0, self.decoder.hidden):
            raise ValueError(
                f"attention.score is {score!r}; it needs decoder.regions and decoder.hidden to be equal, "
                f"not {width} and {self.decoder.hidden}; or choose general"
            )
        if self.attention.heads and width % self.attention.heads:
            raise ValueError(f"attention.heads is {self.attention.heads}; it must divide decoder.regions, {width}")

    def _check_imported(self) -> None:
        """Raise ValueError for what imported regions cannot do: they are boxes in no grid, and come from no encoder."""
        if not self.encoder.is_imported:
            return
        wrong = {
            "batches.flips is true": self.batches.flips,
            f"tuning.from_epoch is {self.tuning.from_epoch}": self.tuning.from_epoch,
            f"attention.mode is {self.attention.mode}": self.attention.mode in ("local", "glimpse"),
            f"loss.guide is {self.loss.guide}": self.loss.guide,
            f"loss.objects is {self.loss.objects}": self.loss.objects,
        }
        if found := next((what for what, is_so in wrong.items() if is_so), None):
            raise ValueError(f"{found}; it cannot be with the regions {self.encoder.name}, which were imported")


def longer_than_run(recipe: Recipe, steps: int, rewarded: int) -> list[str]:
    """Return what is wrong with warm-up and average in a run of so many steps of cross entropy and of rewards."""
    found = []
    warmup, average, total = recipe.schedule.warmup_steps(steps), recipe.optimiser.average, steps + rewarded
    if 0 < steps < warmup:
        found.append(
            f"schedule.warmup is {warmup:,} steps, and there are only {steps:,}: the learning rate never reaches "
            "optimiser.rate; a value below 1 is a share of the steps"
        )
    averaged = round(1 / (1 - average))
    if average and averaged > total:
        found.append(
            f"optimiser.average {average} goes back over about {averaged:,} steps, and there are only {total:,}: "
            "it goes back over a ninth of them"
        )
    return found


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a bundled one by name or a YAML file, over the one its `base` names; apply overrides (epochs=3).

    An override's key is dotted (decoder.hidden=256) and its value YAML. One data set of several is named by its number
    (data.0.root=PATH), a single one needs none (data.root=PATH).
    """
    path = find_recipe(path)
    values = _read_file(path)
    for override in overrides:
        values = _apply(override, values)
        _check(values, f"override {shown(override)}")  # all was well before it, so that it is to blame
    source = f"{path} with {', '.join(map(shown, overrides))}" if overrides else str(path)
    return recipe_from_dict(values, source)


def recipe_from_dict(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """Return the recipe of plain values, as JSON or YAML give them; `source` is named where they are wrong."""
    try:
        recipe: Recipe = convert(values, Recipe, "", whole=True)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return recipe


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return plain values, ready for JSON or YAML, of which `recipe_from_dict` makes an equal recipe."""
    return {**asdict(recipe), "data": [asdict(data) for data in recipe.data]}


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe with all its settings as YAML that `load_recipe` reads."""
    return write_yaml(recipe_to_dict(recipe))


def _read_file(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the settings in a file over those of its base; `above` are the files whose base this one is."""
    asker = f", the base of {above[-1]}" if above else ""
    if path.resolve() in [file.resolve() for file in above]:
        raise ValueError(f"{path} is its own base: {', '.join(map(str, (*above, path)))}")
    if len(above) > MOST_BASES:
        raise ValueError(f"{above[0]} has more than {MOST_BASES} files below it, each the base of the one before")
    if path.is_dir():
        raise ValueError(f"{path} is a folder{asker}; expected a YAML file")
    try:
        values = parse_yaml(read_whole(path, most=LARGEST).decode("utf-8-sig"), str(path))
    except FileNotFoundError:
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.yaml")], n=1)
        raise ValueError(f"{path} is not there{asker}{f'; did you mean {close[0]}?' if close else ''}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}") from None
    if not isinstance(values, dict):
        found = "is empty" if values is None else f"holds {describe_value(values)}"
        raise ValueError(f"{path} {found}; expected settings, such as data and epochs")
    has_base, base = "base" in values, values.pop("base", None)
    _check(values, str(path))
    if not has_base:
        return values
    if not isinstance(base, str):
        raise ValueError(f"{path}: base is {describe_value(base)}; expected text, the name of another file")
    beside = path.parent / base
    file = find_recipe(base) if base in bundled_recipes() and not beside.exists() else beside
    merged: dict[str, Any] = _merge(_read_file(file, (*above, path)), values)
    return merged


def _merge(under: Any, over: Any) -> Any:
    """Return `over` on top of `under`: mappings key by key, of everything else the upper one."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: _merge(under.get(key), value) for key, value in over.items()}}


def _apply(override: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with one KEY=VALUE laid over them."""
    source = f"override {shown(override)}"
    key, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"{source} has no '='; expected KEY=VALUE, such as decoder.hidden=256")
    first, *rest = key.strip().split(".")
    setting = parse_yaml(text, source)
    if first != "data" or not rest:
        merged: dict[str, Any] = _merge(values, _nested([first, *rest], setting))
        return merged
    data = values.get("data") or {}
    sets = data if isinstance(data, list) else [data]
    number = int(rest.pop(0)) if rest[0].isdecimal() else 0 if len(sets) == 1 else None
    if number is None or number >= len(sets):
        names = ", ".join(f"data.{index}" for index in range(len(sets)))
        raise ValueError(f"{source}: which data set? choose from {names}")
    sets = [*sets[:number], _merge(sets[number], _nested(rest, setting)), *sets[number + 1 :]]
    return {**values, "data": sets if isinstance(data, list) else sets[0]}


def _nested(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _check(values: dict[str, Any], source: str) -> None:
    """Raise ValueError for keys that do not exist and values of the wrong type; others may be missing yet."""
    try:
        convert(values, Recipe, "", whole=False)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
