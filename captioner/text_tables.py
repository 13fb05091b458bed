"""Results as lines of text and as plain values: aligned tables, and what stands for a number that is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells, the first column set to the left; every row has as many cells as the head."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    first, *others = widths
    return "\n".join(
        "  ".join([line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], others, strict=True))])
        for line in lines
    )


def number(value: float, form: str = ".3f") -> str:
    """Return a number in a format of Python's, or "-" for NaN."""
    return "-" if math.isnan(value) else format(value, form)


def without_nan(value: Any) -> Any:
    """Return nested plain values with None for every NaN, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
