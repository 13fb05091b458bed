"""The record of a caption: what it refuses, and how it finds its image again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.awkward_images import COLOURS, HEIGHT, WIDTH, exif, jpeg, stored
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.images.geometry import Geometry

GEOMETRY = Geometry(WIDTH, HEIGHT, (0.0, 0.0, float(WIDTH), float(HEIGHT)))


def make(words: int = 2, **changes: Any) -> Caption:
    settings: dict[str, Any] = {
        "text": " ".join(["word"] * words),
        "words": ("word",) * words,
        "probabilities": np.full(words, 0.5, dtype=np.float32),
        "log_prob": -1.5,
        "attention": np.full((words, 3, 4), 1 / 12, dtype=np.float32),
        "beta": np.full(words, 0.25, dtype=np.float32),
        "geometry": GEOMETRY,
    }
    return Caption(**(settings | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probabilities": np.ones(3)}, r"probabilities has the shape \(3,\); 2 words need \(2,\)"),
        ({"probabilities": np.array([0.1, np.nan])}, "probabilities is .* each must be from 0 to 1"),
        ({"beta": np.ones((2, 1))}, r"beta has the shape \(2, 1\); 2 words need \(2,\)"),
        ({"beta": np.array([0.1, 1.5])}, r"beta is \[0.1, 1.5\]; each must be from 0 to 1"),
        ({"attention": np.ones((2, 12)) / 12}, r"attention has the shape \(2, 12\); 2 words need \(2, rows, columns\)"),
        ({"attention": np.ones((3, 3, 4)) / 12}, r"attention has the shape \(3, 3, 4\)"),
        ({"attention": np.ones((2, 0, 4))}, r"attention has the shape \(2, 0, 4\)"),
        ({"attention": np.ones((2, 3, 4)) / 6}, r"attention sums to \[2.0\d*, 2.0\d*\]; .* positive and sum to 1"),
        ({"attention": np.full((2, 1, 2), [[-1.0, 2.0]])}, "must be positive and sum to 1"),
        ({"attention": np.full((2, 1, 2), np.nan)}, "must be positive and sum to 1"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_weights_of_half_precision_are_accepted() -> None:
    weights = np.random.default_rng(0).random((2, 14, 14)).astype(np.float16)
    make(attention=(weights / weights.sum(axis=(1, 2), keepdims=True)).astype(np.float16))


def test_repr_is_short_and_says_what_matters() -> None:
    caption = make(source=Image.new("RGB", (WIDTH, HEIGHT)))
    mean = f"{caption.probabilities.mean():.2f}"
    assert repr(caption) == f"Caption('word word', grid=3x4, mean_probability={mean})"
    assert repr(make(0)) == "Caption('', grid=3x4, mean_probability=none)"


def test_plain_values_make_the_caption_again() -> None:
    caption = make()
    plain = json.loads(json.dumps(caption.to_dict()))
    assert plain == caption.to_dict()
    assert list(plain) == ["text", "words", "probabilities", "log_prob", "attention", "beta", "geometry"]
    again = Caption.from_dict(plain, "photo.jpg")
    assert (again.text, again.words, again.geometry, again.source) == (
        *(caption.text, caption.words, caption.geometry),
        "photo.jpg",
    )
    assert again.log_prob == pytest.approx(caption.log_prob, rel=1e-5)
    for name in ("probabilities", "attention", "beta"):
        assert getattr(again, name) == pytest.approx(getattr(caption, name), abs=1e-5)
    assert list(caption.to_dict(attention=False)) == ["text", "words", "probabilities", "log_prob"]


def test_opens_its_image_upright_from_a_path_bytes_or_an_image(tmp_path: Path) -> None:
    data = jpeg(stored(COLOURS, 6), exif=exif(6))
    (tmp_path / "held.jpg").write_bytes(data)
    for source in (tmp_path / "held.jpg", str(tmp_path / "held.jpg"), data, Image.open(tmp_path / "held.jpg")):
        image = make(source=source).open_source()
        assert (image.mode, image.size) == ("RGB", (WIDTH, HEIGHT))
        assert np.abs(np.asarray(image).astype(int) - COLOURS).max() <= 3
    grey = make(source=Image.new("L", (WIDTH, HEIGHT), 77)).open_source()
    assert grey.getpixel((0, 0)) == (77, 77, 77)


def test_overlay_without_an_image_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the caption 'word word' does not know its image; make it with source="):
        make().save_overlay(tmp_path / "grid.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [0, 1, 5])
def test_overlay_is_written_of_any_number_of_words(words: int, tmp_path: Path) -> None:
    caption = make(words, source=Image.fromarray(COLOURS))
    caption.save_overlay(tmp_path / "grid.png", width=3.0, dpi=100)
    with Image.open(tmp_path / "grid.png") as drawn:
        assert drawn.format == "PNG"
        assert drawn.width <= 300
    with pytest.raises(ValueError, match="style is 'blur'; choose from mask, heat, contour"):
        caption.save_overlay(tmp_path / "other.png", style="blur")


def test_neither_torch_nor_matplotlib_before_a_figure() -> None:
    script = (
        "import sys, captioner.captioning.caption; sys.exit(', '.join({'torch', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported too early: {result.stderr}"
