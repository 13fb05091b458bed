"""The notebook runs from top to bottom, and its model learns the captions of the photographs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.photo_folders import EXPERIMENTS
from nbclient import NotebookClient
from traitlets.config import Config

TOUR = EXPERIMENTS / "tour.ipynb"
pytestmark = pytest.mark.timeout(900)
LARGEST = 1_000_000  # bytes, with its pictures


def printed(cell: Any) -> str:
    return "".join(output["text"] for output in cell.outputs if output.output_type == "stream")


def test_the_tour_runs(tmp_path: Path) -> None:
    tour = nbformat.read(TOUR, as_version=4)
    client = NotebookClient(
        tour,
        timeout=600,
        startup_timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(EXPERIMENTS)}},
        # Sockets in a folder, not on ports, which others could take before the kernel has them.
        config=Config({"KernelManager": {"transport": "ipc", "ip": str(tmp_path / "k")}}),
    )
    client.execute(env={**os.environ, "OMP_NUM_THREADS": "1"})
    said = [printed(cell) for cell in tour.cells if cell.cell_type == "code"]
    assert any("a cup of coffee" in text for text in said)
    [learned] = [text for text in said if "after:" in text]
    assert "saucer" in learned or "espresso" in learned  # which the model's captions of COCO do not have
    pictures = [
        output for cell in tour.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2


def test_the_tour_is_kept_with_its_outputs_and_without_paths() -> None:
    text = TOUR.read_text()
    assert len(text) < LARGEST
    assert "/tmp/" not in text
    tour = nbformat.reads(text, as_version=4)
    assert any(cell.outputs for cell in tour.cells if cell.cell_type == "code")
    assert all(cell.source.strip() for cell in tour.cells)
