"""Settings as frozen dataclasses that check themselves; no torch here, so that commands can show defaults at once."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from captioner.datasets.annotations import shown
from captioner.images.preprocessing import FITS
from captioner.model.checks import (
    SettingError,
    check_choices,
    check_least,
    check_most,
    check_positive,
    check_shares,
    check_types,
)
from captioner.model.extensions import is_extension

WEIGHTS = ("imagenet", "random")  # or a file
IMPORTED = "imported/"  # before the name of regions that were imported
WEIGHTS_SUFFIX = ".safetensors"
MODES = ("soft", "hard", "gumbel", "local", "glimpse", "none")
SCORES = ("additive", "dot", "scaled-dot", "general", "concat", "cosine", "location")
INFERENCES = ("expectation", "argmax")
FEEDS = ("every-step", "first-step", "state", "feed-forward")
GATES = ("none", "scalar", "vector")
KINDS = ("lstm", "transformer")
POSITIONS = ("learned", "sinusoidal")  # of a transformer's words
ENGINES = ("auto", "int8", "onnx", "torch")  # what runs a frozen encoder
MOST_PIXELS = 1024  # of an encoder's side; recipes have 288 at most
WIDEST = 16_384  # numbers in a layer; recipes have 2,048 at most
# No colons and no paths: timm takes hf-hub:owner/name for a download, and local-dir:path for a folder.
ENCODER_NAME = re.compile(r"(timm/|imported/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def added(default: Any) -> Any:
    """Return a setting that older checkpoints do not have, with the value that they were made with."""
    return field(default=default, metadata={"added": True})


def telling_settings(config: AttentionConfig | DecoderConfig) -> dict[str, Any]:
    """Return the settings that tell models apart; those added later are among them only where they were changed.

    So a model is still the same to a version that has learned something new.
    """
    unchanged = {each.name for each in fields(config) if each.metadata.get("added")}
    unchanged -= {each.name for each in fields(config) if getattr(config, each.name) != each.default}
    return {name: value for name, value in asdict(config).items() if name not in unchanged}


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder, and how it sees its images; None leaves a setting as the encoder's weights want it.

    `layer` is "stride8", "stride16" or "stride32": the network's last layer with that many input pixels to a region.
    TinyViT and DINOv2 have layers of their own, such as "stride16+32" for two levels joined and "stride28+class" for
    patches beside the class token. `weights` are those it was published with ("imagenet", whatever it was trained on),
    "random", or a safetensors file.

    `fit` is "squash", "crop" or "pad", see `Preprocessing`. A `name` package.module:function is a function outside of
    this package that takes a stride, or None, and `weights`, and returns a `Backbone`; see
    `captioner.model.extensions`. A name imported/NAME stands for regions that `captioner features --import` has put
    into a cache; nothing else can then be set.
    """

    name: str = "efficientnet-lite2"
    size: int | None = None
    layer: str | None = None
    fit: str | None = None
    weights: str = "imagenet"

    def __post_init__(self) -> None:
        check_types("encoder", self)
        if not ENCODER_NAME.fullmatch(self.name) and not is_extension(self.name):
            choices = "see `captioner encoders`, or name one as timm/NAME or package.module:function"
            raise SettingError("encoder", "name", f"is {shown(self.name)}; {choices}")
        if self.size is not None and not 1 <= self.size <= MOST_PIXELS:
            raise SettingError("encoder", "size", f"is {shown(self.size)}; it must be from 1 to {MOST_PIXELS} pixels")
        if self.layer is not None and not re.fullmatch(r"stride[0-9]{1,4}(\+[a-z0-9]{1,9})?", self.layer):
            raise SettingError("encoder", "layer", f"is {self.layer!r}; choose from stride8, stride16, stride32")
        if self.fit is not None and self.fit not in FITS:
            raise SettingError("encoder", "fit", f"is {self.fit!r}; choose from {', '.join(FITS)}")
        if self.weights not in WEIGHTS and not self.weights.endswith(WEIGHTS_SUFFIX):
            choices = f"{', '.join(WEIGHTS)}, or name a {WEIGHTS_SUFFIX} file"
            raise SettingError("encoder", "weights", f"is {self.weights!r}; choose from {choices}")
        if self.is_imported and (self.size, self.layer, self.fit, self.weights) != (None, None, None, "imagenet"):
            raise SettingError(
                "encoder", "name", f"is {self.name!r}; imported regions have no size, layer, fit or weights"
            )

    @property
    def is_imported(self) -> bool:
        """Whether the regions come from a file and not from an encoder."""
        return self.name.startswith(IMPORTED)


@dataclass(frozen=True)
class AttentionConfig:
    """How the decoder attends to regions: where the weights come from, and what the context is made of.

    `width` is that of the space in which additive, concat and cosine scores compare. `expected` is the share of images
    of a training batch whose context is the expectation instead of a sample (hard). `window` is the standard deviation
    of the local mode's Gaussian in cells. The `temperature` of gumbel samples falls to `final_temperature` during the
    training. `inference` is what hard and gumbel modes do with the weights once trained. `heads` above 0 puts a
    self-attention layer over the regions first. `feed` is how the mean region reaches a decoder without attention
    (none): as the context of every step or of the first, as the initial state, or as the initial state through a small
    network.

    The glimpse mode rests on so many points for a word (`glimpses`), around each of which it reads a patch of `patch` x
    `patch` places at so many `scales`, 1, 2, 4, ... cells apart. In training points deviate from what the policy means
    by `deviation`, which falls to `final_deviation`; 1 is half the width of the image. It has no score.

    A `score` package.module:Class is a subclass of `Score` outside of this package, made of (region_width,
    hidden_width, width); see `captioner.model.extensions`.
    """

    mode: str = "soft"
    score: str = "additive"
    width: int = 512
    expected: float = 0.5
    window: float = 2.0
    temperature: float = 1.0
    final_temperature: float = 0.5
    inference: str = "expectation"
    heads: int = 0
    feed: str = "every-step"
    glimpses: int = added(1)
    scales: int = added(3)
    patch: int = added(3)
    deviation: float = added(0.3)
    final_deviation: float = added(0.1)

    def __post_init__(self) -> None:
        check_types("attention", self)
        check_choices("attention", self, mode=MODES, inference=INFERENCES, feed=FEEDS)
        if self.score not in SCORES and not is_extension(self.score):
            choices = f"{', '.join(SCORES)}, or package.module:Class"
            raise SettingError("attention", "score", f"is {self.score!r}; choose from {choices}")
        check_least("attention", self, width=1, glimpses=1, scales=1, patch=1)
        check_most("attention", self, width=WIDEST, heads=WIDEST, glimpses=16, scales=8, patch=16)
        check_most("attention", self, deviation=2, final_deviation=2)
        if not 0 <= self.expected <= 1:
            raise SettingError("attention", "expected", f"is {self.expected}; it is a share from 0 to 1")
        if self.window <= 0:
            raise SettingError("attention", "window", f"is {self.window}; it must be above 0 cells")
        check_positive("attention", self, "temperature", "final_temperature", "deviation", "final_deviation")
        if self.heads < 0:
            raise SettingError("attention", "heads", f"is {self.heads}; 0 leaves self-attention out")

    def temperature_at(self, step: int, total: int) -> float:
        """Return the temperature of gumbel samples at `step` (from 0) of `total`, falling by equal factors."""
        return _falling(self.temperature, self.final_temperature, step, total)

    def deviation_at(self, step: int, total: int) -> float:
        """Return the deviation of sampled points at `step` (from 0) of `total`, falling by equal factors."""
        return _falling(self.deviation, self.final_deviation, step, total)


def _falling(first: float, final: float, step: int, total: int) -> float:
    passed = min(1.0, step / max(1, total - 1))
    return float(first * (final / first) ** passed)


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes and parts of the decoder, by its `kind`: an LSTM, the paper's, or a transformer.

    An LSTM of 2 `layers` is two (Anderson et al., 2018): one reads the words and decides where to look, the one above
    reads what was seen there and makes the words. One layer does both.

    A transformer of width `hidden` has any number of layers, each with so many `heads` and a feed-forward network of
    the width `feed_forward`; the `positions` of words are learned or sinusoidal. It has neither gate nor deep output.

    `regions` is the width to which regions are projected, 0 to take them as they come; `normalise` puts a layer norm
    after that. `gate` is beta: none, one number for the whole context as in the paper, or one for each feature.
    `deep_output` adds the previous word and the context to the hidden state before the words are scored, as the paper
    does; `tied` scores words by their own embeddings. `dropout` is that of words, hidden states and what words are
    scored by, `region_dropout` that of the projected regions, the same for all captions of an image.
    """

    embedding: int = 256
    hidden: int = 512
    regions: int = 512
    normalise: bool = True
    gate: str = "vector"
    deep_output: bool = True
    tied: bool = True
    dropout: float = 0.5
    region_dropout: float = 0.0
    layers: int = added(1)
    kind: str = added("lstm")
    heads: int = added(0)
    feed_forward: int = added(0)
    positions: str = added("none")

    def __post_init__(self) -> None:
        check_types("decoder", self)
        check_choices("decoder", self, kind=KINDS)
        check_least("decoder", self, embedding=1, hidden=1, regions=0, layers=1)
        check_most("decoder", self, embedding=WIDEST, hidden=WIDEST, regions=WIDEST, layers=64, feed_forward=WIDEST)
        if self.kind == "transformer":
            self._check_transformer()
        else:
            self._check_lstm()
        check_choices("decoder", self, gate=GATES)
        check_shares("decoder", self, "dropout", "region_dropout")

    def _check_lstm(self) -> None:
        if self.layers > 2:
            raise SettingError("decoder", "layers", f"is {self.layers}; an LSTM has 1 or 2")
        for name, none in (("heads", 0), ("feed_forward", 0), ("positions", "none")):
            if getattr(self, name) != none:
                raise SettingError(
                    "decoder", name, f"is {getattr(self, name)!r}; an LSTM has none: choose kind transformer"
                )

    def _check_transformer(self) -> None:
        check_least("decoder", self, heads=1, feed_forward=1)
        check_choices("decoder", self, positions=POSITIONS)
        if self.hidden % self.heads:
            raise SettingError("decoder", "heads", f"is {self.heads}; it must divide hidden, {self.hidden}")
        if self.gate != "none":
            raise SettingError("decoder", "gate", f"is {self.gate!r}; a transformer has none: choose none")
        if self.deep_output:
            raise SettingError("decoder", "deep_output", "is true; a transformer has none: choose false")


def check_parts(decoder: DecoderConfig, attention: AttentionConfig) -> None:
    """Refuse a decoder and attention that make no model together; what only the encoder can tell is left to them."""
    if decoder.kind == "transformer":
        for name, value in (("mode", "soft"), ("score", "scaled-dot"), ("heads", 0)):
            if (given := getattr(attention, name)) != value:
                raise ValueError(f"attention.{name} is {given!r}; with decoder.kind transformer it must be {value!r}")
    elif decoder.layers == 2 and attention.mode == "none" and attention.feed != "every-step":
        raise ValueError(
            f"attention.feed is {attention.feed!r}; with decoder.layers 2, which reads the mean region at every step, "
            "it must be 'every-step'"
        )
