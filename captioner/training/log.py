"""The log of a run: one line per step and one per validation, as log.jsonl has them; no torch here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from captioner.files import read_lines

TRACKERS = ("tensorboard", "wandb")  # who can be told of a log, see `trackers.py`
LONGEST = 1_000_000  # bytes of a line; that of a validation has captions and references
Line = dict[str, Any]
OnLog = Callable[[Line], None]  # told of every line


def read_log(path: Path) -> list[Line]:
    """Return the lines of a log.jsonl; one that a kill has torn is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for _, line in read_lines(path, longest=LONGEST) if line.endswith(b"}\n")]


def is_validation(line: Line) -> bool:
    """Tell whether a line is about a validation; otherwise it is about a step."""
    return "bleu4" in line


def tagged(line: Line) -> dict[str, float]:
    """Return the numbers of a line by tags: train/loss, validation/cider or, of several sets, validation/SET/cider.

    Tags put what belongs together side by side: the loss of validation is validation/loss.
    """
    place = "train/"
    if is_validation(line):
        place = f"validation/{line['set']}/" if "set" in line else "validation/"
    return {
        place + key.removeprefix("validation_"): value
        for key, value in line.items()
        if isinstance(value, int | float) and key != "step"
    }
