"""The settings of a training run, section by section, as frozen dataclasses that check themselves; no torch here.

`model/config.py` has those of the model; `recipe.py` puts all of them together and reads them from YAML.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from captioner.datasets.dataset import FORMATS
from captioner.model.checks import SettingError, check_choices, check_least, check_most, check_positive, check_shares

REDUCTIONS = ("sum", "mean")
OPTIMISERS = ("adamw", "adam", "rmsprop")
DECAYS = ("cosine", "step", "constant")
BASELINES = ("greedy", "mean")
METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "cider")


@dataclass(frozen=True)
class DataConfig:
    """One data set, and which of its images are trained and validated on.

    `root` is its folder and `format` the format of its annotation files, None to recognise it. `restval_to_train` joins
    Karpathy's restval images to the split train. `train` and `validation` name splits. `features` is the folder of its
    region caches, None for features/NAME-OF-DATA. `tolerance` is the share of unusable lines or images to put up with.
    """

    root: str
    format: str | None = None
    restval_to_train: bool = False
    train: str = "train"
    validation: str = "val"
    features: str | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        for name, what in (("root", "folder"), ("train", "split"), ("validation", "split"), ("features", "folder")):
            if getattr(self, name) == "":
                raise SettingError("data", name, f"is ''; it names a {what}")
        if self.format is not None:
            check_choices("data", self, format=tuple(FORMATS))
        if not 0 <= self.tolerance <= 1:
            raise SettingError("data", "tolerance", f"is {self.tolerance}; it is a share from 0 to 1")


@dataclass(frozen=True)
class VocabularyConfig:
    """Which words the model learns.

    `minimum_count` is how often the training captions must have a word; rarer ones are unknown to the model. A run that
    starts from another model keeps that one's words, and with `extend` adds those of its own captions.
    """

    minimum_count: int = 5
    extend: bool = True

    def __post_init__(self) -> None:
        check_least("vocabulary", self, minimum_count=1)


@dataclass(frozen=True)
class LossConfig:
    """What training makes small.

    `reduction` of the cross entropy is the sum over a caption's words, as in the paper, or the mean over words;
    `smoothing` is the share of each target that is spread over all words. `penalty` weighs the doubly stochastic
    penalty, whose `penalty_reduction` over regions is the paper's sum or their mean.

    Two more need the boxes of objects, 0 leaves them out. `guide` weighs what draws attention to an object at the words
    that name it: minus the logarithm of the weight inside its boxes, reduced as the cross entropy is. `objects` weighs
    a second task, in which each region says which categories lie on it; it makes regions better where the encoder is
    trained too.

    Only hard attention has the rest: `entropy` weighs the entropy of the weights, `reward_scale` the gradient of the
    samples, both against a sum over words and as much less where that is a mean, and `baseline_decay` is how much of
    the moving baseline stays after a batch. Of these, glimpses have the `reward_scale` too; their baseline is learned.
    """

    reduction: str = "mean"
    smoothing: float = 0.1
    penalty: float = 1.0
    penalty_reduction: str = "mean"
    guide: float = 0.0
    objects: float = 0.0
    entropy: float = 0.002
    reward_scale: float = 0.1
    baseline_decay: float = 0.9

    def __post_init__(self) -> None:
        check_choices("loss", self, reduction=REDUCTIONS, penalty_reduction=REDUCTIONS)
        check_least("loss", self, penalty=0, guide=0, objects=0, entropy=0)
        check_positive("loss", self, "reward_scale")
        check_shares("loss", self, "smoothing", "baseline_decay")


@dataclass(frozen=True)
class OptimiserConfig:
    """How gradients change the weights.

    `rate` is the learning rate that the schedule starts from. `clip` is the largest norm of the gradient, 0 for no
    limit. `average` is the decay of a moving average of the weights, which is then what is validated and saved as the
    best; 0 for none. It goes back over about 1 / (1 - `average`) steps, but never over more than about a ninth of those
    that there were: a short training forgets faster.
    """

    name: str = "adamw"
    rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 5.0
    average: float = 0.0

    def __post_init__(self) -> None:
        check_choices("optimiser", self, name=OPTIMISERS)
        check_positive("optimiser", self, "rate")
        check_least("optimiser", self, weight_decay=0, clip=0)
        check_shares("optimiser", self, "average")

    def average_decay(self, step: int) -> float:
        """Return the decay of averaged weights at `step` (from 0): small at first, when old weights are out of date."""
        return min(self.average, (1 + step) / (10 + step))


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes over the training.

    It rises over the first `warmup` steps, or over such a share of the steps where it is below 1. After them the cosine
    falls to `floor`, a share of the rate, at the end of the training; step multiplies by `factor` after every so many
    epochs (`every`).
    """

    decay: str = "cosine"
    warmup: float | int = 200
    floor: float = 0.01
    every: int = 3
    factor: float = 0.5

    def __post_init__(self) -> None:
        check_choices("schedule", self, decay=DECAYS)
        check_least("schedule", self, warmup=0, every=1)
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise SettingError(
                "schedule", "warmup", f"is {self.warmup}; it is a number of steps, or a share of them below 1"
            )
        if not 0 <= self.floor <= 1:
            raise SettingError("schedule", "floor", f"is {self.floor}; it is a share from 0 to 1")
        if not 0 < self.factor < 1:
            raise SettingError("schedule", "factor", f"is {self.factor}; it must be above 0 and below 1")

    def warmup_steps(self, total: int) -> int:
        """Return the steps of warm-up in a training of `total` steps."""
        return round(self.warmup * total) if self.warmup < 1 else int(self.warmup)

    def rate_share(self, step: int, total: int, steps_per_epoch: int) -> float:
        """Return the share, 0..1, of the learning rate that holds at `step` (from 0) of `total`."""
        warmup = self.warmup_steps(total)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.decay == "cosine":
            passed = min(1.0, (step - warmup) / max(1, total - warmup))
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * passed)) / 2
        if self.decay == "step":
            return float(self.factor ** (step // (self.every * max(1, steps_per_epoch))))
        return 1.0


@dataclass(frozen=True)
class BatchConfig:
    """How captions are put into batches.

    `captions` is how many a batch has over all processes, `captions_per_image` how many of one image go together at
    most. `pool` is how many batches are sorted by length together, 1 to keep the shuffled order. With `flips` half of
    the images, drawn anew at each epoch, are seen mirrored. `images` is how many images a batch has at most, 0 for as
    many as it may have captions; where images have few captions, a limit saves memory while the encoder is trained.
    """

    captions: int = 80
    captions_per_image: int = 5
    pool: int = 50
    flips: bool = False
    images: int = 0

    def __post_init__(self) -> None:
        check_least("batches", self, captions=1, captions_per_image=1, pool=1, images=0)
        check_most("batches", self, captions=100_000)
        if self.captions < self.captions_per_image:
            least = self.captions_per_image
            raise SettingError(
                "batches", "captions", f"is {self.captions}; it must be at least captions_per_image, {least}"
            )


@dataclass(frozen=True)
class TuningConfig:
    """Whether the encoder is trained too.

    It is from the epoch `from_epoch` on, counted from 1, at a learning `rate` of its own; 0 leaves it as it is. Only so
    many of its last `blocks` are trained, 0 for all: what comes before them is computed once, into a cache of its own,
    which makes an epoch several times as fast, and a checkpoint holds no others.
    """

    from_epoch: int = 0
    rate: float = 1e-5
    blocks: int = 0

    def __post_init__(self) -> None:
        check_least("tuning", self, from_epoch=0, blocks=0)
        check_positive("tuning", self, "rate")

    def is_active(self, epoch: int) -> bool:
        """Tell whether the encoder is trained in an epoch, counted from 0."""
        return 0 < self.from_epoch <= epoch + 1

    @property
    def is_partial(self) -> bool:
        """Whether some blocks of the encoder are trained and the others not."""
        return self.from_epoch > 0 and self.blocks > 0


@dataclass(frozen=True)
class SelfCriticalConfig:
    """Training on the score of whole captions, after the epochs of cross entropy.

    It takes so many `epochs` at a constant `rate`, with so many `samples` of captions for an image. The `baseline` that
    a sample is compared with is the score of the greedy caption, or the mean score of the image's other samples. What
    is sampled and learned is the distribution at a `temperature`: after label smoothing that at 1 is so flat that
    training would first of all learn to say less. The score is CIDEr-D, 0 to 10, and so many times (`bleu_weight`) the
    mean of the caption's own BLEU-1 to BLEU-4, 0 to 1, minus `repeats` for each content word that is said again, and
    minus `absent` for each object that is named and has no box in the image, which needs the boxes of objects. Images
    with fewer than `least_captions` take no part: the score against a single caption says little.

    `cross_entropy` weighs the loss of the first stage, with all its parts, of one reference caption of each image,
    drawn anew at each epoch: it keeps the grammar that rewards alone unlearn. 0 leaves it out.
    """

    epochs: int = 0
    rate: float = 5e-5
    samples: int = 5
    baseline: str = "mean"
    temperature: float = 1.0
    bleu_weight: float = 0.0
    repeats: float = 0.0
    absent: float = 0.0
    cross_entropy: float = 0.0
    least_captions: int = 1

    def __post_init__(self) -> None:
        check_choices("self_critical", self, baseline=BASELINES)
        check_least("self_critical", self, epochs=0, samples=1, least_captions=1)
        check_least("self_critical", self, bleu_weight=0, repeats=0, absent=0, cross_entropy=0)
        check_most("self_critical", self, samples=1000)
        check_positive("self_critical", self, "rate", "temperature")
        if self.baseline == "mean" and self.samples < 2:
            raise SettingError(
                "self_critical",
                "samples",
                f"is {self.samples}; the baseline mean needs at least 2, greedy needs no other",
            )


@dataclass(frozen=True)
class ValidationConfig:
    """How the model is judged while it trains.

    Captions of the validation split are searched for after every so many epochs (`every`), with `beam` and
    `length_power` as in `SearchConfig`; the best model is the one of the highest `metric`. `patience` is how many
    validations without a better one end the training, 0 for never. `images` is how many images are used, 0 for all.
    `overlays` is how many of them are drawn with the weights of each word.
    """

    every: int = 1
    metric: str = "bleu4"
    patience: int = 0
    beam: int = 3
    length_power: float = 0.7
    images: int = 0
    overlays: int = 4

    def __post_init__(self) -> None:
        check_choices("validation", self, metric=METRICS)
        check_least("validation", self, every=1, patience=0, beam=1, length_power=0, images=0, overlays=0)
        check_most("validation", self, beam=100)
