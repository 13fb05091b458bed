"""Captions are the same whichever library computes the products."""

from __future__ import annotations

import pytest
import torch

from captioner.model.bundled import find_model
from captioner.model.checkpoint import load_checkpoint
from captioner.model.kernels import products
from captioner.model.search.beam import Hypothesis, search
from captioner.model.search_settings import SearchConfig

IMAGES = 48


@pytest.mark.parametrize("name", ["coco-best", "flickr8k-hard"])
def test_captions_are_the_same_by_either_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no such product")
    checkpoint = load_checkpoint(find_model(name))
    decoder = checkpoint.build_decoder()
    rows, columns = checkpoint.encoder_identity["grid"]
    width = checkpoint.encoder_identity["dimensions"]
    # Each image has a mean of its own, which its regions differ from, as those of photographs do.
    torch.manual_seed(0)
    regions = torch.randn(IMAGES, 1, width) + torch.randn(IMAGES, rows * columns, width)  # (B, L, D)
    found: list[list[Hypothesis]] = []
    for onednn in (True, False):
        monkeypatch.setattr(products, "prefers_onednn", lambda onednn=onednn: onednn)
        found.append([best for (best,) in search(decoder, regions, SearchConfig())])
    assert len({hypothesis.ids for hypothesis in found[0]}) > IMAGES // 4
    for ours, plain in zip(*found, strict=True):
        assert ours.ids == plain.ids
        torch.testing.assert_close(ours.probabilities, plain.probabilities, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.alpha, plain.alpha, rtol=1e-4, atol=1e-5)
        assert ours.log_prob == pytest.approx(plain.log_prob, rel=1e-4)
