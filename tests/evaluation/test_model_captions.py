"""Captions of a split: made once, kept, read again; regions from a cache or not."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.awkward_images import resolutionless_jpeg
from helpers.toy_captioner import make_toy, write_images
from PIL import Image, UnidentifiedImageError

from captioner.captioning.captioner import Captioner
from captioner.captioning.options import make_options
from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.analysis.diagnostics import diagnose
from captioner.evaluation.model_captions import SplitCaptioner, caption_split, open_cache, read_captions
from captioner.model.checkpoint import Checkpoint
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.fill_cache import fill_cache
from captioner.model.encoders.region_cache import RegionCache

COUNT = 9
OPTIONS = make_options(beam=3)
DATA = {"data": "toy", "split": "val"}


@pytest.fixture(scope="module")
def checkpoint(lite0: Encoder) -> Checkpoint:
    return make_toy(lite0)


@pytest.fixture
def images(tmp_path: Path) -> list[CaptionedImage]:
    paths = write_images(tmp_path / "photos", COUNT)
    with Image.open(paths[0]) as upright:  # one that lies on its side
        tags = upright.getexif()
        tags[0x0112] = 6
        upright.save(paths[0], exif=tags)
    return [CaptionedImage(f"photos/{path.name}", path, path.name, "val", ("a",), None) for path in paths]


@pytest.fixture
def cache(images: list[CaptionedImage], lite0: Encoder, checkpoint: Checkpoint, tmp_path: Path) -> RegionCache:
    fill_cache(images[:5], tmp_path / "features", lite0, device="cpu")
    found = open_cache(tmp_path / "features", checkpoint.encoder_identity)
    assert found is not None
    return found


def caption(folder: Path, model: SplitCaptioner, images: list[CaptionedImage], **settings: Any) -> dict[str, Any]:
    caption_split(folder, model, images, settings.pop("options", OPTIONS), settings.pop("data", DATA), **settings)
    return read_captions(folder, images)


def test_a_cache_changes_nothing(
    tmp_path: Path, images: list[CaptionedImage], cache: RegionCache, checkpoint: Checkpoint
) -> None:
    plain = caption(tmp_path / "plain", SplitCaptioner(Captioner(checkpoint, device="cpu"), images), images)
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images, cache)
    encoded: list[int] = []
    engine = model._engine
    model._engine = lambda pixels: encoded.append(len(pixels)) or engine(pixels)  # type: ignore[func-returns-value]
    cached = caption(tmp_path / "cached", model, images[::-1])
    assert sum(encoded) == COUNT - 5
    assert set(plain) == {image.file_name for image in images}
    for name, expected in plain.items():
        found = cached[name]
        assert (found.text, found.words, found.geometry) == (expected.text, expected.words, expected.geometry)
        assert np.allclose(found.attention, expected.attention, atol=2e-5)
    assert plain["photos/0000.jpg"].geometry.width == 32
    assert len({each.text for each in plain.values()}) > 3


def test_the_record_gives_the_captions_back(
    tmp_path: Path, images: list[CaptionedImage], checkpoint: Checkpoint
) -> None:
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images)
    found = caption(tmp_path / "out", model, images)
    regions = model.encode([model.preprocessing.read(image.path) for image in images])
    geometries = [model.preprocessing.read(image.path).geometry for image in images]
    direct = model.find_captions(regions, geometries, OPTIONS, [0] * COUNT)
    for image, (expected,) in zip(images, direct, strict=True):
        own = found[image.file_name]
        assert (own.text, own.geometry, own.source) == (expected.text, expected.geometry, image.path)
        assert np.allclose(own.attention, expected.attention, atol=1e-5)
        assert np.allclose(own.probabilities, expected.probabilities, atol=1e-5)
        assert np.allclose(own.beta, expected.beta, atol=1e-5)
        assert own.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
    assert torch.equal(regions, regions.half().float())
    assert read_captions(tmp_path / "nowhere", images) == {}
    assert list(read_captions(tmp_path / "out", images[3:4])) == ["photos/0003.jpg"]


def test_a_caption_without_words_has_the_grid_of_the_others(
    tmp_path: Path, images: list[CaptionedImage], checkpoint: Checkpoint
) -> None:
    out = tmp_path / "out"
    before = caption(out, SplitCaptioner(Captioner(checkpoint, device="cpu"), images), images[:2])
    lines = [json.loads(line) for line in (out / "captions.jsonl").read_text().splitlines()]
    lines[0] |= {"text": "", "words": [], "probabilities": [], "attention": [], "beta": []}
    (out / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_captions(out, images)
    silent, other = (found[line["file_name"]] for line in lines)
    assert silent.attention.shape == (0, *other.attention.shape[1:])
    assert diagnose(list(found.values())).empty == 1
    assert list(found) == list(before)
    lines[1]["beta"] = [2.0] * len(lines[1]["words"])
    (out / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"captions.jsonl: {lines[1]['file_name']}: the record is damaged: "):
        read_captions(out, images)


def test_progress_is_that_of_the_own_share(
    tmp_path: Path, images: list[CaptionedImage], checkpoint: Checkpoint
) -> None:
    told: list[tuple[int, int]] = []
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images)
    caption(tmp_path / "out", model, images, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (COUNT, COUNT)
    assert {total for _, total in told} == {COUNT}


def test_a_file_that_has_changed_is_not_taken_from_the_cache(
    tmp_path: Path, images: list[CaptionedImage], cache: RegionCache, checkpoint: Checkpoint
) -> None:
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images, cache)
    assert model.preprocessing.read(images[1].path).pixels.size == 0
    os.utime(images[1].path, (1, 1))  # the contents are the same
    assert model.preprocessing.read(images[1].path).pixels.size == 0
    images[1].path.write_bytes(images[2].path.read_bytes())
    assert model.preprocessing.read(images[1].path).pixels.shape == (64, 64, 3)
    assert model.preprocessing.read(images[5].path).pixels.shape == (64, 64, 3)
    assert model.preprocessing.read(images[1].path.read_bytes()).pixels.shape == (64, 64, 3)
    mixed = model.encode([model.preprocessing.read(images[index].path) for index in (5, 3, 1, 0)])
    each = [model.encode([model.preprocessing.read(images[index].path)]) for index in (5, 3, 1, 0)]
    assert torch.equal(mixed, torch.cat(each))


def test_an_image_that_the_cache_accepts_is_accepted_here_too(
    tmp_path: Path, images: list[CaptionedImage], lite0: Encoder, checkpoint: Checkpoint
) -> None:
    photo = images[1].path
    photo.write_bytes(resolutionless_jpeg(photo.read_bytes()))
    with pytest.raises(UnidentifiedImageError), Image.open(photo):
        pass
    fill_cache(images, tmp_path / "features", lite0, device="cpu")
    cache = open_cache(tmp_path / "features", checkpoint.encoder_identity)
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images, cache)
    found = caption(tmp_path / "out", model, images)
    assert found[images[1].file_name].geometry == found[images[2].file_name].geometry


def test_only_a_cache_of_the_same_encoder_is_read(
    tmp_path: Path, images: list[CaptionedImage], cache: RegionCache, checkpoint: Checkpoint
) -> None:
    before = copy.deepcopy(checkpoint.encoder_identity)
    identity = {**before, "weights": "others"}
    assert open_cache(tmp_path / "features", identity) is None
    assert open_cache(tmp_path, checkpoint.encoder_identity) is None
    assert checkpoint.encoder_identity == before


def test_captions_of_other_data_or_search_are_refused_or_replaced(
    tmp_path: Path, images: list[CaptionedImage], checkpoint: Checkpoint
) -> None:
    model = SplitCaptioner(Captioner(checkpoint, device="cpu"), images)
    out = tmp_path / "out"
    caption(out, model, images[:4])
    record = (out / "captions.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"out has captions of other images \(data toy, split val\); name another"):
        caption(out, model, images, data={"data": "toy", "split": "test"})
    with pytest.raises(ValueError, match="has captions with beam 3, not 2"):
        caption(out, model, images, options=make_options(beam=2))
    assert (out / "captions.jsonl").read_bytes() == record
    caption(out, model, images[5:], data={"data": "other"}, existing="overwrite")
    names = [json.loads(line)["file_name"] for line in (out / "captions.jsonl").read_text().splitlines()]
    assert names == [image.file_name for image in images[5:]]
    assert json.loads((out / "data.json").read_text()) == {"data": "other"}
    (out / "data.json").unlink()
    with pytest.raises(ValueError, match=r"has captions of other images \(data unknown\)"):
        caption(out, model, images)
    (out / "data.json").write_text("{")
    with pytest.raises(ValueError, match=r"data\.json is damaged; remove"):
        caption(out, model, images)
