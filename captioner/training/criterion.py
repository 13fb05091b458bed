"""The criterion: a decoder and its part of a batch in, a loss and what it is made of out; nothing is changed here.

Where a batch is shared among processes, losses and numbers are those of a part times its share of the batch: added up
over all processes they are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.model.decoder import Decoder, Outputs
from captioner.model.glimpse import NATS, Fixations
from captioner.model.kernels.precision import product_dtype
from captioner.model.kernels.shared_matrix import at_least_single
from captioner.model.kernels.word_losses import Drawing
from captioner.model.losses import (
    attention_entropy,
    cross_entropy,
    doubly_stochastic_penalty,
    glimpse_surrogate,
    guide_losses,
    region_losses,
    reinforce_surrogate,
    self_critical_loss,
    value_loss,
    word_losses,
)
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions
from captioner.model.search.sampling import NEVER_DRAWN, roll_out
from captioner.training.batches import Indices
from captioner.training.objects import BatchObjects, RegionClassifier
from captioner.training.recipe import Recipe
from captioner.training.rewards import Rewards

Numbers = dict[str, float]
# What a step is told to be made of; the same in every process.
TEACHER_FORCING = ("cross_entropy", "penalty", "attention_entropy", "residual", "loss")
SELF_CRITICAL = ("loss", "reward", "baseline", "caption_entropy", "length", "residual")
# Takes this part's share of the batch's mean log likelihood; returns the moving baseline after the whole batch.
MoveBaseline = Callable[[float], float]


@dataclass(frozen=True)
class Part:
    """The b images of a batch that one process has, and which share of all captions and words they are."""

    images: Indices  # (b,), places in the corpus
    caption_ids: Tensor  # (b, N, T + 1)
    mask: Tensor  # (b, N, T): where there is a word to predict
    randomness: Randomness
    caption_share: float
    word_share: float
    process_share: float
    caption_words: float  # the mean over all captions of the batch, end markers included
    objects: BatchObjects | None = None  # of the images, where a loss asks for them

    @property
    def captions(self) -> int:
        """The captions of this part."""
        return int(self.mask.shape[0] * self.mask.shape[1])


class Criterion:
    """The losses of a decoder that a recipe asks for; `classifier` says what lies on its regions."""

    def __init__(
        self, recipe: Recipe, decoder: Decoder, device: str, classifier: RegionClassifier | None = None
    ) -> None:
        self.recipe, self.decoder, self.device, self.classifier = recipe, decoder, device, classifier
        self.products = product_dtype(recipe.precision, device)

    def teacher_forcing(
        self, part: Part, regions: Tensor | Regions, move_baseline: MoveBaseline
    ) -> tuple[Tensor, Numbers]:
        """Return the loss of given captions, regions (b, L, D): cross entropy, penalty and, where looks are sampled,
        REINFORCE.

        Where the recipe weighs them, what the part's objects guide and teach comes on top.
        """
        hard = self.recipe.attention.mode == "hard"
        if not len(regions):  # a batch may have fewer images than there are processes
            numbers = dict.fromkeys((*TEACHER_FORCING, *self._object_names()), 0.0)
            if hard:
                numbers |= {"reinforce": 0.0, "baseline": move_baseline(0.0) * part.process_share}
            elif self.recipe.attention.mode == "glimpse":
                numbers |= dict.fromkeys(("reinforce", "value", "baseline"), 0.0)
            return torch.zeros((), device=self.device), numbers
        with self._precision():
            outputs: Outputs = self.decoder(regions, part.caption_ids, part.randomness, part.mask)
        settings = self.recipe.loss
        losses, nll = word_losses(outputs.logits, part.caption_ids[:, :, 1:][part.mask], settings.smoothing)  # (W,)
        share = part.caption_share if settings.reduction == "sum" else part.word_share
        word_loss = cross_entropy(losses, part.captions, reduction=settings.reduction) * share
        there = Regions.of(regions).mask  # (b, L)
        reduction = settings.penalty_reduction
        penalty = doubly_stochastic_penalty(outputs.alpha, part.mask, reduction=reduction, regions=there)
        penalty = penalty * part.caption_share
        loss = word_loss + settings.penalty * penalty if settings.penalty else word_loss
        numbers = {
            "cross_entropy": word_loss.item(),
            "penalty": penalty.item(),
            "attention_entropy": attention_entropy(outputs.alpha.detach(), part.mask).item() * part.word_share,
            "residual": self._residual(outputs, part, penalty, there),
        }
        if part.objects is not None:
            taught, more = self._objects(part, part.objects, regions, outputs)
            loss, numbers = loss + taught, numbers | more
        if hard:
            log_likelihood = -_by_word(nll, part.mask).sum(-1)  # (b, N)
            baseline = move_baseline(log_likelihood.mean().item() * part.caption_share)
            surrogate = self._reinforce(outputs, log_likelihood, baseline, part)
            loss = loss + surrogate
            numbers |= {"reinforce": surrogate.item(), "baseline": baseline * part.process_share}
        elif outputs.fixations is not None:
            looked, more = self._glimpses(outputs.fixations, -_by_word(nll.detach(), part.mask), part)
            loss, numbers = loss + looked, numbers | more
        return loss, numbers | {"loss": loss.item()}

    def _residual(self, outputs: Outputs, part: Part, penalty: Tensor, there: Tensor | None) -> float:
        """Return this part's share of the penalty as a mean over regions."""
        if there is None or self.recipe.loss.penalty_reduction == "mean":
            regions = outputs.alpha.shape[-1] if self.recipe.loss.penalty_reduction == "sum" else 1
            return penalty.item() / regions
        mean = doubly_stochastic_penalty(outputs.alpha.detach(), part.mask, reduction="mean", regions=there)
        return mean.item() * part.caption_share

    def _object_names(self) -> tuple[str, ...]:
        settings = self.recipe.loss
        return (*(("guide", "guided") if settings.guide else ()), *(("objects",) if settings.objects else ()))

    def _objects(
        self, part: Part, objects: BatchObjects, regions: Tensor | Regions, outputs: Outputs
    ) -> tuple[Tensor, Numbers]:
        """Return this part's share of what objects add to the loss: the guide of attention, and the second task."""
        settings = self.recipe.loss
        loss, numbers = outputs.alpha.new_zeros(()), dict[str, float]()
        if settings.guide:
            words = objects.named >= 0  # (b, N, T), those that name something with a box
            losses = guide_losses(outputs.alpha[words], objects.coverage[objects.named[words]])  # (W,)
            # Divided as the cross entropy is, by all words: a word that is guided weighs the same in every batch.
            divisor, share = int(part.mask.sum()), part.word_share
            numbers["guided"] = len(losses) / divisor * share
            if settings.reduction == "sum":
                divisor, share = part.captions, part.caption_share
            guide = losses.sum() / divisor * share
            loss = loss + settings.guide * guide
            numbers["guide"] = guide.item()
        if self.classifier is not None:
            there = Regions.of(regions)
            with self._precision():
                logits = at_least_single(self.classifier(there.present()))  # (b, L, C)
            losses = region_losses(logits, objects.targets().to(logits.dtype), there.mask) * objects.known  # (b,)
            taught = losses.mean() * part.caption_share
            loss = loss + settings.objects * taught
            numbers["objects"] = taught.item()
        return loss, numbers

    def _reinforce(self, outputs: Outputs, log_likelihood: Tensor, baseline: float, part: Part) -> Tensor:
        """Return this part's share of the surrogate of equation 12.

        It goes with the sum over a caption's words; beside a mean over words it is as much smaller as that is, so that
        samples weigh the same against words either way.
        """
        settings = self.recipe.loss
        assert outputs.chosen is not None
        assert outputs.expected is not None
        return self._sample_share(part) * reinforce_surrogate(
            outputs.alpha,
            outputs.chosen,
            log_likelihood,
            part.mask,
            sampled=~outputs.expected[:, :, 0],
            baseline=baseline,
            reward_scale=settings.reward_scale,
            entropy_weight=settings.entropy,
        )

    def _sample_share(self, part: Part) -> float:
        return part.caption_share / (1 if self.recipe.loss.reduction == "sum" else part.caption_words)

    def _glimpses(self, fixations: Fixations, log_likelihood: Tensor, part: Part) -> tuple[Tensor, Numbers]:
        """Return this part's share of what a policy learns where to look by, and its value what to expect.

        `log_likelihood` (b, N, T) is that of the words. Samples weigh as those of hard attention do.
        """
        scale, value = self.recipe.loss.reward_scale, fixations.value  # (b, N, T)
        surrogate = glimpse_surrogate(fixations.log_density, value, log_likelihood, part.mask, reward_scale=scale)
        surrogate = surrogate * self._sample_share(part)
        error = value_loss(value, log_likelihood, part.mask) * part.word_share
        baseline = value.detach()[part.mask].mean().item() * part.word_share
        return surrogate + error / NATS**2, {"reinforce": surrogate.item(), "value": error.item(), "baseline": baseline}

    def self_critical(
        self, part: Part, regions: Tensor | Regions, rewards: Rewards, taught: Part | None, move_baseline: MoveBaseline
    ) -> tuple[Tensor, Numbers]:
        """Return the self-critical loss of captions that are sampled here for regions (b, L, D).

        The loss of given captions of the same images, which are `taught`, is added where the recipe weighs it.
        """
        loss, numbers = self._self_critical(part, regions, rewards)
        if taught is None:
            return loss, numbers
        taught_loss, more = self.teacher_forcing(taught, regions, move_baseline)
        total = loss + self.recipe.self_critical.cross_entropy * taught_loss
        told = (*SELF_CRITICAL, "attention_entropy")  # of the sampled captions
        kept = {name: value for name, value in more.items() if name not in told}
        return total, numbers | kept | {"self_critical": numbers["loss"], "loss": total.item()}

    def _self_critical(self, part: Part, regions: Tensor | Regions, rewards: Rewards) -> tuple[Tensor, Numbers]:
        """Return the loss of sampled captions alone.

        Captions are sampled and scored as they are searched for in use, without dropout: the policy is the model. Where
        points to look at are chosen by a policy, these are sampled too, and learn by the same reward as the words.
        """
        settings = self.recipe.self_critical
        costs = [name for name in ("repeats", "absent") if getattr(settings, name)]
        if not len(regions):
            return torch.zeros((), device=self.device), dict.fromkeys((*SELF_CRITICAL, *costs), 0.0)
        chooses = self.recipe.attention.mode == "glimpse"
        first, again = (part.randomness.only_looks() if chooses else None for _ in range(2))
        drawing = Drawing(settings.temperature, NEVER_DRAWN)
        with self._precision():
            ids, mask = roll_out(
                self.decoder, regions, settings.samples, rewards.longest, part.randomness, settings.temperature, first
            )
            reward = rewards.score(ids, part.images).to(self.device)  # (b, N)
            if settings.baseline == "greedy":
                best, _ = roll_out(self.decoder, regions, 1, rewards.longest, None)
                baseline = rewards.score(best, part.images).to(self.device)  # (b, 1)
            else:
                baseline = (reward.sum(dim=1, keepdim=True) - reward) / (settings.samples - 1)  # (b, N), of the others
            outputs: Outputs = self.decoder(regions, ids, again, mask)
        # As they were drawn: words that never are would otherwise take over what the others are made to lose.
        _, nll = word_losses(outputs.logits, ids[:, :, 1:][mask], drawing=drawing)  # (W,)
        share, there = part.caption_share, Regions.of(regions).mask
        residual = doubly_stochastic_penalty(outputs.alpha.detach(), mask, reduction="mean", regions=there)
        log_probs = -_by_word(nll, mask)  # (b, N, T)
        if outputs.fixations is not None:
            log_probs = log_probs + self.recipe.loss.reward_scale * outputs.fixations.log_density
        loss = self_critical_loss(log_probs, mask, reward, baseline.expand_as(reward)) * share
        found = {"repeats": rewards.repeats(ids)} if settings.repeats else {}
        found |= {"absent": rewards.absent(ids, part.images)} if settings.absent else {}
        length = mask.sum().item() / reward.numel() * share
        return loss, {name: counts.mean().item() * share for name, counts in found.items()} | {
            "loss": loss.item(),
            "reward": reward.mean().item() * share,
            "baseline": baseline.mean().item() * share,
            "caption_entropy": attention_entropy(outputs.alpha.detach(), mask).item() * length,
            "length": length,
            "residual": residual.item() * share,
        }

    @contextmanager
    def _precision(self) -> Iterator[None]:
        half = self.products != torch.float32
        with torch.autocast(self.device.split(":")[0], dtype=self.products if half else None, enabled=half):
            yield


def over_words(numbers: Numbers) -> Numbers:
    """Return the numbers of a whole batch, with the entropy of attention per word where it is known per caption.

    No process knows how many words the others have sampled, so only what is divided by captions adds up.
    """
    if "caption_entropy" not in numbers:
        return numbers
    rest = {name: value for name, value in numbers.items() if name != "caption_entropy"}
    return rest | {"attention_entropy": numbers["caption_entropy"] / numbers["length"]}


def _by_word(values: Tensor, mask: Tensor) -> Tensor:
    """Return values (W,) of the words where a mask (b, N, T) is True, at their places, zero elsewhere."""
    return torch.zeros_like(mask, dtype=values.dtype).masked_scatter(mask, values)
