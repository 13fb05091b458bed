"""Imports point one way, and nothing that only shows help waits for torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "captioner"
# Each layer may import from the layers before it, and from modules beside it that are listed before it.
LAYERS = [
    ["files", "image_formats", "images", "config", "vocabulary", "metrics", "losses"],
    ["annotations", "readers", "datasets", "describe"],
    ["efficientnet_lite", "backbones", "encoder", "onnx_graph", "engines"],
    ["draws", "shared", "additive", "scores", "attention", "lstm", "decoder", "search"],
    ["region_cache", "features", "inspection"],
    ["cli", "__main__"],
]
ORDER = [name for layer in LAYERS for name in layer]
TORCH_FREE = [*(name for name in LAYERS[0] + LAYERS[1] if name != "losses"), "cli"]


def own_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "captioner":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names if alias.name in ORDER}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("captioner.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_point_one_way(path: Path) -> None:
    if path.stem == "__init__":
        assert own_imports(path) == set()
        return
    assert path.stem in ORDER, f"add {path.stem} to a layer"
    later = [name for name in own_imports(path) if ORDER.index(name) >= ORDER.index(path.stem)]
    assert not later, f"{path.stem} imports {later}, which comes after it"


def test_no_torch_before_it_is_needed() -> None:
    modules = ", ".join(f"captioner.{name}" for name in TORCH_FREE)
    heavy = "{'torch', 'torchvision', 'matplotlib', 'onnxruntime', 'nltk', 'pycocotools'}"
    script = f"import sys, {modules}; sys.exit(', '.join(sorted({heavy} & set(sys.modules))) or 0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported too early: {result.stderr}"
