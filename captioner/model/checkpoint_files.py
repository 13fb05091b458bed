"""The folder of a checkpoint on disk: a manifest and the tensor files that it names, replaced in one move.

    checkpoint.json                     the manifest: plain values, and the name, size and digest of each file
    decoder-1a2b3c4d5e6f.safetensors    tensors, in a file named after its role and its contents

An encoder that several models share may lie in `encoders/` beside their folders instead: its name tells its contents.

A new save never touches a file that the present manifest names, and counts from the moment its own manifest takes the
place of that one. Nothing here can run code when it is read, and what is too large or no regular file is not read.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from captioner import __version__
from captioner.datasets.annotations import shown
from captioner.files import check_regular, digest, one_line, parse_json, read_json, read_whole, sync_folder, write_whole
from captioner.model.bundled import LARGEST_MANIFEST, MANIFEST, SHARED
from captioner.processes import check_memory

FORMAT_VERSION = 1
LARGEST_HEADER = 4_000_000  # bytes of what a tensor file says of its tensors: room for some twenty thousand
TENSOR_FILE = re.compile(r"(decoder|encoder|training)-[0-9a-f]{12}\.safetensors")
UNFINISHED_FILE = re.compile(rf"({TENSOR_FILE.pattern}|{re.escape(MANIFEST)})\.\d+\.unfinished")


def write_folder(folder: Path, values: dict[str, Any], contents: dict[str, bytes]) -> None:
    """Put a manifest of `values`, and files of `contents` by role, in place of those there; all of them, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = {role: _write_file(folder, role, data) for role, data in contents.items()}
        sync_folder(folder)  # the manifest must not reach the disk before the files that it names
        manifest = {"format": FORMAT_VERSION, "captioner": __version__, **values, "files": files}
        write_whole(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    except BaseException:
        with contextlib.suppress(OSError, ValueError):
            _tidy(folder)
        raise
    _tidy(folder)


def _write_file(folder: Path, role: str, data: bytes) -> dict[str, str | int]:
    """Write a tensor file unless it is there, and return what the manifest says of it."""
    checksum = digest(data)
    path = folder / f"{role}-{checksum[:12]}.safetensors"
    if not (path.is_file() and digest(path) == checksum):
        write_whole(path, data)
    return {"name": path.name, "bytes": len(data), "digest": checksum}


def _tidy(folder: Path) -> None:
    """Remove what earlier saves left; what counts is the manifest on disk, however far the last of them got."""
    sync_folder(folder)
    present = (folder / MANIFEST).exists()
    named = {entry["name"] for entry in read_manifest(folder)["files"].values()} if present else set()
    for path in folder.iterdir():
        if path.name not in named and (TENSOR_FILE.fullmatch(path.name) or UNFINISHED_FILE.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # Windows removes no file that is being read; the next save will
                path.unlink()


def read_folder(folder: Path, roles: Collection[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest, and by role the contents of those of its files that are asked for, after checking them."""
    while True:
        manifest = read_manifest(folder)
        entries = {role: entry for role, entry in manifest["files"].items() if role in roles}
        try:
            return manifest, {role: _read_file(_find(folder, role, entry), entry) for role, entry in entries.items()}
        except FileNotFoundError as error:
            # Unless a save came between, and took the files of the manifest before it away.
            if read_manifest(folder)["files"] == manifest["files"]:
                missing = Path(error.filename).name
                raise ValueError(f"{folder} is incomplete: {missing} is missing; get it anew") from None


def _find(folder: Path, role: str, entry: dict[str, Any]) -> Path:
    name: str = entry["name"]
    own, shared = folder / name, folder.parent / SHARED / name
    return shared if role == "encoder" and not own.exists() and shared.exists() else own


def _read_file(path: Path, entry: dict[str, Any]) -> bytes:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ValueError(f"{path} has {size:,} bytes, not {entry['bytes']:,}: the file is damaged; get it anew")
        data = read_tensor_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if digest(data) != entry["digest"]:
        raise ValueError(f"checksum of {path} is wrong: the file is damaged; get it anew")
    return data


def read_tensor_file(path: Path) -> bytes:
    """Return the contents of a regular file for which there is memory, as they are and as tensors."""
    check_regular(path)
    size = path.stat().st_size
    check_memory(str(path), 2 * size)
    return read_whole(path, most=size)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest, once its format is known and its files have names that lead nowhere else."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path, most=LARGEST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} is no checkpoint: {_why_not(folder)}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ValueError(
            f"{path} was written by captioner {manifest.get('captioner')} (format {version}); "
            f"this version reads format {FORMAT_VERSION}: upgrade"
        )
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} is damaged: its format is {shown(version)}; this version reads format {FORMAT_VERSION}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise ValueError(f"{path} is damaged: it has no files")
    for role, entry in files.items():
        match entry:
            case {"name": str(name), "bytes": int(), "digest": str()} if TENSOR_FILE.fullmatch(name):
                continue
        raise ValueError(f"{path} is damaged: its {role} file is {shown(entry)}; expected a name, bytes and a digest")
    return dict(manifest)


def _why_not(folder: Path) -> str:
    """Say why there is no manifest in `folder`, and what was probably meant."""
    if folder.is_file():
        return "it is a file; name the folder that it is in"
    if not folder.is_dir():
        return "there is no such folder"
    within = [folder / name for name in ("best", "last") if (folder / name / MANIFEST).is_file()]
    return f"it has no {MANIFEST}" + (f"; name {within[0]}" if within else "")


def check_plain(name: str, value: object, *, finite: bool = True) -> None:
    """Raise ValueError unless JSON can hold the value and give it back the same, but for tuples, which become lists."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{name} cannot be stored: its key {key!r} is no string")
            check_plain(f"{name}.{key}", item, finite=finite)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_plain(f"{name}.{index}", item, finite=finite)
    elif isinstance(value, float) and finite and not math.isfinite(value):
        raise ValueError(f"{name} is {value} and cannot be stored: it must be a finite number")
    elif value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{name} is of type {type(value).__name__} and cannot be stored: it must be a plain value")


def serialise(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors from any device in the safetensors format, in the same bytes for the same contents."""
    storages: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in storages else tensor  # the format has no views of one memory
        storages.add(storage)
    return safetensors.torch.save(plain, metadata)


def deserialise(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata of what `serialise` returned."""
    length = int.from_bytes(data[:8], "little")  # of the header, which follows
    if length > LARGEST_HEADER:
        raise ValueError(f"its tensors are damaged: a header of {length:,} bytes; at most {LARGEST_HEADER:,} are read")
    try:
        tensors = safetensors.torch.load(data)
        header = parse_json(data[8 : 8 + length], "the header")
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:  # a type that torch lacks, ...
        raise ValueError(f"its tensors are damaged: {one_line(error)}") from None
    return tensors, header.get("__metadata__", {})
