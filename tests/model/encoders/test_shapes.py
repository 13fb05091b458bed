from __future__ import annotations

import pytest
import torch
from torch import nn

from captioner.model.encoders import dinov2, efficientnet_lite, shapes, tiny_vit
from captioner.model.encoders.shapes import output_shape, probe

TRUNKS = {
    **{name: (efficientnet_lite.EfficientNetLite(name).features, (32, 64, 131)) for name in efficientnet_lite.VARIANTS},
    **{f"tinyvit {level}": (tiny_vit.build_trunk(level), (64, 200, 224)) for level in tiny_vit.LEVELS},
    **{f"dinov2 {level}": (dinov2.build_trunk(level), (28, 56)) for level in dinov2.LEVELS},
}


@pytest.mark.parametrize("name", TRUNKS)
def test_arithmetic_equals_running_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, sizes = TRUNKS[name]
    expected = {size: probe(trunk, (3, size, size)) for size in sizes}
    cut = probe(trunk[:-2], (3, sizes[0], sizes[0]))
    monkeypatch.setattr(shapes, "probe", lambda *_: pytest.fail("the network was run"))
    assert {size: output_shape(trunk, (3, size, size)) for size in sizes} == expected
    assert output_shape(trunk[:-2], (3, sizes[0], sizes[0])) == cut


def test_networks_without_rules_are_run() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.MaxPool2d(2))
    assert output_shape(network, (3, 20, 31)) == tuple(network(torch.zeros(1, 3, 20, 31)).shape[1:])


@pytest.mark.parametrize(("size", "layer"), [(30, "stride14"), (42, "stride28")])
def test_sizes_that_do_not_fit_are_said(size: int, layer: str) -> None:
    with pytest.raises(ValueError, match=f"size is {size}; dinov2-small"):
        output_shape(dinov2.build_trunk(layer), (3, size, size))
