from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.photo_folders import EXAMPLES
from helpers.toy_captioner import make_toy
from helpers.toy_checkpoints import make_checkpoint

from captioner.captioning.captioner import Captioner, load
from captioner.cli import main
from captioner.model.bundled import SCORES, summarise
from captioner.model.checkpoint import load_checkpoint, save_checkpoint, to_half
from captioner.model.encoders.encoder import Encoder
from captioner.model.export import export_model, without_paths

SETTINGS = {
    "data": [{"root": "/home/somebody/data/flickr8k", "features": "C:\\caches\\regions", "train": "train"}],
    "start": "runs/before/best",
    "optimiser": {"rate": 4e-4, "name": "adamw"},
    "seed": 3,
}


def write_metrics(path: Path, digest: str) -> Path:
    metrics = {
        "name": "toy",
        "checksum": digest,
        "scores": {"bleu1": 60.04, "bleu4": 20.26, "cider": 50.0},
        "intervals": {"bleu4": [19.0, 21.0]},
        "diversity": {"distinct": 3},
        "protocol": {"data": "Flickr8k", "split": "test", "images": 1000},
    }
    path.write_text(json.dumps(metrics))
    return path


def test_an_exported_model_is_the_rounded_one_without_paths(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(settings=SETTINGS)
    export_model(checkpoint, tmp_path / "model")
    found = load_checkpoint(tmp_path / "model")
    assert found.digest == to_half(checkpoint).digest
    assert all(weight.dtype == torch.float16 for weight in found.weights.values())
    assert found.settings["data"] == [{"root": "flickr8k", "features": "regions", "train": "train"}]
    assert found.settings["start"] == "best"
    assert found.settings["optimiser"] == SETTINGS["optimiser"]
    assert "somebody" not in (tmp_path / "model" / "checkpoint.json").read_text()


def test_full_precision_leaves_the_weights_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    export_model(checkpoint, tmp_path, half=False)
    assert load_checkpoint(tmp_path).digest == checkpoint.digest


def test_scores_go_with_the_model_they_are_of(tmp_path: Path) -> None:
    checkpoint = to_half(make_checkpoint())
    metrics = write_metrics(tmp_path / "metrics.json", checkpoint.digest)
    export_model(checkpoint, tmp_path / "model", evaluation=metrics)
    summary = summarise(tmp_path / "model")
    assert summary.evaluation is not None
    assert summary.evaluation["scores"]["bleu4"] == 20.26
    assert set(summary.evaluation) == {"scores", "intervals", "diversity", "protocol"}
    assert (summary.name, summary.attention, summary.words) == ("model", "soft", 11)


def test_scores_of_another_model_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    metrics = write_metrics(tmp_path / "metrics.json", checkpoint.digest)  # of the weights before rounding
    with pytest.raises(ValueError, match=f"is of the model {checkpoint.digest}, not .*; evaluate the exported model"):
        export_model(checkpoint, tmp_path / "model", evaluation=metrics)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is not valid JSON"),
        ("[]", "holds a JSON list"),
        ("{}", "is no evaluation of a model"),
        ('{"scores": {}}', "is no evaluation of a model"),
    ],
)
def test_a_file_that_is_no_evaluation_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=rf"other\.json {reason}"):
        export_model(make_checkpoint(), tmp_path / "model", evaluation=tmp_path / "other.json")


def test_plain_values_are_not_paths() -> None:
    settings = {"name": "a.b", "rate": 1.0, "none": None, "list": ["x", 2], "inner": {"path": "./a/b c"}}
    assert without_paths(settings) == {**settings, "inner": {"path": "b c"}}


def test_the_commands_export_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "run" / "best", make_checkpoint(settings=SETTINGS))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "shipped")]) == 0
    exported = capsys.readouterr().out.splitlines()
    assert exported[0].split() == [
        "model", "attention", "encoder", "words", "MB", "speed", "scored", "on", "BLEU-1", "BLEU-4", "METEOR", "CIDEr"
    ]  # fmt: skip
    assert exported[1].split() == ["shipped", "soft", "efficientnet-lite0", "11", "0.0", *"------"]
    metrics = write_metrics(tmp_path / "metrics.json", load_checkpoint(tmp_path / "shipped").digest)
    assert main(["export", str(tmp_path / "shipped"), str(tmp_path / "again"), "--scores", str(metrics)]) == 0
    assert (tmp_path / "again" / SCORES).is_file()
    capsys.readouterr()
    assert main(["models", str(tmp_path / "again"), str(tmp_path / "shipped")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Flickr8k test (1,000)  60.0    20.3    -       50.0" in lines[1]
    assert len(lines) == 3


def test_models_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tmp_path)]) == 1
    assert f"{tmp_path} holds no model" in capsys.readouterr().err
    (tmp_path / "checkpoint.json").write_text("{}")
    assert main(["models", str(tmp_path)]) == 1
    assert f"{tmp_path} is damaged" in capsys.readouterr().err


def test_a_model_may_see_larger_images(lite0: Encoder, tmp_path: Path) -> None:
    toy = make_toy(lite0)
    save_checkpoint(tmp_path / "toy", toy)
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "finer"), "--size", "96", "--full-precision"]) == 0
    finer = load_checkpoint(tmp_path / "finer")
    assert finer.encoder.size == 96
    assert all(torch.equal(weight, toy.weights[name]) for name, weight in finer.weights.items())
    caption = load(tmp_path / "finer", device="cpu").caption(EXAMPLES / "cat.jpg")
    assert caption.attention.shape[1:] == (3, 3)
    assert finer.digest != toy.digest
    assert Captioner(toy, device="cpu").caption(EXAMPLES / "cat.jpg").attention.shape[1:] == (2, 2)


@pytest.mark.parametrize(
    ("size", "code", "reason"),
    [("0", 2, "--size"), ("5000", 1, "encoder size is 5000; it must be from 1 to 1024 pixels")],
)
def test_a_size_that_makes_no_sense_is_refused(
    size: str, code: int, reason: str, lite0: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path / "toy", make_toy(lite0))
    assert main(["export", str(tmp_path / "toy"), str(tmp_path / "out"), "--size", size]) == code
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
