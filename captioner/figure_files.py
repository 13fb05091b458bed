"""Sheets as files: PNG, PDF and SVG, whole or not at all, the same bytes each time."""

from __future__ import annotations

import io
import os
from pathlib import Path

from captioner.files import write_whole
from captioner.sheets import Sheet

SUFFIXES = (".png", ".pdf", ".svg")


def figure_bytes(sheet: Sheet, suffix: str) -> bytes:
    """Return a figure as the contents of a file, ".png", ".pdf" or ".svg", the same each time."""
    if suffix not in SUFFIXES:
        raise ValueError(f"suffix is {suffix!r}; choose from {', '.join(SUFFIXES)}")
    if suffix != ".png":
        from captioner.vector_files import vector_bytes  # matplotlib takes longer to import than a PNG to draw

        return vector_bytes(sheet, suffix)
    buffer = io.BytesIO()
    # A stronger compression takes four times as long for 8 % of the bytes.
    sheet.image().save(buffer, "PNG", compress_level=1, dpi=(sheet.dpi, sheet.dpi))
    return buffer.getvalue()


def save_figure(sheet: Sheet, path: str | os.PathLike[str]) -> None:
    """Write a figure as the PNG, PDF or SVG that the suffix asks for, whole or not at all, the same bytes each time."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path.name!r} has the suffix {path.suffix!r}; choose from {', '.join(SUFFIXES)}")
    write_whole(path, figure_bytes(sheet, suffix))
