"""ONNX Runtime for browsers, from npm or from a folder: what the static page runs its model with."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from captioner.files import read_whole

PACKAGE = "onnxruntime-web"
VERSION = "1.30.0"  # the page is tested with it
_SCRIPT, _WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_MOST = 200_000_000  # bytes of a file; they have 12 MB
_PLACES = (".", "dist", "package/dist", f"node_modules/{PACKAGE}/dist")
_REMEDY = f"run `npm pack {PACKAGE}@{VERSION}` where there is a network, unpack it, and name its folder by --runtime"


@dataclass(frozen=True)
class Runtime:
    """The two files of the runtime that the page needs."""

    script: bytes  # a module of JavaScript
    wasm: bytes


def find_runtime(folder: Path | None = None, *, offline: bool = False) -> Runtime:
    """Return the runtime in a folder of the unpacked npm package, or without one that which npm fetches.

    npm keeps what it has fetched, so that a second time needs no network; `offline` never asks for one.
    """
    if folder is None:
        return _fetch(offline)
    for place in _PLACES:
        script, wasm = folder / place / _SCRIPT, folder / place / _WASM
        if script.is_file() and wasm.is_file():
            return Runtime(read_whole(script, most=_MOST), read_whole(wasm, most=_MOST))
    raise ValueError(f"{folder} has no {_SCRIPT} and {_WASM}; expected an unpacked npm package {PACKAGE}")


def _fetch(offline: bool) -> Runtime:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(f"npm is missing, which fetches {PACKAGE}: install Node.js, or {_REMEDY}")
    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"{PACKAGE}@{VERSION}", "--pack-destination", folder, "--loglevel", "error"]
        network = "--offline" if offline else "--prefer-offline"
        done = subprocess.run([npm, "pack", *wanted, network], capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            raise ValueError(f"npm cannot fetch {PACKAGE}{_reason(done.stderr)}; {_REMEDY}")
        with tarfile.open(archives[0]) as archive:
            return Runtime(*(_read(archive, f"package/dist/{name}") for name in (_SCRIPT, _WASM)))


def _reason(errors: str) -> str:
    """Return npm's own code of what went wrong, such as ENOTFOUND, in brackets."""
    lines = [line.split() for line in errors.splitlines() if " code " in f" {line} "]
    return f" ({lines[0][-1]})" if lines else ""


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(name)
    except KeyError:
        member = None
    if member is None:
        raise ValueError(f"{PACKAGE} from npm has no {name}; {_REMEDY}")
    return member.read()
