"""`captioner overlay` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_captioner import TRANSFORMER, make_toy, use_toys, write_images
from PIL import Image

from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.figures.overlay_files import OverlayOptions
from captioner.model.encoders.encoder import Encoder


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> dict[str, Captioner]:
    models = {str(seed): Captioner(make_toy(lite0, seed), device="cpu", name=str(seed)) for seed in range(2)}
    models["transformer"] = Captioner(make_toy(lite0, 2, TRANSFORMER), device="cpu", name="transformer")
    return models


@pytest.fixture
def place(tmp_path: Path, models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with three photographs in two folders; models are named 0 and 1, and loaded already."""
    write_images(tmp_path / "photos", 2)
    write_images(tmp_path / "photos" / "more", 1)
    use_toys(models, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def overlay(*arguments: str, model: str = "0") -> int:
    return main(["overlay", *arguments, "--out", "out", "--model", model, "--quiet", "--width", "2", "--dpi", "60"])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_grid_of_each_image(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlay("photos", "--recursive") == 0
    captured = capsys.readouterr()
    *lines, summary = captured.out.splitlines()
    assert summary.startswith("out: grid of 3 images (")
    assert summary.endswith(" per second), 0 failed")
    assert [line.split("\t")[0] for line in lines] == [
        f"out/grid/photos/{name}.jpg.png" for name in ("0000", "0001", "more/0000")
    ]
    assert all(line.split("\t")[1] for line in lines)  # the caption
    assert captured.err == ""
    names = ["photos/0000.jpg", "photos/0001.jpg", "photos/more/0000.jpg"]
    assert files(place / "out") == [f"grid/{name}.png" for name in names]
    before = (place / "out/grid/photos/0000.jpg.png").read_bytes()
    assert overlay(".", "--recursive") == 0  # again, in the same folder, which is left out
    assert (place / "out/grid/photos/0000.jpg.png").read_bytes() == before
    assert capsys.readouterr().out.splitlines()[-1].startswith("out: grid of 3 images")


def test_every_kind(place: Path, models: dict[str, Captioner]) -> None:
    kinds = "grid,words,matrix,animation,samples"
    assert overlay("photos/0000.jpg", "--kind", kinds, "--format", "svg,webp", "--style", "heat", "--samples", "1") == 0
    words = models["0"].caption("photos/0000.jpg").words
    assert files(place / "out") == sorted(
        [
            "animation/photos/0000.jpg.webp",
            "grid/photos/0000.jpg.svg",
            "matrix/photos/0000.jpg.svg",
            "samples/photos/0000.jpg.svg",
            *(f"words/photos/0000.jpg.words/{index:03d}-{word.strip(chr(39))}.png" for index, word in enumerate(words)),
        ]
    )
    with Image.open(place / "out" / "words/photos/0000.jpg.words" / f"000-{words[0]}.png") as drawn:
        assert drawn.size == (40, 32)


def test_two_models_are_compared(place: Path, models: dict[str, Captioner], capsys: pytest.CaptureFixture[str]) -> None:
    assert overlay("photos", "--model", "1", "--format", "svg") == 0
    assert files(place / "out") == ["compare/photos/0000.jpg.svg", "compare/photos/0001.jpg.svg"]
    drawn = (place / "out/compare/photos/0000.jpg.svg").read_text()
    for name in ("0", "1"):
        assert f">{name}</text>" in drawn
        for word in models[name].caption("photos/0000.jpg").words:
            assert f">{word}</text>" in drawn
    capsys.readouterr()
    assert overlay("photos", "--model", "1", "--model", "0") == 2
    assert capsys.readouterr().err == "captioner: --model is given 3 times; at most two are compared\n"


def test_bad_images_are_named_and_the_rest_is_drawn(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos" / "0000.jpg").write_bytes(b"junk")
    for more in ([], ["--caption", "a dog"]):
        assert overlay("photos", "missing.jpg", *more) == 1
        captured = capsys.readouterr()
        assert captured.out.splitlines()[1].startswith("out: grid of 1 image (")
        assert captured.out.endswith("2 failed\n")
        assert sorted(captured.err.splitlines()) == [
            "captioner: missing.jpg: no such file or directory",
            "captioner: photos/0000.jpg: not one of JPEG, PNG, GIF, WEBP, BMP, TIFF, AVIF, HEIC",
        ]
        assert files(place / "out") == ["grid/photos/0001.jpg.png"]


def test_a_text_of_ones_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlay("photos", "--caption", "The zebra runs.", "--format", "svg") == 0
    assert capsys.readouterr().err == "captioner: 0 does not know 'zebra'; it reads them as <unk>\n"
    drawn = (place / "out/grid/photos/0001.jpg.svg").read_text()
    assert [word for word in ("the", "zebra", "runs") if f">{word}</text>" in drawn] == ["the", "zebra", "runs"]


def test_a_record_is_drawn_without_a_model(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in "01":
        recorded = ["caption", "photos", "--out", f"rec{model}", "--attention", "--quiet", "--model", model]
        assert main(recorded) == 0
    assert overlay("photos") == 0
    drawn = (place / "out/grid/photos/0001.jpg.png").read_bytes()
    monkeypatch.setattr("captioner.captioning.captioner.load", None)
    settings = ["--quiet", "--width", "2", "--dpi", "60"]
    assert main(["overlay", "--from", "rec0/captions.jsonl", "--out", "again", *settings]) == 0
    again = np.asarray(Image.open(place / "again/grid/photos/0001.jpg.png")).astype(int)
    assert np.abs(again - np.asarray(Image.open(place / "out/grid/photos/0001.jpg.png"))).max() <= 2  # rounded weights
    assert drawn
    both = ["--from", "rec0/captions.jsonl", "--from", "rec1/captions.jsonl"]
    assert main(["overlay", *both, "--out", "both", "--format", "svg", *settings]) == 0
    assert files(place / "both") == ["compare/photos/0000.jpg.svg", "compare/photos/0001.jpg.svg"]
    assert ">rec1</text>" in (place / "both/compare/photos/0000.jpg.svg").read_text()
    (place / "photos/0000.jpg").unlink()
    lines = (place / "rec1/captions.jsonl").read_text().splitlines()
    bare = {key: value for key, value in json.loads(lines[1]).items() if key != "attention"}
    (place / "rec1/captions.jsonl").write_text(f"{lines[0]}\n{json.dumps(bare)}\n")
    capsys.readouterr()
    assert main(["overlay", "--from", "rec1/captions.jsonl", "--out", "last", *settings]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "captioner: photos/0000.jpg: no such file or directory",
        "captioner: photos/0001.jpg: the record holds no attention; make it with `captioner caption --attention`",
    ]


def test_sampled_words_are_those_of_caption(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caption", "photos", "--sample", "--seed", "7", "--quiet", "--model", "0"]) == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert overlay("photos", "--sample", "--seed", "7", "--format", "svg") == 0
    for name, text in rows.items():
        drawn = (place / f"out/grid/{name}.svg").read_text()
        assert all(f">{word}</text>" in drawn for word in text.replace("'s", "").split())


def test_nothing_is_written_outside(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "work").mkdir()
    outside = place / "photos" / "0000.jpg"
    for name in (str(outside), "work/../photos/0001.jpg"):
        assert overlay(name) == 0
    assert len(files(place / "out")) == 2
    assert not any(".." in name.split("/") for name in files(place / "out"))
    (place / "elsewhere").mkdir()
    (place / "linked").mkdir()
    (place / "linked" / "grid").symlink_to(place / "elsewhere")
    capsys.readouterr()
    assert main(["overlay", "photos/0000.jpg", "--out", "linked", "--model", "0", "--quiet"]) == 1
    assert "leads out of linked" in capsys.readouterr().err
    assert files(place / "elsewhere") == []


def test_an_html_page_alone(place: Path) -> None:
    assert overlay("photos", "--html") == 0
    assert files(place / "out") == ["gallery.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["photos", "--kind", "grids"],
            "kind is 'grids'; choose from grid, words, matrix, animation, samples, heads, compare",
        ),
        (["photos", "--kind", "compare"], "compare needs two models, not 1"),
        (["photos", "--format", "jpg"], "format is 'jpg'; choose from png, pdf, svg, gif, webp"),
        (["photos", "--format", "pdf,svg"], "format is pdf,svg; choose one of png, pdf, svg"),
        (["photos", "--format", "gif", "--kind", "grid"], "format gif is of kind animation, not grid"),
        (
            ["photos", "--format", "svg", "--kind", "words"],
            "format svg is of kind grid, matrix, samples, heads or compare, not words",
        ),
        (["photos", "--temperature", "2"], "temperature applies to sampling only"),
        ([], "name images, or a file of recorded captions with --from"),
        (["photos", "--from", "x.jsonl"], "--from draws recorded captions; it does not go with images"),
        (["--from", "x.jsonl"], "--from draws recorded captions; it does not go with --model"),
        (["photos", "--width", "99"], "width is 99.0; it must be from 1 to 20 inches"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["overlay", *arguments, "--out", "out", "--model", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"captioner: {message}\n"
    assert captured.out == ""


def test_an_empty_folder_is_a_failure(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty").mkdir()
    assert overlay("empty") == 1
    assert capsys.readouterr().err.startswith("captioner: no images in empty")


def test_formats_choose_the_kind(place: Path) -> None:
    assert overlay("photos/0000.jpg", "--format", "webp") == 0
    assert files(place / "out") == ["animation/photos/0000.jpg.webp"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"style": "blur"}, "style is 'blur'; choose from mask, heat, contour"),
        ({"dpi": 5}, "dpi is 5; it must be from"),
    ],
)
def test_options_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OverlayOptions(**settings)


def test_all_layers_and_heads(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert overlay("photos", "--kind", "heads", "--format", "svg", model="transformer") == 0
    assert files(place / "out") == ["heads/photos/0000.jpg.svg", "heads/photos/0001.jpg.svg"]
    drawn = (place / "out/heads/photos/0000.jpg.svg").read_text()
    for layer, head in ((1, 1), (1, 3), (2, 3)):
        assert f">layer {layer}, head {head}</text>" in drawn
    assert (
        overlay("photos/0000.jpg", "--kind", "heads", "--caption", "a dog", "--format", "svg", model="transformer") == 0
    )
    assert ">dog</text>" in (place / "out/heads/photos/0000.jpg.svg").read_text()
    capsys.readouterr()
    main(["caption", "photos/0000.jpg", "--out", "captions", "--attention", "--quiet", "--model", "transformer"])
    assert main(["overlay", "--from", "captions/captions.jsonl", "--kind", "heads", "--out", "o", "--quiet"]) == 1
    assert "photos/0000.jpg: the caption does not have its heads; make it with" in capsys.readouterr().err
