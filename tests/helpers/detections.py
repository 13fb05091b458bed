"""Files of detected regions, as a detector would write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Found = tuple[NDArray[np.float32], NDArray[np.float32]]  # boxes (n, 4) and vectors (n, D)


def detect(seed: int, count: int, size: tuple[int, int], dimensions: int = 6) -> Found:
    """Return some boxes on an image of (width, height), and a vector for each."""
    chance = np.random.default_rng(seed)
    corners = np.sort(0.9 * chance.random((count, 2, 2)), axis=1)  # (n, 2, 2)
    low, high = corners[:, 0], corners[:, 1] + 0.1
    boxes = np.concatenate([low, high], axis=1) * (*size, *size)
    return boxes.astype(np.float32), chance.normal(size=(count, dimensions)).astype(np.float32)


def write_jsonl(path: Path, images: Mapping[str, Found], **extra: int) -> Path:
    """Write boxes as lines of JSON, and their vectors beside them."""
    lines = [json.dumps({"file_name": name, "boxes": boxes.tolist(), **extra}) for name, (boxes, _) in images.items()]
    path.write_text("\n".join(lines) + "\n")
    features = torch.from_numpy(np.concatenate([vectors for _, vectors in images.values()]))
    save_file({"features": features}, path.with_suffix(".safetensors"))
    return path


def write_tsv(path: Path, images: Mapping[str, Found], size: tuple[int, int]) -> Path:
    """Add images of one size to a file as bottom-up attention writes them."""
    with path.open("a") as file:
        for name, tables in images.items():
            packed = (base64.b64encode(np.ascontiguousarray(table, "<f4")).decode() for table in tables)
            file.write("\t".join([name, *map(str, size), str(len(tables[0])), *packed]) + "\n")
    return path
