"""Results as text: what scores are called, tables for a terminal and in Markdown, JSON, and what is not known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from captioner.files import printable_line

LABELS = {
    "bleu1": "BLEU-1",
    "bleu2": "BLEU-2",
    "bleu3": "BLEU-3",
    "bleu4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr-D",
}
ABSENT = "-"
_MARKDOWN = "\\`*_[]<>|#~$&"  # what it takes for its own


@dataclass(frozen=True)
class Table:
    """Cells of text; the first row is the head, the first column names the rows. `wide` columns are set to the left."""

    rows: Sequence[Sequence[str]]
    wide: tuple[int, ...] = (0,)

    def to_text(self) -> str:
        """Return lines with aligned columns: numbers to the right, what follows a number after a space to the left."""
        columns = [
            _set_left(cells) if column in self.wide else _set_numbers(cells)
            for column, cells in enumerate(zip(*(map(printable_line, row) for row in self.rows), strict=True))
        ]
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def to_markdown(self) -> str:
        """Return a table in GitHub's Markdown."""
        rule = ["---" if column in self.wide else "---:" for column in range(len(self.rows[0]))]
        rows = [[escape_markdown(cell) for cell in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _set_left(cells: Sequence[str]) -> list[str]:
    width = max(map(len, cells))
    return [cell.ljust(width) for cell in cells]


def _set_numbers(cells: Sequence[str]) -> list[str]:
    head, *body = cells
    parts = [cell.partition(" ")[::2] for cell in body]
    left, right = (max((len(part[side]) for part in parts), default=0) for side in (0, 1))
    lines = [f"{number:>{left}} {mark:<{right}}" if right else f"{number:>{left}}" for number, mark in parts]
    width = max(map(len, (head, *lines)))
    return [line.rjust(width) for line in (head, *lines)]


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{character}" if character in _MARKDOWN else character for character in text.strip())


def label(metric: str) -> str:
    """Return what a score is called."""
    return LABELS.get(metric, metric)


def number(value: float, form: str = ".3f") -> str:
    """Return a number in a format of Python's, or "-" for NaN."""
    return ABSENT if math.isnan(value) else format(value, form)


def without_nan(value: Any) -> Any:
    """Return nested plain values with None for every NaN, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def json_text(content: dict[str, Any]) -> str:
    """Return plain values as the contents of a JSON file that people can read."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
