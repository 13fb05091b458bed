"""Exported ONNX models, run with onnxruntime and numpy alone, say what the package says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.onnx_captioner import OnnxCaptioner
from helpers.photo_folders import EXAMPLES
from helpers.toy_captioner import VOCABULARY, make_toy, write_images

from captioner.captioning.captioner import Captioner, load
from captioner.cli import main
from captioner.datasets.vocabulary import join_words
from captioner.model.checkpoint import save_checkpoint
from captioner.model.config import AttentionConfig, EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.onnx.export import to_onnx
from captioner.model.onnx.nodes import Unsupported

TOYS: dict[str, dict[str, Any]] = {
    "soft": {},
    "hard": {"mode": "hard", "inference": "argmax"},
    "none": {"mode": "none", "feed": "first-step"},
    "none-state": {"mode": "none", "feed": "state"},
}
SETTINGS: list[dict[str, Any]] = [{}, {"beam": 3, "no_repeat": 2, "minimum_length": 4, "maximum_length": 6}]


def check(model: Captioner, exported: OnnxCaptioner, paths: list[Path], **settings: Any) -> None:
    """Compare captions, probabilities, attention and gates."""
    best = int(exported.search["beam"])
    for path in paths:
        pixels = model.preprocessing.read(path).pixels
        expected = model.caption(path, n_best=best, **settings)
        found = exported.beam(pixels, best)
        assert [exported.words(each.ids) for each in found] == [each.words for each in expected], path.name
        for each, wanted in zip(found, expected, strict=True):
            assert each.total == pytest.approx(wanted.log_prob, abs=0.05)
            np.testing.assert_allclose(np.exp(each.log_probs), wanted.probabilities, atol=0.02)
            alpha = np.array(each.alpha).reshape(wanted.attention.shape)
            np.testing.assert_allclose(alpha, wanted.attention, atol=0.02)
            np.testing.assert_allclose(each.beta, wanted.beta, atol=0.02)
        greedy = model.caption(path, **{**settings, "beam": 1})
        assert exported.words(exported.greedy(pixels)) == greedy.words, path.name


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "bounded"])
@pytest.mark.parametrize("name", TOYS)
def test_toys_say_the_same(name: str, settings: dict[str, Any], lite0: Encoder, tmp_path: Path) -> None:
    checkpoint = make_toy(lite0, 1, attention=AttentionConfig(width=5, **TOYS[name]))
    to_onnx(checkpoint, name, half=False).write(tmp_path / "onnx")
    paths = write_images(tmp_path / "images", 4)
    check(Captioner(checkpoint, device="cpu"), OnnxCaptioner(tmp_path / "onnx", **settings), paths, **settings)


def test_the_default_model_says_the_same_in_half_precision(tmp_path: Path) -> None:
    assert main(["export", "coco-fast", str(tmp_path), "--onnx"]) == 0
    check(load("coco-fast", device="cpu", engine="onnx"), OnnxCaptioner(tmp_path), sorted(EXAMPLES.glob("*.jpg")))


def test_a_bundled_model_of_hard_attention_says_the_same(tmp_path: Path) -> None:
    assert main(["export", "flickr8k-hard", str(tmp_path), "--onnx", "--full-precision"]) == 0
    check(load("flickr8k-hard", device="cpu"), OnnxCaptioner(tmp_path), sorted(EXAMPLES.glob("*.jpg"))[:4])


def test_the_command_writes_graphs_and_json(lite0: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "toy", make_toy(lite0))
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "half"), "--onnx"]) == 0
    shown = capsys.readouterr().out
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "full"), "--onnx", "--full-precision"]) == 0
    files = {path.name: path.stat().st_size for path in (tmp_path / "half").iterdir()}
    assert set(files) == {"encoder.onnx", "start.onnx", "step.onnx", "model.json"}
    assert f"{sum(files.values()) / 1e6:.1f} MB" in shown
    assert files["encoder.onnx"] < 0.6 * (tmp_path / "full" / "encoder.onnx").stat().st_size
    about = json.loads((tmp_path / "half" / "model.json").read_text(encoding="utf-8"))
    assert tuple(about["words"]) == VOCABULARY.entries
    assert about["name"] == "toy"
    assert about["search"] == {
        "beam": 5, "length_power": 0.9, "minimum_length": 1, "maximum_length": 30, "no_repeat": 3
    }  # fmt: skip
    assert about["preprocessing"]["size"] == 64
    assert about["grid"] == [2, 2]


def test_the_helper_needs_neither_torch_nor_captioner() -> None:
    script = "import sys, helpers.onnx_captioner; sys.exit(', '.join({'torch', 'captioner'} & set(sys.modules)) or 0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_model_without_a_translation_leaves_no_folder(
    lite0: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> bytes:
        raise Unsupported("no ONNX translation of LeakyReLU")

    monkeypatch.setattr("captioner.model.onnx.export.build_graph", refuse)
    save_checkpoint(tmp_path / "toy", make_toy(lite0))
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "onnx"), "--onnx"]) == 1
    assert capsys.readouterr().err == "captioner: no ONNX translation of LeakyReLU\n"
    assert not (tmp_path / "onnx").exists()


def test_padded_photographs_are_refused(lite0: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = EncoderConfig("efficientnet-lite0", size=64, fit="pad")
    padded = load_encoder(config)
    save_checkpoint(tmp_path / "toy", replace(make_toy(padded), encoder=config))
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "onnx"), "--onnx"]) == 1
    assert capsys.readouterr().err == "captioner: no ONNX translation of encoder.fit pad\n"


def test_words_join_by_the_rules_in_the_json(lite0: Encoder) -> None:
    about = to_onnx(make_toy(lite0), "toy").about
    assert join_words(["the", "man", about["contractions"][0]]) == f"the man{about['contractions'][0]}"
    for first, second in about["cut_words"]:
        assert join_words([first, second]) == first + second
