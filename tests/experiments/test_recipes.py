"""Every bundled recipe builds its model and learns from data in the format that it is meant for."""

from __future__ import annotations

import copy
import json
import math
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.data_folders import write_image, write_json
from helpers.photo_folders import EXAMPLES
from helpers.toy_training import run_toy

import captioner.training.start
from captioner.model.checkpoint import load_checkpoint
from captioner.model.config import EncoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.encoders.backbones import TRANSFORMERS
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.training import bundled_recipes
from captioner.training.recipe import load_recipe

RECIPES = sorted(bundled_recipes.RECIPES.glob("*.yaml"))
CAPTIONS = [f"a {kind} dog runs over the grass" for kind in ("small", "brown", "fast", "small", "brown")]


@cache
def load_once(config: EncoderConfig) -> Encoder:
    return load_encoder(config)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three images of five captions each, as Flickr8k, as COCO in Karpathy's splits, as one's own; and the examples."""
    root = tmp_path_factory.mktemp("data")
    flickr8k, coco, photos = root / "flickr8k", root / "coco", root / "photos"
    text = flickr8k / "Flickr8k_text"
    text.mkdir(parents=True)
    images, tokens = [], []
    for number, (split, stem) in enumerate((("train", "train"), ("restval", "train"), ("val", "dev"))):
        write_image(flickr8k / "Flicker8k_Dataset" / f"{number}.jpg", 80 * number)
        write_image(coco / "val2014" / f"{number}.jpg", 80 * number)
        with (text / f"Flickr_8k.{stem}Images.txt").open("a") as names:
            names.write(f"{number}.jpg\n")
        tokens += [f"{number}.jpg#{place}\t{caption}\n" for place, caption in enumerate(CAPTIONS)]
        sentences = [{"raw": caption, "tokens": caption.split()} for caption in CAPTIONS]
        image = {"filename": f"{number}.jpg", "filepath": "val2014", "imgid": number, "cocoid": number, "split": split}
        images.append({**image, "sentences": sentences})
        write_image(photos / f"{number}.jpg", 80 * number)
        with (photos / "metadata.jsonl").open("a") as lines:
            for caption in CAPTIONS:
                record = {"file_name": f"{number}.jpg", "text": caption, "split": "val" if split == "val" else "train"}
                lines.write(json.dumps(record) + "\n")
    (text / "Flickr_8k.testImages.txt").write_text("")
    (text / "Flickr8k.token.txt").write_text("".join(tokens))
    write_json(coco / "dataset_coco.json", {"images": images, "dataset": "coco"})
    sizes = [{"id": image["cocoid"], "width": 64, "height": 48} for image in images]
    dogs = [{"id": size["id"], "image_id": size["id"], "category_id": 18, "bbox": [8, 8, 32, 32]} for size in sizes]
    boxes = {"images": sizes, "annotations": dogs, "categories": [{"id": 18, "name": "dog"}]}
    write_json(coco / "annotations" / "instances_val2014.json", boxes)
    return {"flickr8k": flickr8k, "coco": coco, "photos": photos, "examples": EXAMPLES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_takes_a_step_and_searches_for_captions(
    recipe: Path,
    stand_ins: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [Path(data.root).name for data in load_recipe(recipe).data]
    overrides = []
    for number, name in enumerate(names):
        regions = tmp_path_factory.getbasetemp() / f"regions-of-{name}"
        overrides += [f"data.{number}.root={stand_ins[name]}", f"data.{number}.features={regions}"]
    transformer = load_recipe(recipe).encoder.name in TRANSFORMERS
    if "paper" in recipe.stem or transformer:
        overrides.append("encoder.weights=random")  # the others come with the package
    if "paper" in recipe.stem:
        paper = load_recipe(recipe)
        with torch.device("meta"):  # at its own size, of 14 x 14 regions, it has no need of numbers
            make_decoder(paper.decoder, paper.attention, 9000, 512, (paper.encoder.size // 16,) * 2)
        assert paper.encoder.size == 224
        overrides += ["encoder.size=64", "decoder.hidden=32", "decoder.embedding=16", "attention.width=16"]
    if (load_recipe(recipe).start or "").startswith("runs/"):
        overrides.append("start=null")  # it begins from the run of another recipe
    experiment = load_recipe(recipe, overrides)
    monkeypatch.setattr(captioner.training.start, "load_encoder", lambda config: copy.deepcopy(load_once(config)))
    outcome, recorder = run_toy(experiment, tmp_path / "run", stop=lambda recorder: bool(recorder.steps))
    assert outcome is None
    numbers = recorder.steps[0][2]
    assert math.isfinite(numbers["loss"])
    assert numbers["skipped"] == 0
    assert ("reinforce" in numbers) == ("hard" in recipe.stem)
    assert ("guided" in numbers) == (experiment.loss.guide > 0)
    assert all("there are only" in text for text in recorder.warned)  # these data sets are tiny
    if names != ["examples"]:  # of which an epoch has more than one step
        assert [what for what, _, _ in recorder.shown][-1] == "validation"
    checkpoint = load_checkpoint(tmp_path / "run" / "last")
    assert checkpoint.encoder.name == experiment.encoder.name
    grid = (
        4
        if "paper" in recipe.stem or names == ["examples"]
        else (experiment.encoder.size or 0) // 28
        if transformer
        else 9
    )
    assert checkpoint.encoder_identity["grid"] == [grid, grid]
    assert len(checkpoint.vocabulary) > 8
    shutil.rmtree(tmp_path / "run")  # some are hundreds of megabytes


def count_weights(recipe: str) -> int:
    """Return the number of weights of a recipe's decoder, on Flickr8k's words and EfficientNet-Lite2's regions."""
    experiment = load_recipe(RECIPES[0].parent / recipe)
    with torch.device("meta"):
        decoder = make_decoder(experiment.decoder, experiment.attention, 2540, 1280, (9, 9))
    return sum(parameter.numel() for parameter in decoder.parameters())


def test_the_transformer_has_as_many_weights_as_the_lstm() -> None:
    lstm, transformer = (count_weights(f"flickr8k-{name}.yaml") for name in ("soft", "transformer"))
    assert lstm == 5_508_844
    assert transformer == pytest.approx(lstm, rel=0.1)


def test_the_transformer_has_the_budget_of_the_lstm() -> None:
    lstm, transformer = (load_recipe(RECIPES[0].parent / f"flickr8k-{name}.yaml") for name in ("soft", "transformer"))
    for setting in ("data", "epochs", "encoder", "vocabulary", "loss", "batches", "self_critical", "validation"):
        assert getattr(transformer, setting) == getattr(lstm, setting), setting
