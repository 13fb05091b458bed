"""`captioner features --import`, and what is done with the regions: train, evaluate, caption, overlay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.detections import detect, write_jsonl
from helpers.toy_training import write_toy_data

from captioner.cli import main

RECIPE = """
data: {root: data, features: features}
epochs: 1
encoder: {name: imported/toy}
attention: {width: 8}
decoder: {embedding: 8, hidden: 12, regions: 10}
vocabulary: {minimum_count: 1}
batches: {captions: 4, captions_per_image: 2, flips: false}
validation: {beam: 2, overlays: 0}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data = write_toy_data(tmp_path / "data", train=(2,) * 4, val=(1,) * 2)
    found = {path.name: detect(number, 1 + number, (64, 64)) for number, path in enumerate(sorted(data.glob("*.png")))}
    write_jsonl(tmp_path / "toy.jsonl", {**dict(list(found.items())[:-1]), "elsewhere.png": found["000.png"]})
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.usefixtures("quick")
def test_from_a_detector_to_a_gallery(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["features", "data", "--import", "toy.jsonl", "--out", "features", "--quiet"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "5 imported, 0 imported before, 0 refused" in told.out
    assert "images of the data without regions: 1" in told.err
    assert "images of the files that are not in the data: 1" in told.err
    assert main(arguments) == 0
    assert "nothing to import, 5 imported before" in capsys.readouterr().out
    assert main(["train", "recipe.yaml", "--run", "run", "--quiet"]) == 0
    images = ["data/000.png", "data/003.png"]
    out = ["--out", "captions", "--overlays", "--gallery"]
    assert main(["caption", *images, "--model", "run", "--features", "features", *out, "--quiet"]) == 0
    records = [json.loads(line) for line in Path("captions/captions.jsonl").read_text().splitlines()]
    assert [len(record["geometry"]["boxes"]) for record in records] == [1, 4]
    assert len(list(Path("captions/overlays").rglob("*.png"))) == 2
    assert '"boxes":[[' in Path("captions/gallery.html").read_text()
    text = ["--caption", "a red dog runs", "--kind", "grid,matrix,samples"]
    assert main(["overlay", *images, "--model", "run", "--features", "features", *text, "--out", "figures"]) == 0
    capsys.readouterr()
    # A model of boxes cannot see what was not imported.
    assert main(["caption", "data/005.png", "--model", "run", "--features", "features"]) == 1
    assert "data/005.png: its regions were not imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--import", "toy.jsonl", "--flips"], "--flips needs an encoder"),
        (["--name", "x"], "--name and --most go with --import"),
        (["--most", "3"], "--name and --most go with --import"),
    ],
)
def test_wrong_usage_is_told(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["features", "data", *arguments]) == 2
    assert message in capsys.readouterr().err
