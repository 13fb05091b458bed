"""Score functions and encoders from modules outside: named in a recipe, and never imported by a model alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.toy_training import run_toy, toy_recipe, write_toy_data

from captioner.model import extensions
from captioner.model.checkpoint import load_checkpoint
from captioner.model.config import AttentionConfig, EncoderConfig
from captioner.model.encoders.encoder import load_encoder
from captioner.model.scores import make_score

MODULE = """
from torch import nn

from captioner.images.preprocessing import Preprocessing
from captioner.model.encoders.backbones import Backbone
from captioner.model.scores import GeneralScore


class Bilinear(GeneralScore):
    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__(region_width, hidden_width)
        self.width = width


def patches(stride: int | None, weights: str) -> Backbone:
    trunk = nn.Sequential(nn.Conv2d(3, 6, kernel_size=stride or 32, stride=stride or 32))
    return Backbone(trunk.eval(), stride or 32, Preprocessing(64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))


def nothing(*arguments: object) -> None:
    return None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, but that nobody has allowed."""
    (tmp_path / "toy_extension.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extensions, "_allowed", set())
    monkeypatch.delenv(extensions.VARIABLE, raising=False)
    yield "toy_extension"
    sys.modules.pop("toy_extension", None)


def test_a_recipe_may_name_a_score_and_an_encoder(module: str, tmp_path: Path) -> None:
    recipe = toy_recipe(
        write_toy_data(tmp_path / "data"),
        epochs=1,
        attention={"score": f"{module}:Bilinear", "width": 3},
        encoder={"name": f"{module}:patches", "size": 64},
    )
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    checkpoint = load_checkpoint(outcome.folder)
    score = checkpoint.build_decoder().attention.score
    assert type(score).__name__ == "Bilinear"
    assert score.width == 3  # type: ignore[union-attr]
    assert checkpoint.build_encoder().grid == (2, 2)


def test_a_model_alone_imports_nothing(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy_recipe(write_toy_data(tmp_path / "data"), epochs=1, attention={"score": f"{module}:Bilinear"})
    run_toy(recipe, tmp_path / "run")
    monkeypatch.setattr(extensions, "_allowed", set())
    del sys.modules[module]
    with pytest.raises(ValueError, match=rf"^[^\n]*{module}:Bilinear[^\n]*CAPTIONER_EXTENSIONS={module}[^\n]*$"):
        load_checkpoint(tmp_path / "run" / "best")
    assert module not in sys.modules
    monkeypatch.setenv(extensions.VARIABLE, f"other, {module}")
    assert load_checkpoint(tmp_path / "run" / "best").attention.score == f"{module}:Bilinear"


def test_a_module_that_is_imported_is_not_allowed_for_that(module: str) -> None:
    """Every process has os and shutil; what they do is not a model's to choose."""
    assert "os" in sys.modules
    with pytest.raises(ValueError, match="os:abort is code outside"):
        load_encoder(EncoderConfig("os:abort", size=64))
    with pytest.raises(ValueError, match="os:abort is code outside"):
        make_score(AttentionConfig(score="os:abort"), 6, 5, 4)


@pytest.mark.parametrize(
    ("score", "encoder", "reason"),
    [
        ("nowhere_at_all:Score", "nowhere_at_all:encode", "cannot be imported: No module named 'nowhere_at_all'"),
        ("toy_extension:Missing", "toy_extension:missing", "is not there: toy_extension has no"),
        ("toy_extension:nothing", "toy_extension:nothing", "toy_extension:nothing is no"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(module: str, score: str, encoder: str, reason: str) -> None:
    extensions.allow(score, encoder)
    with pytest.raises(ValueError, match=rf"^[^\n]*{reason}[^\n]*$"):
        make_score(AttentionConfig(score=score), 6, 5, 4)
    with pytest.raises(ValueError, match=rf"^[^\n]*{reason}[^\n]*$"):
        load_encoder(EncoderConfig(encoder, size=64))


@pytest.mark.parametrize("score", ["additiv", "os.path", "a:b:c", "../x:y", ":Score", "x:"])
def test_other_names_are_still_refused_with_the_choices(score: str) -> None:
    with pytest.raises(ValueError, match=r"attention score is .*choose from additive, .*package\.module:Class"):
        AttentionConfig(score=score)


def test_commands_may_name_an_encoder(module: str, tmp_path: Path) -> None:
    data = write_toy_data(tmp_path / "data")
    command = [sys.executable, "-m", "captioner", "features", str(data), "--encoder", f"{module}:patches", "--out"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    subprocess.run([*command, str(tmp_path / "regions")], check=True, env={**os.environ, "PYTHONPATH": path})
    [cache] = (tmp_path / "regions").iterdir()
    assert cache.name.startswith("toy_extension_patches-stride32-64")
