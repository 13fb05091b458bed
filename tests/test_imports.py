"""Imports point up the list of rooms, never down it, and nothing that only shows help waits for torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.photo_folders import EXAMPLES, ROOT

PACKAGE = ROOT / "captioner"
# Data flows down this list; a room imports from itself and from those above it.
ROOMS = [
    *("files", "threads", "processes"),
    *("images", "datasets", "model", "captioning", "ray", "figures", "evaluation", "training", "web"),
    *("commands", "cli", "__main__"),
]
# `Caption.save_overlay` and a notebook's view of a caption draw it: figures are imported when they are asked for.
LAZY = {("captioning/caption.py", "figures")}
# A command's help, a wrong path and a wrong setting are answered before torch or matplotlib have loaded.
LIGHT = [
    *(
        "cli",
        "files",
        "threads",
        "images.inputs",
        "images.finding",
        "datasets.describe",
        "model.config",
        "model.bundled",
    ),
    *("captioning.caption", "captioning.options", "captioning.output.folder", "captioning.records"),
    *("figures.word_grid", "figures.overlay_files", "evaluation.comparison", "evaluation.analysis.grounding"),
    *("evaluation.metrics.judge", "training.recipe", "web.gallery"),
]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "captioner":
            found |= {alias.name for alias in node.names} & set(ROOMS)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("captioner."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("captioner.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_up(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":  # the package's own names its public ones, for type checkers only
        return
    assert room in ROOMS, f"{path} lies in no room"
    if path.name == "__init__.py":
        assert not rooms_imported(path), "a room's __init__ is its docstring"
        return
    below = {other for other in rooms_imported(path) if ROOMS.index(other) > ROOMS.index(room)}
    assert not {(path.relative_to(PACKAGE).as_posix(), other) for other in below} - LAZY


def test_no_torch_before_it_is_needed() -> None:
    modules = ", ".join(f"captioner.{name}" for name in LIGHT)
    heavy = "{'torch', 'torchvision', 'matplotlib', 'onnxruntime', 'nltk', 'pycocotools'}"
    script = f"import sys, {modules}; sys.exit(', '.join(sorted({heavy} & set(sys.modules))) or 0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported too early: {result.stderr}"


# What a bundled model does not need to caption an image; some of these take longer to import than all of the rest.
UNUSED = ["torchvision", "timm", "matplotlib", "nltk", "pycocotools", "pandas", "scipy", "yaml"]
COMPILER = ["torch._dynamo", "torch._inductor", "sympy", "triton"]


@pytest.mark.parametrize("model", ["coco-fast", "flickr8k-soft"])
def test_captioning_an_image_imports_only_what_it_needs(model: str) -> None:
    script = f"""
import sys
from captioner.cli import main
code = main(["caption", {str(EXAMPLES / "cat.jpg")!r}, "--quiet", "--model", {model!r}])
sys.exit(code or ", ".join(sorted(set({UNUSED + COMPILER!r}) & set(sys.modules))) or 0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported for nothing: {result.stderr}"
    assert result.stdout.startswith(f"{EXAMPLES / 'cat.jpg'}\t")


@pytest.mark.parametrize("encoder", ["dinov2-small", "tinyvit-5m"])
def test_an_encoder_is_built_without_the_compiler(encoder: str) -> None:
    script = f"""
import sys
from captioner.model.config import EncoderConfig
from captioner.model.empty_weights import EmptyWeights
from captioner.model.encoders.encoder import load_encoder
from captioner.model.encoders.engines import make_engine
with EmptyWeights():
    encoder = load_encoder(EncoderConfig({encoder!r}, weights="random"))
make_engine(encoder, "onnx", device="cpu").close()
sys.exit(", ".join(sorted(set({UNUSED + COMPILER!r}) & set(sys.modules))) or 0)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported for nothing: {result.stderr}"
