"""The bundled models: they load with nothing beside them, say what their cards say of them, and caption photographs."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.photo_folders import EXAMPLES, ROOT

from captioner.captioning.captioner import Captioner, load
from captioner.captioning.options import CaptionOptions
from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics.bleu_rouge_cider import bleu
from captioner.model.bundled import DEFAULT, PRETRAINED, SCORES, bundled_models, find_model, summarise
from captioner.model.checkpoint import load_checkpoint
from captioner.model.confidence import CONFIDENCE, read_calibration

MODELS = bundled_models()
LARGEST = 60e6  # bytes
TOGETHER = 100e6
PHOTOGRAPHS = ROOT / "experiments" / "results" / "photographs.md"
EVALUATION = ROOT / "captioner" / "evaluation" / "README.md"
# The data set of a model, and how many test images of it the scores are on, and validation images its confidence.
CALIBRATED = {"coco": ("coco (Karpathy)", 4392), "flickr8k": ("Flickr8k", 1000)}
TESTED = {"coco": ("coco (Karpathy)", 4406), "flickr8k": ("Flickr8k", 1000)}
METRICS = {"BLEU-1": "bleu1", "BLEU-2": "bleu2", "BLEU-3": "bleu3", "BLEU-4": "bleu4", "METEOR": "meteor",
           "ROUGE-L": "rouge_l", "CIDEr-D": "cider"}  # fmt: skip


@cache
def load_once(name: str) -> Captioner:
    return load(name)


def scores_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PRETRAINED / name / SCORES).read_text())
    return found


def test_the_models_that_come_with_the_package() -> None:
    assert MODELS == ["coco-best", "coco-fast", "flickr8k-hard", "flickr8k-soft"]
    assert find_model() == PRETRAINED / DEFAULT
    assert sum(path.stat().st_size for path in PRETRAINED.rglob("*") if path.is_file()) <= TOGETHER


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_small_and_holds_nothing_of_the_machine_it_was_trained_on(name: str) -> None:
    assert summarise(PRETRAINED / name).size <= LARGEST
    for path in (PRETRAINED / name).iterdir():
        if path.suffix != ".safetensors":
            assert not re.search(r"(?<![\w.:/])/(home|work|tmp|root|mnt)\b", path.read_text()), path
    manifest = load_checkpoint(PRETRAINED / name)
    assert manifest.attention.mode == ("hard" if name.endswith("-hard") else "soft")
    assert (manifest.encoder_weights is not None) == name.startswith("coco-")
    weights = [*manifest.weights.values(), *(manifest.encoder_weights or {}).values()]
    assert {weight.element_size() for weight in weights if weight.is_floating_point()} == {2}


@pytest.mark.parametrize("name", MODELS)
def test_a_card_has_the_scores_of_the_evaluation(name: str) -> None:
    card, found = (PRETRAINED / name / "README.md").read_text(), scores_of(name)
    protocol = found["protocol"]
    data, count = TESTED[name.partition("-")[0]]
    assert (protocol["data"], protocol["split"], protocol["images"]) == (data, "test", count)
    assert f"{count:,} " in card
    rows = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+ \([\d.]+ to [\d.]+\)) \|", card, re.MULTILINE))
    expected = {}
    for label, key in METRICS.items():
        low, high = found["intervals"][key]
        expected[label] = f"{found['scores'][key]:.1f} ({low:.1f} to {high:.1f})"
    assert rows == expected
    assert f"{found['diversity']['distinct']:,} distinct captions" in card
    for heading in ("Data", "Recipe", "Scores", "Limits", "Licence"):
        assert f"\n## {heading}" in card


@pytest.mark.parametrize("name", MODELS)
def test_the_readme_has_the_calibration_of_a_model(name: str) -> None:
    found = read_calibration(PRETRAINED / name / CONFIDENCE, load_checkpoint(PRETRAINED / name).digest)
    data, count = CALIBRATED[name.partition("-")[0]]
    assert (found.data, found.split, found.images, found.search) == (data, "val", count, CaptionOptions().identity())
    low, others = found.low.accepted, found.others.accepted
    assert low is not None
    assert others is not None
    assert low < 0.6 < others
    accepted = (low * found.low.images + others * found.others.images) / count
    shares = f"{accepted:.0%} | {found.low.images:,} | {low:.0%} | {others:.0%} | {found.error:.3f} |"
    assert f"| {name} | {data} val ({count:,}) | {shares.replace('%', ' %')}\n" in EVALUATION.read_text()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_captions_the_examples(name: str) -> None:
    paths = sorted(EXAMPLES.glob("*.jpg"))
    texts = {path.stem: caption.text for path, caption in zip(paths, load_once(name).caption(paths), strict=True)}
    assert len(set(texts.values())) == len(texts)
    assert all(4 <= len(text.split()) <= 20 for text in texts.values())
    assert re.search(r"\bman\b", texts["photographer"])


def test_the_page_of_photographs_leaves_nothing_out() -> None:
    page = PHOTOGRAPHS.read_text()
    rows = re.findall(r"^\| ([\w-]+\.jpg) \| (.*?)(?: ✓)? \| (.*?)(?: ✓)? \|$", page, re.MULTILINE)
    paths = [*sorted(EXAMPLES.glob("*.jpg")), *sorted((ROOT / "data" / "photographs").glob("*.jpg"))]
    # In single precision, which every CPU has.
    models = (load(name, engine="onnx") for name in ("coco-best", "coco-fast"))
    best, fast = ([caption.text for caption in model.caption(paths)] for model in models)
    assert rows == list(zip([path.name for path in paths], best, fast, strict=True))


def test_the_speed_of_every_model_was_measured() -> None:
    speeds = [summarise(PRETRAINED / name).speed for name in MODELS]
    assert all(speed is not None and 0 < speed <= 1 for speed in speeds)
    assert 1.0 in speeds


@pytest.mark.parametrize(
    ("name", "variable", "split"),
    [(name, "CAPTIONER_FLICKR8K", "test") for name in MODELS if name.startswith("flickr8k-")]
    + [(name, "CAPTIONER_COCO", "val") for name in MODELS if name.startswith("coco-")],
)
def test_a_model_says_of_images_what_its_scores_promise(name: str, variable: str, split: str) -> None:
    if variable not in os.environ:
        pytest.skip(f"{variable} names no data set")
    images = load_dataset(Path(os.environ[variable])).split(split)
    images = images[:: max(1, len(images) // 50)]
    texts = [caption.text for caption in load_once(name).caption([image.path for image in images])]
    references = [[" ".join(words) for words in image.tokenized()] for image in images]
    assert 100 * bleu(texts, references).corpus[0] > scores_of(name)["scores"]["bleu1"] - 8  # fifty images are few
    assert len(set(texts)) > 0.8 * len(texts)
