"""A static page that captions photographs in the visitor's browser: one HTML file, and scripts that hold the model.

The page asks nothing of any network but its own scripts, and its Content-Security-Policy lets it send nothing. Files
are compressed, in base64 and in scripts, because a page from file:// may load scripts and nothing else; a part has at
most a few megabytes, since some hosts take no large files and a visitor wants to see progress.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.evaluation.report.html import fill_template, policy_hash
from captioner.files import digest, write_whole
from captioner.model.onnx.export import OnnxModel
from captioner.web.assets import VIEWER, VIEWER_STYLE, read_asset
from captioner.web.static_page_runtime import Runtime

PAGE = "index.html"
MODEL = "model"  # the folder of the scripts
PART = 4 << 20  # characters of base64, a multiple of four so that each part is decoded alone
STYLES = (VIEWER_STYLE, "serve.css", "static_page.css")
SCRIPTS = (*VIEWER, "theme.js", "shrinking.js", "incoming.js", "static_page.js")
WORKER = ("static_page_resize.js", "static_page_search.js", "static_page_worker.js")
# The page's own scripts, WebAssembly, and no connection to anywhere; 'self' does not cover files in every browser.
_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {style}; "
    "script-src {script} 'self' file: blob: 'wasm-unsafe-eval'; worker-src blob:; base-uri 'none'; form-action 'none'"
)


def write_page(model: OnnxModel, runtime: Runtime, folder: str | os.PathLike[str]) -> list[str]:
    """Write the page of a model into a folder, in place of one there, and return the names of its files."""
    folder = Path(folder)
    (folder / MODEL).mkdir(parents=True, exist_ok=True)
    files: list[dict[str, Any]] = []
    for file, contents in {"runtime.mjs": runtime.script, "runtime.wasm": runtime.wasm, **model.graphs}.items():
        for path, part in _parts(file, contents):
            write_whole(folder / path, part)
            files.append({"file": file, "path": path, "size": len(part)})
    about = {"model": model.about, "files": files, "bytes": sum(each["size"] for each in files)}
    write_whole(folder / PAGE, _page(about))
    names = [PAGE, *(each["path"] for each in files)]
    _remove_others(folder, names)
    return names


def _parts(file: str, contents: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield scripts that hold a file, by paths that change with it: no browser mixes the parts of two models."""
    packed = base64.b64encode(gzip.compress(contents, 9, mtime=0))
    checksum = digest(packed)[:8]
    for place, start in enumerate(range(0, len(packed), PART)):
        script = b'captionerPart("' + packed[start : start + PART] + b'");\n'
        yield f"{MODEL}/{file.replace('.', '-')}-{checksum}-{place}.js", script


def _page(about: dict[str, Any]) -> bytes:
    style = "\n".join(map(read_asset, STYLES))
    script = "\n".join(map(read_asset, SCRIPTS))
    text = json.dumps(about, separators=(",", ":"))
    return fill_template(
        read_asset("static_page.html"),
        policy=_POLICY.format(style=policy_hash(style), script=policy_hash(script)),
        style=style,
        script=script,
        about=text.replace("<", "\\u003c"),  # nothing else means anything within a script element
        worker="\n".join(map(read_asset, WORKER)),
    ).encode("utf-8", "backslashreplace")


def _remove_others(folder: Path, names: list[str]) -> None:
    """Remove parts that an earlier page left."""
    for path in (folder / MODEL).iterdir():
        if re.fullmatch(r"[a-z]+-[a-z]+-[0-9a-f]{8}-\d+\.js", path.name) and f"{MODEL}/{path.name}" not in names:
            path.unlink()
