from __future__ import annotations

import hashlib
import json
import math
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import timm
import torch
from helpers.toy_checkpoints import IDENTITY, VOCABULARY, assert_equal, make_checkpoint, make_training
from torch import Tensor

import captioner.processes
from captioner import __version__
from captioner.datasets.vocabulary import Vocabulary
from captioner.files import digest
from captioner.model.checkpoint import (
    Checkpoint,
    TrainingState,
    load_checkpoint,
    load_training_state,
    save_checkpoint,
    to_half,
)
from captioner.model.checkpoint_files import deserialise
from captioner.model.config import MODES, EncoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.encoders import backbones
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.export import export_model

# The settings of the first version.
FIRST_ATTENTION = "mode score width expected window temperature final_temperature inference heads feed"
FIRST_DECODER = "embedding hidden regions normalise gate deep_output tied dropout region_dropout"


@pytest.mark.parametrize("tied", [True, False])
def test_comes_back_as_it_was(tmp_path: Path, tied: bool) -> None:
    saved, training = make_checkpoint(tied=tied), make_training()
    save_checkpoint(tmp_path / "runs" / "best", saved, training)
    loaded = load_checkpoint(str(tmp_path / "runs" / "best"))
    for name in (
        "encoder",
        "encoder_identity",
        "attention",
        "decoder",
        "vocabulary",
        "metrics",
        "settings",
        "progress",
    ):
        assert getattr(loaded, name) == getattr(saved, name), name
    assert_equal(loaded.weights, saved.weights)
    assert loaded.encoder_weights is None
    assert loaded.digest == saved.digest
    state = load_training_state(tmp_path / "runs" / "best")
    assert state is not None
    assert_equal(state.tensors, training.tensors)
    assert state.values == training.values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [True, False])
def test_says_the_same_after_loading(tmp_path: Path, mode: str, tied: bool) -> None:
    checkpoint = make_checkpoint(mode=mode, tied=tied)
    decoder = make_decoder(checkpoint.decoder, checkpoint.attention, len(VOCABULARY), 6, (2, 2))
    decoder.load_state_dict(checkpoint.weights)
    save_checkpoint(tmp_path, checkpoint)
    before = torch.get_rng_state()
    rebuilt = load_checkpoint(tmp_path).build_decoder()
    assert torch.equal(torch.get_rng_state(), before)
    assert not rebuilt.training
    assert {parameter.dtype for parameter in rebuilt.parameters()} == {torch.float32}
    assert (rebuilt.output.weight is rebuilt.embedding.weight) == tied
    regions, captions = torch.randn(2, 4, 6), torch.randint(len(VOCABULARY), (2, 3, 5))  # (B, L, D), (B, N, T + 1)
    assert torch.equal(rebuilt(regions, captions).logits, decoder.eval()(regions, captions).logits)


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        save_checkpoint(tmp_path / str(tied), make_checkpoint(tied=tied))
        (path,) = (tmp_path / str(tied)).glob("decoder-*")
        sizes[tied] = sum(tensor.numel() for tensor in deserialise(path.read_bytes())[0].values())
    assert sizes[False] - sizes[True] == len(VOCABULARY) * 4


def test_manifest_is_plain_json(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint())

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    manifest = json.loads((tmp_path / "checkpoint.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert manifest["format"] == 1
    assert manifest["captioner"] == __version__
    assert manifest["decoder"] == asdict(make_checkpoint().decoder)
    (path,) = tmp_path.glob("*.safetensors")
    assert manifest["files"] == {
        "decoder": {"name": path.name, "bytes": path.stat().st_size, "digest": digest(path)},
    }
    assert path.name == f"decoder-{digest(path)[:12]}.safetensors"


def test_digest_tells_models_apart() -> None:
    model = make_checkpoint()
    same = [make_checkpoint(), replace(model, metrics={}, settings={}, progress={"epoch": 9})]
    same.append(replace(model, weights={name: weight.clone() for name, weight in model.weights.items()}))
    assert {each.digest for each in same} == {model.digest}
    other_word = Vocabulary((*VOCABULARY.entries[:-1], "cat"))
    others = [
        make_checkpoint(seed=1),
        replace(model, vocabulary=other_word),
        replace(model, attention=replace(model.attention, mode="hard")),
        replace(model, decoder=replace(model.decoder, dropout=0.1)),
        replace(model, encoder_identity={**IDENTITY, "weights": "fedcba9876543210"}),
        to_half(model),
    ]
    assert len({model.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_the_digest_is_that_of_versions_before_a_setting_was_added() -> None:
    """Records and results name a model by its digest: a version that knows more must not call it something else."""
    model = make_checkpoint()
    settings = [
        {name: getattr(model.attention, name) for name in FIRST_ATTENTION.split()},
        {name: getattr(model.decoder, name) for name in FIRST_DECODER.split()},
    ]
    before = [model.encoder_identity, *settings, model.vocabulary.to_dict()]
    contents = hashlib.blake2b(json.dumps(before, sort_keys=True).encode(), digest_size=8)
    for name, weight in sorted(model.distinct_weights.items()):
        contents.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode() + weight.numpy().tobytes())
    assert model.digest == contents.hexdigest()


def test_half_precision_is_half_the_size(tmp_path: Path) -> None:
    model = make_checkpoint()
    save_checkpoint(tmp_path, to_half(model))
    loaded = load_checkpoint(tmp_path)
    assert {weight.dtype for weight in loaded.weights.values()} == {torch.float16}
    assert_equal(loaded.weights, {name: weight.half() for name, weight in model.weights.items()})
    decoder = loaded.build_decoder()
    assert {parameter.dtype for parameter in decoder.parameters()} == {torch.float32}
    assert_equal(decoder.state_dict(), {name: weight.half().float() for name, weight in model.weights.items()})
    large = {**model.weights, "output.bias": torch.full_like(model.weights["output.bias"], -1e5)}
    with pytest.raises(ValueError, match=r"^weight output.bias reaches 1e\+05, too much for half precision$"):
        to_half(replace(model, weights=large))


def with_encoder(
    encoder: Encoder, weights: dict[str, Tensor] | None, config: EncoderConfig | None = None
) -> Checkpoint:
    """A toy model on a real encoder."""
    identity = encoder.identity()
    model = make_checkpoint()
    decoder = make_decoder(model.decoder, model.attention, len(VOCABULARY), identity["dimensions"], encoder.grid)
    return replace(
        model,
        encoder=config or model.encoder,
        encoder_identity=identity,
        weights=decoder.state_dict(),
        encoder_weights=weights,
    )


def test_finds_its_encoder(lite0: Encoder, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, with_encoder(lite0, None))
    assert list(tmp_path.glob("encoder-*")) == []
    rebuilt = load_checkpoint(tmp_path).build_encoder()
    assert rebuilt.identity() == lite0.identity()
    assert rebuilt.classifier is not None


@pytest.mark.parametrize("half", [False, True])
def test_carries_a_fine_tuned_encoder(tmp_path: Path, half: bool) -> None:
    torch.manual_seed(0)
    encoder = load_encoder(EncoderConfig("efficientnet-lite0", size=64, weights="random"))
    model = with_encoder(encoder, encoder.trunk.state_dict(), EncoderConfig("efficientnet-lite0", size=64))
    save_checkpoint(tmp_path, to_half(model) if half else model)
    before = torch.get_rng_state()
    loaded = load_checkpoint(tmp_path)
    rebuilt = loaded.build_encoder()
    assert torch.equal(torch.get_rng_state(), before)
    assert rebuilt.frozen
    assert rebuilt.classifier is None
    assert (rebuilt.identity() == encoder.identity()) is not half
    images = torch.randint(256, (1, 3, 64, 64), dtype=torch.uint8)  # (B, 3, S, S)
    torch.testing.assert_close(
        rebuilt(images), encoder(images), rtol=0, atol=0.05 * encoder(images).abs().max().item() if half else 0
    )


def test_refuses_another_encoder_than_it_was_trained_on(lite0: Encoder) -> None:
    model = with_encoder(lite0, None)
    strange = replace(model, encoder_identity={**model.encoder_identity, "weights": "0123456789abcdef"})
    with pytest.raises(ValueError, match=r"^efficientnet-lite0 on this machine has other weights .*0123456789abcdef"):
        strange.build_encoder()
    larger = replace(model, encoder=replace(model.encoder, size=96))
    with pytest.raises(ValueError, match=r"has other grid \(\[3, 3\]\) than .* trained on \(\[2, 2\]\)$"):
        larger.build_encoder()
    unfit = replace(model, encoder_weights={"0.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"^the weights do not fit the encoder .*: it has no 0\.weight$"):
        unfit.build_encoder()


def test_refuses_a_random_encoder_that_would_be_lost() -> None:
    with pytest.raises(ValueError, match=r"^encoder weights is 'random'.* give encoder_weights as well$"):
        make_checkpoint(encoder=EncoderConfig("efficientnet-lite0", weights="random"))
    with pytest.raises(ValueError, match=r"^encoder weights is 'my\.safetensors'.* give encoder_weights as well$"):
        make_checkpoint(encoder=EncoderConfig("efficientnet-lite0", weights="my.safetensors"))


@pytest.mark.parametrize("weights", ["imagenet", "gone/my.safetensors"])
def test_carries_an_encoder_that_pip_does_not_install(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = EncoderConfig("tinyvit-5m", size=64, layer="stride16+32", weights="random")
    encoder = load_encoder(config)
    model = with_encoder(encoder, encoder.trunk.state_dict(), replace(config, weights=weights))
    export_model(model, tmp_path)
    monkeypatch.setattr(backbones, "import_module", lambda name: pytest.fail(f"{name} was asked for"))
    loaded = load_checkpoint(tmp_path)
    assert loaded.encoder.weights in ("imagenet", "my.safetensors")  # without the folder
    assert loaded.encoder_weights is not None
    assert all(value.dtype == torch.float16 for value in loaded.encoder_weights.values())
    assert loaded.build_encoder().dimensions == 480


def test_nan_and_infinity_in_a_training_state(tmp_path: Path) -> None:
    values = {"loss": math.nan, "best": [-math.inf, math.inf], "rates": [5e-324, 1 / 3, 1.7976931348623157e308, -0.0]}
    save_checkpoint(tmp_path, make_checkpoint(), TrainingState({}, values))
    state = load_training_state(tmp_path)
    assert state is not None
    assert state.tensors == {}
    assert repr(state.values) == repr(values)


def test_refuses_tied_weights_that_differ() -> None:
    model = make_checkpoint()
    loose = {**model.weights, "output.weight": model.weights["output.weight"] + 1}
    with pytest.raises(ValueError, match=r"^decoder weights embedding.weight and output.weight are tied, but not the"):
        replace(model, weights=loose)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("timm/resnet18", "the model hub"),
        ("tinyvit-5m", r"the model hub \(timm/tiny_vit"),
        ("dinov2-small", r"the model hub \(timm/vit_small"),
        ("resnet18", r"https://download\.pytorch\.org/models/resnet18-"),
    ],
)
def test_a_checkpoint_downloads_nothing_unless_the_user_allows_it(
    tmp_path: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    model = make_checkpoint(encoder=EncoderConfig(name, size=64))
    with pytest.raises(ValueError, match=f"the weights of {name} are not here .* from {place}.*--allow-download"):
        model.build_encoder()
    assert not asked


def test_an_encoder_that_cannot_be_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncoderConfig("timm/resnet50", size=64)
    created = []
    create = timm.create_model

    def build(*arguments: object, **settings: object) -> object:
        network = create(*arguments, **settings)
        created.append(next(network.parameters()).device.type)
        return network

    monkeypatch.setattr(timm, "create_model", build)
    few = make_checkpoint(encoder=config, encoder_weights={"conv1.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"^timm/resnet50 has 23,508,032 weights; there are 2 here$"):
        few.build_encoder()
    monkeypatch.setattr(captioner.processes, "available_memory", lambda: 10**8)
    with pytest.raises(ValueError, match=r"^timm/resnet50 needs 0\.2 GB of memory, and 0\.1 GB are free$"):
        load_encoder(replace(config, weights="random"))
    assert created == ["meta", "meta"]


def test_a_file_that_a_checkpoint_names_is_not_read(tmp_path: Path) -> None:
    stranger = EncoderConfig("efficientnet-lite0", size=64, weights=str(tmp_path / "secret.safetensors"))
    model = make_checkpoint(encoder=stranger, encoder_weights={"extra": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"^the weights do not fit the encoder efficientnet-lite0: .* is missing$"):
        model.build_encoder()
