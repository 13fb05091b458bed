"""Captions with the weights of every layer and head: in Python, in records, and of a text of one's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_captioner import TRANSFORMER, make_toy, write_images
from helpers.toy_captions import GRID, SIDE, caption_of

from captioner.captioning.caption import Caption
from captioner.captioning.captioner import Captioner
from captioner.captioning.recorded_captions import recorded_captions
from captioner.captioning.records import Origin, caption_record, to_line
from captioner.captioning.teacher_forcing import force_images
from captioner.images.preprocessing import Preprocessing
from captioner.images.sources import Source
from captioner.model.encoders.encoder import Encoder

ORIGIN = Origin("model", {"beam": 5}, attention=True, heads=True)


@pytest.fixture(scope="module")
def model(lite0: Encoder) -> Captioner:
    return Captioner(make_toy(lite0, 2, TRANSFORMER), device="cpu")


def make_caption(words: int = 3) -> Caption:
    chance = np.random.default_rng(0)
    heads = chance.dirichlet(np.full(63, 0.3), (words, 2, 4)).reshape(words, 2, 4, *GRID).astype(np.float32)
    caption = caption_of(heads[:, -1].mean(axis=1), Preprocessing(SIDE).geometry(300, 200))
    return replace(caption, heads=heads)


def test_attention_is_the_mean_over_the_last_layers_heads(model: Captioner, tmp_path: Path) -> None:
    found = model.caption(write_images(tmp_path, 3), n_best=2, heads=True)
    lengths = set()
    for captions in found:
        assert len(captions) == 2
        for caption in captions:
            assert caption.heads is not None
            assert caption.heads.shape == (len(caption.words), 2, 3, 2, 2)
            assert caption.heads[:, -1].mean(axis=1) == pytest.approx(caption.attention, abs=1e-5)
            lengths.add(len(caption.words))
    assert len(lengths) > 1, "all captions are of one length"


def test_nobody_pays_for_heads_unasked(model: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (image,) = write_images(tmp_path, 1)
    asked = model.caption(image, heads=True)
    monkeypatch.setattr(model.decoder, "all_looks", None)
    plain = model.caption(image)
    assert plain.heads is None
    assert (plain.text, plain.attention.tolist()) == (asked.text, asked.attention.tolist())


def test_of_a_text_of_ones_own(model: Captioner, tmp_path: Path) -> None:
    (image,) = write_images(tmp_path, 1)
    (result,) = force_images(model, [Source("x", image)], "a dog runs on the beach", heads=True)
    (caption,) = result.captions
    assert caption.heads is not None
    assert caption.heads[:, -1].mean(axis=1) == pytest.approx(caption.attention, abs=1e-5)


def test_records_give_them_back() -> None:
    caption = make_caption()
    record = json.loads(to_line(caption_record("a.jpg", [caption, caption], ORIGIN)))
    for found in recorded_captions(record):
        assert found.heads == pytest.approx(caption.heads, abs=1e-5)
    assert ORIGIN.difference({**record, "model": "model"}) is None
    del record["heads"]
    assert ORIGIN.difference(record) == "without heads"
    assert recorded_captions(record)[0].heads is None


def test_a_caption_without_words_has_been_looked_for_too() -> None:
    empty = replace(make_caption(0), words=(), text="")
    record = json.loads(to_line(caption_record("a.jpg", [empty], ORIGIN)))
    assert ORIGIN.difference(record) is None
    assert recorded_captions(record)[0].words == ()


def test_wrong_shapes_and_sums_are_refused() -> None:
    caption = make_caption()
    assert caption.heads is not None
    with pytest.raises(ValueError, match=r"^heads has the shape \(3, 2, 4, 7, 8\); attention of \(3, 7, 9\) needs"):
        replace(caption, heads=caption.heads[..., :-1])
    with pytest.raises(ValueError, match=r"^heads has the shape \(2, 2, 4, 7, 9\)"):
        replace(caption, heads=caption.heads[:2])
    with pytest.raises(ValueError, match=r"^heads sums to"):
        replace(caption, heads=caption.heads * 0.5)
