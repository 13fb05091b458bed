"""A text that a model is made to say: the looks and probabilities are those it would have been found with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy_captioner import VOCABULARY, make_toy, write_images

from captioner.captioning.captioner import Captioner
from captioner.captioning.teacher_forcing import force_caption, force_images, unknown_words
from captioner.images.sources import Source
from captioner.model.encoders.encoder import Encoder


@pytest.fixture(scope="module")
def model(lite0: Encoder) -> Captioner:
    return Captioner(make_toy(lite0), device="cpu")


def test_what_the_model_said_itself_is_forced_to_the_same(model: Captioner, tmp_path: Path) -> None:
    paths = write_images(tmp_path, 4)
    for path in paths:
        expected = model.caption(path)
        (result,) = force_images(model, [Source(path.name, path)], expected.text)
        (found,) = result.captions
        assert found.words == expected.words
        assert found.text == expected.text
        assert found.geometry == expected.geometry
        assert found.probabilities == pytest.approx(expected.probabilities, rel=1e-4)
        assert found.attention == pytest.approx(expected.attention, abs=1e-5)
        assert found.beta == pytest.approx(expected.beta, rel=1e-4)
        assert found.log_prob == pytest.approx(expected.log_prob, rel=1e-4)


def test_unknown_words_are_named_and_cannot_be_said(model: Captioner, tmp_path: Path) -> None:
    assert unknown_words(VOCABULARY, "A zebra's dog, a zebra and <unk>") == ["zebra", "and", "unk"]
    assert unknown_words(VOCABULARY, "the man's dog") == []
    (path,) = write_images(tmp_path, 1)
    (result,) = force_images(model, [Source("x", path)], "a zebra runs")
    (caption,) = result.captions
    assert caption.words == ("a", "zebra", "runs")
    assert caption.probabilities[1] == 0
    assert caption.probabilities[0] > 0
    assert np.isfinite(caption.log_prob)


def test_a_look_depends_on_the_words_before_alone(model: Captioner) -> None:
    width = model.decoder.project[0].in_features
    regions = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0))  # (1, L, D)
    geometry = model.preprocessing.geometry(40, 32)
    first, second = (
        force_caption(model.decoder, model.vocabulary, regions, geometry, model.grid, text)
        for text in ("a dog runs", "a dog on the beach")
    )
    assert first.attention[:3] == pytest.approx(second.attention[:3], abs=1e-6)
    assert first.probabilities[:2] == pytest.approx(second.probabilities[:2], rel=1e-5)
    assert first.probabilities[2] != pytest.approx(second.probabilities[2], rel=1e-3)


def test_bad_images_are_reported_and_texts_without_words_refused(model: Captioner, tmp_path: Path) -> None:
    good, bad = write_images(tmp_path, 2)
    bad.write_bytes(b"junk")
    results = list(force_images(model, [Source(path.name, path) for path in (bad, good)], "a dog"))
    assert [result.error is None for result in results] == [False, True]
    assert "not one of JPEG" in str(results[0].error)
    with pytest.raises(ValueError, match=r"the caption '\?!' has no words"):
        list(force_images(model, [Source(good.name, good)], "?!"))
