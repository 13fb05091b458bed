from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from captioner.model.config import EncoderConfig
from captioner.model.encoders import dinov2
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine


def make_encoder(size: int, layer: str = "stride28+class") -> Encoder:
    """Return an encoder with random weights, its class token and scales too."""
    torch.manual_seed(0)
    encoder = load_encoder(EncoderConfig("dinov2-small", size, layer, weights="random"))
    for name, value in encoder.trunk.state_dict().items():
        if name.endswith(("cls_token", "gamma", "bias")):
            nn.init.normal_(value)
    return encoder


def some_images(size: int, count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [56, 84, 518])
def test_equals_timm(size: int) -> None:
    torch.manual_seed(0)
    reference: nn.Module = timm.create_model(
        "vit_small_patch14_dinov2", pretrained=False, num_classes=0, img_size=518, dynamic_img_size=True
    ).eval()
    for name, value in reference.state_dict().items():
        if name.endswith(("gamma", "bias", "cls_token", "pos_embed")):
            nn.init.normal_(value, std=0.5)
    trunk = dinov2.build_trunk("stride14+class").eval()
    trunk.load_state_dict(dinov2.convert(reference.state_dict(), "stride14+class"))
    images = torch.randn(1, 3, size, size)
    side = size // 14
    with torch.inference_mode():
        tokens = reference.forward_features(images)  # (B, 1 + P, 384)
        found = trunk(images)  # (B, 768, side, side)
    torch.testing.assert_close(found[:, :384].flatten(2).transpose(1, 2), tokens[:, 1:], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        found[:, 384:], tokens[:, 0, :, None, None].expand(-1, -1, side, side), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    ("layer", "grid", "dimensions"),
    [
        ("stride14", (4, 4), 384),
        ("stride28", (2, 2), 384),
        ("stride14+class", (4, 4), 768),
        ("stride28+class", (2, 2), 768),
    ],
)
def test_shapes(layer: str, grid: tuple[int, int], dimensions: int) -> None:
    encoder = make_encoder(56, layer)
    assert (encoder.grid, encoder.dimensions, encoder.layer) == (grid, dimensions, layer)
    assert encoder(some_images(56)).shape == (2, grid[0] * grid[1], dimensions)


def test_levels_are_made_of_the_patches() -> None:
    images = some_images(56)
    patches, joined = make_encoder(56, "stride14+class"), make_encoder(56, "stride28+class")
    assert patches.fingerprint() == joined.fingerprint()
    fine, coarse = patches(images).unflatten(1, (4, 4)), joined(images).unflatten(1, (2, 2))
    torch.testing.assert_close(coarse[:, 0, 1, :384], fine[:, :2, 2:, :384].mean((1, 2)))
    torch.testing.assert_close(coarse[:, 1, 1, 384:], fine[:, 0, 0, 384:])


@pytest.mark.parametrize("layer", ["stride14", "stride28+class"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_upper_after_lower_is_the_whole(layer: str, blocks: int) -> None:
    encoder = make_encoder(56, layer)
    images = some_images(56)
    lower = encoder.lower(blocks)
    assert lower.grid == (1, 17)  # the class token and sixteen patches
    features = lower(images).transpose(1, 2).reshape(2, 384, *lower.grid)
    finished = encoder.upper(blocks)(features).flatten(2).transpose(1, 2)
    torch.testing.assert_close(finished, encoder(images))


@pytest.mark.parametrize("layer", dinov2.LEVELS)
def test_onnx_equals_torch(layer: str) -> None:
    encoder = make_encoder(56, layer)
    pixels = some_images(56, 3).permute(0, 2, 3, 1).contiguous().numpy()
    for each in (encoder, encoder.lower(3)):
        expected = make_engine(each, "torch")(pixels)
        assert expected.std() > 0.1
        np.testing.assert_allclose(make_engine(each, "onnx")(pixels), expected, atol=1e-3, rtol=0)


def test_positions_are_resampled() -> None:
    patches = dinov2.Patches()
    rows = torch.linspace(0, 1, 37)[:, None, None].expand(37, 37, dinov2.WIDTH)
    patches.pos_embed.data[0, 1:] = rows.reshape(-1, dinov2.WIDTH)
    _, stored = patches.positions(37)
    torch.testing.assert_close(stored[0], rows.reshape(-1, dinov2.WIDTH))
    _, fewer = patches.positions(4)
    ramp = fewer[0].view(4, 4, dinov2.WIDTH)
    assert (ramp[1:] > ramp[:-1]).all()
    torch.testing.assert_close(ramp[:, 0], ramp[:, 3])


@pytest.mark.parametrize(
    ("size", "layer", "message"),
    [
        (57, "stride14", "size is 57; dinov2-small needs a multiple of 14, such as 56"),
        (70, "stride28", "size is 70; dinov2-small at stride28 needs a multiple of 28, such as 84"),
        (56, "stride16", "dinov2-small has no layer stride16; choose from stride14"),
    ],
)
def test_sizes_and_levels_that_do_not_fit(size: int, layer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_encoder(size, layer)
