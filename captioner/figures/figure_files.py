"""Sheets and charts as files: PNG, PDF and SVG, whole or not at all, the same bytes each time."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.figures.sheets import Sheet
from captioner.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")


def figure_bytes(drawing: Sheet | Figure, suffix: str) -> bytes:
    """Return a sheet, or a figure of matplotlib's, as the contents of a ".png", ".pdf" or ".svg" file."""
    if suffix not in SUFFIXES:
        raise ValueError(f"suffix is {suffix!r}; choose from {', '.join(SUFFIXES)}")
    if suffix != ".png" or not isinstance(drawing, Sheet):
        from captioner.figures.vector_files import matplotlib_bytes  # takes longer to import than a PNG to draw

        return matplotlib_bytes(drawing, suffix)
    buffer = io.BytesIO()
    # A stronger compression takes four times as long for 8 % of the bytes.
    drawing.image().save(buffer, "PNG", compress_level=1, dpi=(drawing.dpi, drawing.dpi))
    return buffer.getvalue()


def save_figure(drawing: Sheet | Figure, path: str | os.PathLike[str]) -> None:
    """Write a sheet or a figure as the PNG, PDF or SVG that the suffix asks for, whole or not at all."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path.name!r} has the suffix {path.suffix!r}; choose from {', '.join(SUFFIXES)}")
    write_whole(path, figure_bytes(drawing, suffix))
