"""ONNX Runtime for browsers, for tests of the static page; nothing is downloaded, and without it such tests skip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from captioner.web.static_page_runtime import PACKAGE, VERSION, Runtime, find_runtime

FOLDER = "CAPTIONER_ONNXRUNTIME_WEB"  # the variable that names a folder of the unpacked npm package


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The runtime, from the folder that a variable names, or of what npm has fetched before."""
    folder = os.environ.get(FOLDER)
    try:
        return find_runtime(Path(folder) if folder else None, offline=True)
    except ValueError:
        pytest.skip(f"no {PACKAGE}: set {FOLDER}, or run `npm pack {PACKAGE}@{VERSION}` once")
