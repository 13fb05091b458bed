"""How likely people would accept a caption: a rising curve over how sure the model was per word, kept beside it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from captioner.files import printable, read_json_object

CONFIDENCE = "confidence.json"  # in a checkpoint folder, where the model was calibrated
LARGEST = 100_000  # bytes of it
LOW = 0.5  # captions below are more likely refused than accepted
FORMAT_VERSION = 1
_STEEPEST = 1000.0
_DIGITS = 3


@dataclass(frozen=True)
class Group:
    """Some captions, and the share of them, 0..1, that was accepted; None where there are none."""

    images: int
    accepted: float | None


@dataclass(frozen=True)
class Calibration:
    """The curve of one model, and what it was fitted on; see `captioner.evaluation.calibration`.

    `model` is the digest of the model. A caption was accepted from a CIDEr-D of `accepted_from` per cent, which the
    `quantile` of people's own captions does not reach. `error` is the expected calibration error, and `low` and
    `others` tell what became of captions with a confidence below `LOW` and of the rest; all three by cross-validation.
    """

    model: str
    intercept: float
    slope: float
    accepted_from: float
    quantile: float
    data: str
    split: str
    digest: str
    search: Mapping[str, Any]
    error: float
    low: Group
    others: Group

    @property
    def images(self) -> int:
        """How many captions it was fitted on."""
        return self.low.images + self.others.images

    def confidence(self, log_prob: float, words: int) -> float:
        """Return the confidence, 0..1, in a caption of so many words, whose log probability includes its end."""
        if not words:
            return 0.0
        logit = self.intercept + self.slope * log_prob / (words + 1)
        return round(1 / (1 + math.exp(-max(-700.0, min(logit, 700.0)))), _DIGITS)

    def to_text(self) -> str:
        """Return what `confidence.json` holds."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def is_low(confidence: object) -> bool:
    """Tell whether a confidence, as a record has it or not, is a low one."""
    return isinstance(confidence, int | float) and confidence < LOW


def find_calibration(folder: Path, digest: str) -> Calibration | None:
    """Return the calibration in the folder of a model, None where it has none."""
    path = folder / CONFIDENCE
    return read_calibration(path, digest) if os.path.lexists(path) else None


def read_calibration(path: Path, model: str) -> Calibration:
    """Return the calibration in a file; raise ValueError unless it is whole and of the model of this digest."""
    found = read_json_object(path, most=LARGEST)
    name = printable(str(path))
    if found.get("format") != FORMAT_VERSION:
        raise ValueError(f"{name} is no calibration of format {FORMAT_VERSION}; make it with {_HOW_TO}")
    values = {field: found.get(field) for field in Calibration.__dataclass_fields__}
    groups = {field: _read_group(values[field]) for field in ("low", "others")}
    wrong = next((field for field, fits in _FIELDS.items() if not fits(values[field])), None)
    wrong = wrong or next((field for field, group in groups.items() if group is None), None)
    if wrong:
        raise ValueError(f"{name} is damaged: {wrong} is missing or wrong; make it with {_HOW_TO}")
    if values["model"] != model:
        other = printable(str(values["model"]))
        raise ValueError(f"{name} is of the model {other}, not {model}; remove it, or make it anew with {_HOW_TO}")
    return Calibration(**{**values, **groups})  # type: ignore[arg-type]


_HOW_TO = "`captioner evaluate --calibrate`"


def _read_group(value: object) -> Group | None:
    match value:
        case {"images": int(images), "accepted": accepted} if images >= 0 and not isinstance(images, bool):
            if accepted is None or _is_within(accepted, 0, 1):
                return Group(images, accepted)
    return None


def _is_within(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1000


_FIELDS: dict[str, Callable[[object], bool]] = {
    "model": _is_text,
    "intercept": lambda value: _is_within(value, -_STEEPEST, _STEEPEST),
    "slope": lambda value: _is_within(value, 0, _STEEPEST),
    "accepted_from": lambda value: _is_within(value, 0, 1000),
    "quantile": lambda value: _is_within(value, 0, 1),
    "data": _is_text,
    "split": _is_text,
    "digest": _is_text,
    "search": lambda value: isinstance(value, dict),
    "error": lambda value: _is_within(value, 0, 1),
}
