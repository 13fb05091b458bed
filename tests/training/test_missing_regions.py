"""Training on regions of which some are missing: padded photographs, and boxes of a detector; from data to overlays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.decoder_kinds import TRANSFORMER
from helpers.detections import detect, write_jsonl
from helpers.toy_training import assert_same_runs, at_step, run_toy, step_lines, toy_recipe, write_toy_data
from PIL import Image

from captioner.captioning.captioner import load
from captioner.captioning.options import make_options
from captioner.captioning.teacher_forcing import force_images
from captioner.datasets.dataset import load_dataset
from captioner.evaluation.analysis.diagnostics import diagnose
from captioner.evaluation.model_captions import SplitCaptioner, caption_split, open_cache, read_captions
from captioner.images.sources import Source
from captioner.model.encoders.import_regions import import_regions
from captioner.model.encoders.region_cache import RegionCache
from captioner.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("quick")
SIZES = ((64, 64), (64, 40), (30, 64), (64, 20))
PADDED = {"encoder": {"name": "efficientnet-lite0", "size": 96, "fit": "pad"}}  # 3 x 3 regions
FILLED = ((3, 3), (2, 3), (3, 1), (1, 3))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """A toy data set whose pictures have several shapes."""
    folder = write_toy_data(tmp_path / "data", train=(2,) * 8, val=(1,) * 4)
    for number in range(12):
        path = folder / f"{number:03d}.png"
        with Image.open(path) as picture:
            resized = picture.resize(SIZES[number % 4])
        resized.save(path)
    return folder


@pytest.fixture
def boxes(shapes: Path) -> Path:
    """The same with imported regions, of which there is a different number for each picture."""
    images = load_dataset(shapes).images
    found = {
        image.file_name: detect(number, 1 + number % 5, SIZES[int(Path(image.file_name).stem) % 4])
        for number, image in enumerate(images)
    }
    file = write_jsonl(shapes.parent / "boxes.jsonl", found)
    import_regions(images, shapes.parent / "data-regions", [file], "toy")
    return shapes


def imported_recipe(data: Path, **settings: object) -> Recipe:
    recipe = toy_recipe(data, **settings)
    return replace(
        recipe,
        encoder=replace(recipe.encoder, name="imported/toy", size=None),
        batches=replace(recipe.batches, flips=False),
    )


@pytest.mark.parametrize("mode", ["soft", "hard", "local", "glimpse"])
def test_padded_photographs_are_learned_from(mode: str, shapes: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(
        shapes, **PADDED, attention={"mode": mode, "width": 8}, epochs=4, validation={"every": 4, "overlays": 4}
    )
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    losses = [line["cross_entropy"] for line in step_lines(tmp_path / "run")]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert len(list((tmp_path / "run" / "overlays").rglob("*.png"))) == 4
    model = load(outcome.folder, device="cpu")
    assert model.grid == (3, 3)
    for number, filled in enumerate(FILLED):
        caption = model.caption(shapes / f"{number:03d}.png")
        assert caption.attention.shape[1:] == filled
        assert caption.geometry.box == (0, 0, *SIZES[number])
        assert np.allclose(caption.attention.sum(axis=(1, 2)), 1)
    # Alone or in a batch with images of other shapes: what is masked for one is not for another.
    paths = [shapes / f"{number:03d}.png" for number in range(4)]
    together = model.caption(paths)
    assert [caption.text for caption in together] == [model.caption(path).text for path in paths]


@pytest.mark.parametrize("kind", ["two layers", "transformer"])
def test_other_decoders_learn_from_padded_photographs(kind: str, shapes: Path, tmp_path: Path) -> None:
    decoder = {"transformer": {**TRANSFORMER, "positions": "learned"}, "two layers": {"layers": 2}}[kind]
    attention = {"score": "scaled-dot"} if kind == "transformer" else {"width": 8}
    recipe = toy_recipe(shapes, **PADDED, decoder={**decoder, "embedding": 8}, attention=attention, epochs=1)
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    (caption,) = load(outcome.folder, device="cpu").caption([shapes / "001.png"], heads=True)
    assert caption.heads is not None
    assert caption.attention.shape[1:] == caption.heads.shape[3:] == (2, 3)


def test_the_cache_tells_which_cells_are_padding(shapes: Path, tmp_path: Path) -> None:
    outcome, _ = run_toy(toy_recipe(shapes, **PADDED, epochs=1), tmp_path / "run")
    assert outcome is not None
    model = load(outcome.folder, device="cpu")
    names = [f"{number:03d}.png" for number in range(4)]
    (folder,) = (tmp_path / "data-regions").iterdir()
    with RegionCache(folder) as cache:
        mask, regions = cache.mask(names), torch.from_numpy(cache.regions(names)).float()  # (4, L), (4, L, D)
    assert mask is not None
    for there, filled in zip(mask.reshape(4, 3, 3), FILLED, strict=True):
        assert (there.any(axis=1).sum(), there.any(axis=0).sum(), there.sum()) == (*filled, filled[0] * filled[1])
    # What stands where there is padding means nothing.
    regions[~torch.from_numpy(mask)] = torch.nan
    geometries = [model.preprocessing.geometry(*size) for size in SIZES]
    found = model.find_captions(regions, geometries, make_options(), [0] * 4)
    assert [captions[0].text for captions in found] == [model.caption(shapes / name).text for name in names]


def test_tuned_encoders_see_padding_too(shapes: Path, tmp_path: Path) -> None:
    for blocks in (0, 1):
        settings = {"tuning": {"from_epoch": 1, "blocks": blocks}, "batches": {"captions": 4, "captions_per_image": 2}}
        run = tmp_path / f"run-{blocks}"
        outcome, _ = run_toy(toy_recipe(shapes, **PADDED, epochs=1, **settings), run)
        assert outcome is not None
        assert load(outcome.folder, device="cpu").caption(shapes / "001.png").attention.shape[1:] == (2, 3)


def test_a_padded_run_resumes_to_the_bit(shapes: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(shapes, **PADDED)
    run_toy(recipe, tmp_path / "whole")
    assert run_toy(recipe, tmp_path / "stopped", stop=at_step(3))[0] is None
    run_toy(recipe, tmp_path / "stopped", resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize("mode", ["soft", "hard", "gumbel", "none"])
def test_imported_regions_are_learned_from_and_evaluated(mode: str, boxes: Path, tmp_path: Path) -> None:
    recipe = imported_recipe(
        boxes, attention={"mode": mode, "width": 8}, epochs=4, validation={"every": 4, "overlays": 2}
    )
    outcome, recorder = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    assert not any("left out" in text for text in recorder.said)
    losses = [line["cross_entropy"] for line in step_lines(tmp_path / "run")]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert len(list((tmp_path / "run" / "overlays").rglob("*.png"))) == 2
    model = load(outcome.folder, device="cpu")
    assert model.grid == (1, 5)
    images = load_dataset(boxes).split("val")
    cache = open_cache(tmp_path / "data-regions", model.encoder_identity)
    assert cache is not None
    with cache:
        split = SplitCaptioner(model, images, cache)
        report = caption_split(tmp_path / "out", split, images, make_options(beam=2), {"data": "toy"})
        assert report.captioned == len(images)
        (forced,) = force_images(split, [Source(images[1].file_name, images[1].path)], "a small dog runs")
        assert forced.captions[0].attention.shape == (4, 1, len(forced.captions[0].geometry.boxes or ()))
        count = cache.records[images[1].file_name].filled
    captions = read_captions(tmp_path / "out", images)
    found = captions[images[1].file_name]
    assert count == [1, len(found.geometry.boxes or ())]
    diagnostics = diagnose(list(captions.values()))
    assert 1 < diagnostics.regions < 5
    records = [json.loads(line) for line in (tmp_path / "out" / "captions.jsonl").read_text().splitlines()]
    assert all(
        len(record["geometry"]["boxes"]) == len(record["attention"][0][0]) for record in records if record["words"]
    )


def test_without_its_cache_a_model_of_boxes_says_so(boxes: Path, tmp_path: Path) -> None:
    outcome, _ = run_toy(imported_recipe(boxes, epochs=1), tmp_path / "run")
    assert outcome is not None
    model = load(outcome.folder, device="cpu")
    with pytest.raises(ValueError, match=r"001.png: its regions were not imported"):
        model.caption(boxes / "001.png")


def test_images_without_imported_regions_are_left_out(boxes: Path, tmp_path: Path) -> None:
    (folder,) = (tmp_path / "data-regions").iterdir()
    lines = (folder / "index.jsonl").read_text().splitlines(keepends=True)
    (folder / "index.jsonl").write_text("".join(lines[:-1]))
    outcome, recorder = run_toy(imported_recipe(boxes, epochs=1), tmp_path / "run")
    assert outcome is not None
    assert any("without imported regions: 1" in text for text in recorder.said)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batches": {"flips": True}}, "batches.flips is true; .* imported/toy"),
        ({"tuning": {"from_epoch": 1}}, "tuning.from_epoch is 1"),
        ({"attention": {"mode": "local"}}, "attention.mode is local"),
        ({"attention": {"mode": "glimpse"}}, "attention.mode is glimpse"),
    ],
)
def test_what_boxes_cannot_do_is_refused(settings: dict[str, dict[str, object]], match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        toy_recipe(
            tmp_path, encoder={"name": "imported/toy", "size": None}, **{"batches": {"flips": False}, **settings}
        )
