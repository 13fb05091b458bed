from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from captioner.model.config import EncoderConfig
from captioner.model.encoders import backbones, tiny_vit
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine


def lively_reference(windows: tuple[int, ...] = (7, 7, 14, 7)) -> nn.Module:
    """Return timm's network with weights that leave nothing at zero or one."""
    torch.manual_seed(0)
    reference: nn.Module = timm.create_model("tiny_vit_5m_224", pretrained=False, window_sizes=windows).eval()
    for name, value in reference.state_dict().items():
        if name.endswith(("attention_biases", "bn.bias", "running_mean")):
            nn.init.normal_(value)
        elif name.endswith(("bn.weight", "running_var")):
            nn.init.uniform_(value, 0.5, 1.5)
    return reference


def make_encoder(size: int, layer: str = "stride16+32") -> Encoder:
    """Return an encoder with random weights, its position biases too."""
    torch.manual_seed(0)
    encoder = load_encoder(EncoderConfig("tinyvit-5m", size, layer, weights="random"))
    for name, value in encoder.trunk.state_dict().items():
        if name.endswith("attention_biases"):
            nn.init.normal_(value)
    return encoder


def some_images(size: int, count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [224, 96, 90])
def test_equals_timm(size: int) -> None:
    # Windows grow with the image: timm's are given the sides that ours have, and biases are copied as they are.
    grids = [-(-size // stride) for stride in (8, 16, 32)]
    sides = [-(-grid // count) for grid, (_, _, _, count) in zip(grids, tiny_vit.STAGES, strict=True)]
    reference = lively_reference((7, *sides))
    trunk = tiny_vit.build_trunk("stride32").eval()
    for name, module in trunk.named_modules():
        if isinstance(module, tiny_vit.WindowAttention):
            side = sides[{128: 0, 160: 1, 320: 2}[module.proj.out_features]]
            module.window, module.attention_biases = side, nn.Parameter(torch.zeros(module.heads, side * side))
            assert name
    trunk.load_state_dict(tiny_vit.convert(reference.state_dict(), "stride32"))
    images = torch.randn(1, 3, size, size)
    with torch.inference_mode():
        expected = reference.forward_features(images)
        torch.testing.assert_close(trunk(images), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "layer", "grid", "dimensions"),
    [
        (224, "stride16", (14, 14), 160),
        (224, "stride32", (7, 7), 320),
        (96, "stride16+32", (3, 3), 480),
        (80, "stride16+32", (3, 3), 480),
        (40, "stride16", (3, 3), 160),
    ],
)
def test_shapes(size: int, layer: str, grid: tuple[int, int], dimensions: int) -> None:
    encoder = make_encoder(size, layer)
    assert (encoder.grid, encoder.dimensions, encoder.layer) == (grid, dimensions, layer)
    assert encoder(some_images(size)).shape == (2, grid[0] * grid[1], dimensions)


@pytest.mark.parametrize("size", [96, 80])
def test_joined_levels_are_the_levels(size: int) -> None:
    joined = make_encoder(size)
    weights = joined.trunk.state_dict()
    images = some_images(size).float()
    levels = []
    for layer in ("stride16", "stride32"):
        trunk = tiny_vit.build_trunk(layer).eval()
        trunk.load_state_dict({name: value for name, value in weights.items() if name in trunk.state_dict()})
        levels.append(trunk(images))
    fine, coarse = levels
    found = joined.trunk(images)  # (B, 480, 3, 3)
    torch.testing.assert_close(found[:, 160:], coarse)
    torch.testing.assert_close(found[:, :160, 0, 1], fine[:, :, 0:2, 2:4].mean((2, 3)))
    # At 80 pixels the finer map has five rows: the last average is of the one that is left.
    torch.testing.assert_close(found[:, :160, 2, 2], fine[:, :, 4:, 4:].mean((2, 3)))


@pytest.mark.parametrize("layer", tiny_vit.LEVELS)
@pytest.mark.parametrize("blocks", [1, 3, 9])
def test_upper_after_lower_is_the_whole(layer: str, blocks: int) -> None:
    encoder = make_encoder(96, layer)
    images = some_images(96)
    lower = encoder.lower(blocks)
    regions = lower(images)  # (B, l, d)
    features = regions.transpose(1, 2).reshape(2, lower.dimensions, *lower.grid)
    finished = encoder.upper(blocks)(features).flatten(2).transpose(1, 2)
    torch.testing.assert_close(finished, encoder(images))
    assert lower.layer == f"{layer}-before{blocks}"


@pytest.mark.parametrize("layer", tiny_vit.LEVELS)
@pytest.mark.parametrize("size", [96, 72])
def test_onnx_equals_torch(layer: str, size: int) -> None:
    encoder = make_encoder(size, layer)
    pixels = some_images(size, 3).permute(0, 2, 3, 1).contiguous().numpy()
    expected = make_engine(encoder, "torch")(pixels)
    found = make_engine(encoder, "onnx")(pixels)
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=0)
    lower = encoder.lower(2)
    np.testing.assert_allclose(make_engine(lower, "onnx")(pixels), make_engine(lower, "torch")(pixels), atol=1e-3)


def test_windows_are_apart_and_padded_with_zeros() -> None:
    torch.manual_seed(0)
    attention = tiny_vit.WindowAttention(8, heads=2, window=3, count=2).eval()
    nn.init.normal_(attention.attention_biases)
    features = torch.randn(1, 8, 5, 5)
    whole = attention(features)
    assert whole.shape == features.shape
    changed = features.clone()
    changed[:, 0, 4, 4] += 1  # in the window below to the right
    moved = (attention(changed) - whole).abs().amax(1)[0] > 0
    assert moved[3:, 3:].all()
    assert not moved[:3].any()
    assert not moved[:, :3].any()
    padded = attention(torch.nn.functional.pad(features, (0, 1, 0, 1)))
    torch.testing.assert_close(whole, padded[:, :, :5, :5])


def test_biases_follow_the_distance_of_cells() -> None:
    attention = tiny_vit.WindowAttention(4, heads=1, window=3, count=1)
    attention.attention_biases.data = torch.arange(9.0).view(1, 9)
    biases = attention.biases(3)[0]  # (N, N)
    assert biases[0].tolist() == list(range(9))  # from the first cell: rows apart * 3 + columns apart
    assert biases[4, 0] == biases[4, 8] == 4
    assert attention.biases(5).shape == (1, 25, 25)
    assert (attention.biases(5) == attention.biases(5).transpose(1, 2)).all()


def test_weights_of_a_file(tmp_path: Path) -> None:
    stored = lively_reference().state_dict()
    file = tmp_path / "tiny.safetensors"
    save_file({name: value.half() for name, value in stored.items()}, file)
    config = EncoderConfig("tinyvit-5m", 64, "stride16+32", weights=str(file))
    first, second = load_encoder(config), load_encoder(config)
    assert first.fingerprint() == second.fingerprint()
    # The trunk's own names, as a checkpoint has them, do as well.
    save_file(first.trunk.state_dict(), file)
    assert load_encoder(config).fingerprint() == first.fingerprint()
    # And older names of stages, without batch norms.
    folded = tiny_vit.fold_batch_norms({name: value.half().float() for name, value in stored.items()})
    save_file({name.replace("stages.", "stages_"): value.contiguous() for name, value in folded.items()}, file)
    torch.testing.assert_close(load_encoder(config).trunk.state_dict(), first.trunk.state_dict(), rtol=0.01, atol=0.01)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    config = EncoderConfig("tinyvit-5m", 64, weights=str(file))
    with pytest.raises(ValueError, match=re.escape(f"encoder weights: {file} is not there")):
        load_encoder(config)
    file.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"other\.safetensors cannot be read"):
        load_encoder(config)
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match=r"do not fit tinyvit-5m: Missing key\(s\)") as caught:
        load_encoder(config)
    assert "\n" not in str(caught.value)


def test_unknown_levels_name_the_choices() -> None:
    with pytest.raises(
        ValueError, match=r"tinyvit-5m has no layer stride8; choose from stride16, stride32, stride16\+32"
    ):
        load_encoder(EncoderConfig("tinyvit-5m", layer="stride8", weights="random"))
    with pytest.raises(ValueError, match=r"efficientnet-lite0 has no layer stride16\+32"):
        load_encoder(EncoderConfig("efficientnet-lite0", layer="stride16+32"))


@pytest.mark.parametrize(("name", "model"), [("tinyvit-5m", tiny_vit.HUB), ("dinov2-small", backbones.dinov2.HUB)])
def test_weights_of_the_hub(name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    create = timm.create_model

    def serve(model: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        assert pretrained
        asked.append(model)
        torch.manual_seed(0)
        network: nn.Module = create(model, pretrained=False, num_classes=num_classes)
        return network

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no network\nand a long story")

    def absent(module: str) -> None:
        raise ModuleNotFoundError(module)

    config = EncoderConfig(name, 56)
    monkeypatch.setattr(timm, "create_model", serve)
    assert load_encoder(config).fingerprint() == load_encoder(config).fingerprint()
    assert set(asked) == {model}
    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ValueError, match=r"model hub \(no network\); or name a file with encoder\.weights=FILE$"):
        load_encoder(config)
    monkeypatch.setattr(backbones, "import_module", absent)
    with pytest.raises(ValueError, match=rf"the weights of {name} need timm: pip install .*encoder\.weights=FILE$"):
        load_encoder(config)
