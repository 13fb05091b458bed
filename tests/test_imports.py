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
    ["files", "checks", "ahead", "image_formats", "images", "archives", "sources", "config", "vocabulary", "losses"],
    ["measures.ngrams", "metrics", "measures.java", "measures.java_metrics", "measures.scoring", "measures.bootstrap"],
    ["measures.diversity", "measures.paper_rows", "measures.text_tables", "measures.word_classes"],
    ["measures.object_names", "measures.common_errors", "measures.length_curves"],
    ["figures.lettering", "figures.masks", "figures.sheets", "figures.vector_files", "figures.panels"],
    ["figures.figure_files", "figures.alignment", "figures.animation", "figures.sampled_looks", "figures.word_images"],
    ["overlays", "figures.comparison", "captions", "records", "recorded", "outputs", "figures.overlay_files"],
    ["caption_options", "caption_folder", "bundled", "web", "web.gallery"],
    ["annotations", "readers", "datasets", "describe", "yaml_text", "settings", "experiment"],
    ["measures.instances", "measures.grounding", "measures.diagnostics", "evaluation", "measures.results"],
    ["measures.score_tables", "measures.analysis", "measures.submissions"],
    # Without torch up to here.
    ["efficientnet_lite", "tiny_vit", "dinov2", "backbones", "encoder", "onnx_attention", "onnx_graph", "engines"],
    ["draws", "shared", "additive", "scores", "attention", "lstm", "word_gates", "decoder"],
    ["hypotheses", "next_words", "sampling", "search", "checkpoint_files", "checkpoint", "exporting"],
    ["region_cache", "features", "inspection", "pictures", "captioning", "forced"],
    ["batches", "distributed", "schedules", "rewards", "learner", "training_data", "region_sources", "validation"],
    ["figures.curves", "runs", "starting", "training", "bulk", "measures.split_captions"],
    ["figures.charts", "reports.parts", "reports.figures", "reports.summary", "reports.scores", "reports.attention"],
    ["reports.examples", "reports.errors", "reports.report"],
    ["web.uploads", "web.guard", "web.request_queue", "web.served", "web.server", "web.serving"],
    ["commands.parts", "commands.searching", "commands.data", "commands.train", "commands.encoders"],
    ["commands.models", "commands.caption", "commands.overlay", "commands.evaluate", "commands.serve"],
    ["cli", "__main__"],
]
ORDER = [name for layer in LAYERS for name in layer]
HEAVY = ("losses", "figures.vector_files")  # the one for torch, the other for matplotlib
TORCH_FREE = [*(name for name in ORDER[: ORDER.index("efficientnet_lite")] if name not in HEAVY), "cli"]


def own_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "captioner":
            module = node.module.partition(".")[2]
            names = {f"{module}.{alias.name}".lstrip(".") for alias in node.names} & set(ORDER)  # modules by themselves
            found |= names or ({module} if module else set())
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("captioner.")}
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    if path.stem == "__init__":
        # The package's own names its public ones, for type checkers only, as the test below finds out.
        assert own_imports(path) <= ({"captioning", "captions", "images"} if path.parent == PACKAGE else set())
        return
    own = module_name(path)
    assert own in ORDER, f"add {own} to a layer"
    later = [name for name in own_imports(path) if ORDER.index(name) >= ORDER.index(own)]
    assert not later, f"{own} imports {later}, which comes after it"


def test_no_torch_before_it_is_needed() -> None:
    modules = ", ".join(f"captioner.{name}" for name in TORCH_FREE)
    heavy = "{'torch', 'torchvision', 'matplotlib', 'onnxruntime', 'nltk', 'pycocotools'}"
    script = f"import sys, {modules}; sys.exit(', '.join(sorted({heavy} & set(sys.modules))) or 0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported too early: {result.stderr}"
