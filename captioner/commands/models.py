"""`captioner models`: which models there are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from captioner.commands.messages import show
from captioner.commands.parser import add_command
from captioner.evaluation.tables import ABSENT, Table
from captioner.model.bundled import ModelSummary, bundled_models, find_model, summarise

COLUMNS = {"bleu1": "BLEU-1", "bleu4": "BLEU-4", "meteor": "METEOR", "cider": "CIDEr"}


def add_models(commands: Any) -> None:
    """Add `captioner models`."""
    parser = add_command(commands, "models", run_models, "list the bundled models, or those named, with their scores")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or folders of models (default: all bundled)")


def run_models(options: argparse.Namespace) -> int:
    """Print a line for each model."""
    default = find_model() if bundled_models() else None
    folders = [find_model(model) for model in options.models or bundled_models()]
    if not folders:
        find_model()  # says how to get one
    show("\n".join(models_table([summarise(folder) for folder in folders], default)))
    return 0


def models_table(models: list[ModelSummary], default: Path | None = None) -> list[str]:
    """Return the lines of a table of models; the one in the folder `default` is marked."""
    rows = [("model", "attention", "encoder", "words", "MB", "speed", "scored on", *COLUMNS.values())]
    for model in models:
        evaluation = model.evaluation or {"scores": {}, "protocol": None}
        protocol = evaluation["protocol"]
        rows.append(
            (
                f"{model.name}{' *' if model.folder == default else ''}",
                model.attention,
                model.encoder,
                f"{model.words:,}",
                f"{model.size / 1e6:.1f}",
                ABSENT if model.speed is None else f"{model.speed:.2f}",
                f"{protocol['data']} {protocol['split']} ({protocol['images']:,})" if protocol else ABSENT,
                *(f"{evaluation['scores'][key]:.1f}" if key in evaluation["scores"] else ABSENT for key in COLUMNS),
            )
        )
    lines = Table(rows, wide=tuple(range(len(rows[0])))).to_text().split("\n")
    notes = ["* the default"] if any(model.folder == default for model in models) else []
    if any(model.speed is not None for model in models):
        notes.append("speed: images per second, as a share of the fastest bundled model's")
    return [*lines, *notes]
