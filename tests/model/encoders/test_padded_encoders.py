"""Photographs in their own shape through encoders of every family, in both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.photo_folders import EXAMPLES
from PIL import Image

from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.model.encoders.inspection import Inspection, draw_inspection, inspect_images
from captioner.model.encoders.region_cache import cache_folder, cache_identity, grid_mask

FAMILIES = {  # the side of the input, and of the grid
    "efficientnet-lite0": (96, 3),
    "resnet18": (96, 3),
    "mobilenet_v3_small": (96, 3),
    "tinyvit-5m": (96, 3),
    "dinov2-small": (84, 6),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_any_encoder_pads_to_its_own_grid(name: str) -> None:
    size, cells = FAMILIES[name]
    torch.manual_seed(0)
    encoder = load_encoder(EncoderConfig(name, size=size, fit="pad", weights="random"))
    assert encoder.preprocessing.cells == cells == encoder.grid[0]
    prepared = encoder.preprocessing.apply(Image.new("RGB", (90, 60), (200, 0, 0)))
    assert encoder.preprocessing.filled(prepared.geometry) == (round(cells * 2 / 3), cells)
    found = []
    for kind in ("torch", "onnx"):
        with make_engine(encoder, kind, device="cpu") as engine:
            found.append(engine([prepared.pixels]))
    np.testing.assert_allclose(*found, atol=2e-3 * np.abs(found[0]).max())


def test_padding_has_a_cache_of_its_own(lite0: Encoder) -> None:
    padded = Encoder(lite0.name, lite0.trunk, lite0.stride, replace(lite0.preprocessing, fit="pad"))
    names = {cache_folder(Path(), cache_identity(encoder)).name.rsplit("-", 1)[0] for encoder in (lite0, padded)}
    assert names == {"efficientnet-lite0-stride32-64squash", "efficientnet-lite0-stride32-64pad"}
    assert padded.identity()["preprocessing"]["cells"] == 2
    assert "cells" not in lite0.identity()["preprocessing"]
    lower = padded.lower(1)
    assert lower.preprocessing == padded.preprocessing  # whatever its own grid, the mask is of the whole encoder's


def test_masks_are_of_the_first_rows_and_columns() -> None:
    assert grid_mask([None, None], (2, 3)) is None
    mask = grid_mask([(1, 3), (2, 2), None], (2, 3))
    assert mask is not None
    assert mask.astype(int).tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0], [1] * 6]


def test_inspection_leaves_padding_out() -> None:
    encoder = load_encoder(EncoderConfig("efficientnet-lite0", size=224, fit="pad"))
    (seen,) = inspect_images([EXAMPLES / "rocket.jpg"], encoder)
    assert isinstance(seen, Inspection)
    with Image.open(EXAMPLES / "rocket.jpg") as image:
        width, height = image.size
        assert seen.evidence.shape == (max(1, round(7 * height / max(image.size))), round(7 * width / max(image.size)))
        assert draw_inspection(image.convert("RGB"), seen)
    assert {name for name, _ in seen.classes} & {"missile", "projectile", "space shuttle", "drilling platform"}
