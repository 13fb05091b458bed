"""`captioner export`: a trained model made ready to share, as a checkpoint, as ONNX graphs or as a web page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.commands.messages import show
from captioner.commands.models import models_table
from captioner.commands.parser import UsageError, add_command, positive
from captioner.model.bundled import find_model, model_name, summarise

if TYPE_CHECKING:
    from captioner.model.onnx.export import OnnxModel


def add_export(commands: Any) -> None:
    """Add `captioner export`."""
    parser = add_command(commands, "export", run_export, "export a trained model, ready to share")
    parser.add_argument("model", metavar="MODEL", help="folder of a training run or a checkpoint, or a bundled model")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the exported model, created if needed")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--onnx",
        action="store_true",
        help="write ONNX graphs instead, with words and settings as JSON, for ONNX Runtime without this package",
    )
    kind.add_argument(
        "--web",
        action="store_true",
        help="write a static web page instead, which captions photographs in the visitor's browser and uploads "
        "nothing (74 MB with the default model)",
    )
    parser.add_argument(
        "--runtime",
        type=Path,
        metavar="DIR",
        help="with --web: folder of the unpacked npm package onnxruntime-web (default: fetched by npm)",
    )
    parser.add_argument(
        "--scores", type=Path, metavar="JSON", help="include the scores in this metrics.json of `captioner evaluate`"
    )
    parser.add_argument(
        "--confidence",
        type=Path,
        metavar="JSON",
        help="include the calibration in this confidence.json of `captioner evaluate --calibrate`",
    )
    parser.add_argument(
        "--size",
        type=positive,
        metavar="S",
        help="side in pixels to which the model resizes images: larger gives more regions, smaller is faster (default: "
        "the model's)",
    )
    parser.add_argument(
        "--full-precision", action="store_true", help="keep weights in full precision, at twice the size"
    )


def run_export(options: argparse.Namespace) -> int:
    """Write the model and print what it is."""
    if options.runtime is not None and not options.web:
        raise UsageError("--runtime is for the page of --web")
    for name in ("scores", "confidence", "size"):
        if getattr(options, name) is not None and (options.onnx or options.web):
            raise UsageError(f"--{name} is for a checkpoint, not for --onnx or --web")
    if options.onnx:
        return _export_onnx(options)
    return _export_page(options) if options.web else _export_checkpoint(options)


def _export_checkpoint(options: argparse.Namespace) -> int:
    from captioner.model.checkpoint import load_checkpoint
    from captioner.model.export import export_model

    checkpoint = load_checkpoint(find_model(options.model))
    export_model(
        checkpoint,
        options.folder,
        evaluation=options.scores,
        confidence=options.confidence,
        half=not options.full_precision,
        size=options.size,
    )
    show("\n".join(models_table([summarise(options.folder.resolve())])))
    return 0


def _export_onnx(options: argparse.Namespace) -> int:
    model = _to_onnx(options)
    model.write(options.folder)
    _show_files(options.folder, [*model.graphs, "model.json"])
    return 0


def _export_page(options: argparse.Namespace) -> int:
    from captioner.web.static_page import write_page
    from captioner.web.static_page_runtime import find_runtime

    find_model(options.model)  # before npm is asked for anything
    runtime = find_runtime(options.runtime)  # before anything slow: it may be missing
    _show_files(options.folder, write_page(_to_onnx(options), runtime, options.folder))
    return 0


def _to_onnx(options: argparse.Namespace) -> OnnxModel:
    from captioner.model.checkpoint import load_checkpoint
    from captioner.model.onnx.export import to_onnx

    folder = find_model(options.model)
    return to_onnx(load_checkpoint(folder), model_name(folder), half=not options.full_precision)


def _show_files(folder: Path, names: list[str]) -> None:
    """Print what was written, and how large it is."""
    size = sum((folder / name).stat().st_size for name in names)
    show(f"{folder}: {', '.join(names) if len(names) < 6 else f'{len(names)} files'}, {size / 1e6:.1f} MB")
