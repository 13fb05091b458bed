"""One step of learning: losses of a batch, their gradient over all processes, and the change of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from captioner.model.checkpoint import TrainingState
from captioner.model.decoder import Decoder
from captioner.model.encoders.encoder import Encoder
from captioner.model.losses import (
    attention_entropy,
    cross_entropy,
    doubly_stochastic_penalty,
    moving_baseline,
    reinforce_surrogate,
    self_critical,
    word_losses,
)
from captioner.model.randomness import Randomness
from captioner.model.search.sampling import roll_out, sayable
from captioner.processes import Processes
from captioner.training.batches import Batch
from captioner.training.recipe import Experiment
from captioner.training.rewards import Rewards
from captioner.training.schedules import average_decay

OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
Numbers = dict[str, float]
# What a step is told to be made of; the same in every process.
PARTS = ("cross_entropy", "penalty", "attention_entropy", "residual", "loss")
CRITICAL_PARTS = ("loss", "reward", "baseline", "attention_entropy", "residual")


@dataclass(frozen=True)
class _Part:
    """This process's rows of a batch, and which share of all its captions and words they are."""

    caption_ids: Tensor  # (b, N, T + 1)
    mask: Tensor  # (b, N, T)
    randomness: Randomness
    captions: int
    caption_share: float
    word_share: float
    caption_words: float  # the mean over all captions of the batch, end markers included


class Learner:
    """The weights being trained and all that changes with them; `optimise` is the only way they change."""

    def __init__(
        self, experiment: Experiment, decoder: Decoder, encoder: Encoder, processes: Processes, device: str
    ) -> None:
        self.experiment, self.processes, self.device = experiment, processes, device
        self.decoder, self.encoder = decoder.to(device), encoder.to(device)
        self.modules: dict[str, nn.Module] = {"decoder": decoder}
        groups: list[dict[str, Any]] = [{"params": list(decoder.parameters())}]
        if experiment.tuning.from_epoch:
            self.modules["encoder"] = encoder.upper(experiment.tuning.blocks)
            groups.append({"params": list(self.modules["encoder"].parameters())})
        settings = experiment.optimiser
        self.optimiser = OPTIMISERS[settings.name](groups, lr=settings.rate, weight_decay=settings.weight_decay)
        self.averages = {name: value.clone() for name, value in self._weights()} if settings.average else {}
        self.baseline: float | None = None  # of hard attention's rewards
        # Half precision has so small a range that gradients vanish unless they are scaled up.
        self.scaler = torch.amp.GradScaler(device.split(":")[0], enabled=experiment.precision == "float16")

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and values of everything that training changes."""
        for name, module in self.modules.items():
            for key, value in module.named_parameters():
                yield f"{name}.{key}", value.detach()

    # ------------------------------------------------------------------------------------------------ losses

    def measure(self, batch: Batch, regions: Tensor) -> tuple[Tensor, Numbers]:
        """Return the loss of this process's rows of a batch, regions (b, L, D), and what it is made of.

        Loss and numbers are this process's share: added up over all processes they are those of the batch.
        """
        part = self._part(batch)
        hard = self.decoder.attention.config.mode == "hard"
        if not len(regions):  # a batch may have fewer images than there are processes
            numbers = dict.fromkeys(PARTS, 0.0)
            if hard:
                self._move_baseline(0.0)
                numbers |= {"reinforce": 0.0, "baseline": self._baseline_share()}
            return torch.zeros((), device=self.device), numbers
        with self._precision():
            outputs = self.decoder(regions, part.caption_ids, part.randomness, part.mask)
        settings = self.experiment.loss
        losses, unlikely = word_losses(outputs.logits, part.caption_ids[:, :, 1:][part.mask], settings.smoothing)
        share = part.caption_share if settings.reduction == "sum" else part.word_share
        entropy = cross_entropy(losses, part.captions, reduction=settings.reduction) * share
        penalty = doubly_stochastic_penalty(outputs.alpha, part.mask, reduction=settings.penalty_reduction)
        penalty = penalty * part.caption_share
        loss = entropy + settings.penalty * penalty if settings.penalty else entropy
        numbers = {
            "cross_entropy": entropy.item(),
            "penalty": penalty.item(),
            "attention_entropy": attention_entropy(outputs.alpha.detach(), part.mask).item() * part.word_share,
            "residual": penalty.item() / (outputs.alpha.shape[-1] if settings.penalty_reduction == "sum" else 1),
        }
        if hard:
            likelihood = -torch.zeros_like(part.mask, dtype=unlikely.dtype).masked_scatter(part.mask, unlikely).sum(-1)
            surrogate = self._reinforce(outputs.alpha, outputs.chosen, ~outputs.expected[:, :, 0], likelihood, part)
            loss = loss + surrogate
            numbers |= {"reinforce": surrogate.item(), "baseline": self._baseline_share()}
        return loss, numbers | {"loss": loss.item()}

    def _reinforce(self, alpha: Tensor, chosen: Tensor, sampled: Tensor, likelihood: Tensor, part: _Part) -> Tensor:
        """Return this process's share of the surrogate of equation 12, after the baseline has taken the batch in.

        It goes with the sum over a caption's words; beside a mean over words it is as much smaller as that is, so that
        samples weigh the same against words either way.
        """
        settings = self.experiment.loss
        share = part.caption_share if settings.reduction == "sum" else part.caption_share / part.caption_words
        self._move_baseline(likelihood.mean().item() * part.caption_share)
        assert self.baseline is not None
        return share * reinforce_surrogate(
            alpha,
            chosen,
            likelihood,
            part.mask,
            sampled=sampled,
            baseline=self.baseline,
            reward_scale=settings.reward_scale,
            entropy_weight=settings.entropy,
        )

    def _move_baseline(self, likelihood: float) -> None:
        """Take a batch into the baseline, given this process's share of its mean log likelihood."""
        mean = self.processes.add_up(torch.tensor(likelihood, dtype=torch.float64, device=self.device)).item()
        if math.isfinite(mean) or self.baseline is None:  # a batch that comes to nothing must not spoil the others
            self.baseline = moving_baseline(self.baseline, mean, self.experiment.loss.baseline_decay)

    def _baseline_share(self) -> float:
        return (self.baseline or 0.0) / self.processes.count

    def criticise(self, batch: Batch, regions: Tensor, rewards: Rewards) -> tuple[Tensor, Numbers]:
        """Return the self-critical loss of captions sampled for this process's rows, and what it is made of.

        Captions are sampled and scored as they are searched for in use, without dropout: the policy is the model.
        """
        part = self._part(batch)
        if not len(regions):
            return torch.zeros((), device=self.device), dict.fromkeys(CRITICAL_PARTS, 0.0)
        settings = self.experiment.self_critical
        images = batch.images[self.processes.rows()]
        with self._precision():
            ids, mask = roll_out(
                self.decoder, regions, settings.samples, rewards.longest, part.randomness, settings.temperature
            )
            reward = rewards.score(ids, images).to(self.device)  # (b, N)
            if settings.baseline == "greedy":
                best, _ = roll_out(self.decoder, regions, 1, rewards.longest, None)
                baseline = rewards.score(best, images).to(self.device)  # (b, 1)
            else:
                baseline = (reward.sum(dim=1, keepdim=True) - reward) / (settings.samples - 1)  # (b, N), of the others
            outputs = self.decoder(regions, ids, mask=mask)
        # As they were drawn: words that never are would otherwise take over what the others are made to lose.
        _, unlikely = word_losses(sayable(outputs.logits / settings.temperature), ids[:, :, 1:][mask])
        log_probabilities = -torch.zeros_like(mask, dtype=unlikely.dtype).masked_scatter(mask, unlikely)  # (b, N, T)
        loss = self_critical(log_probabilities, mask, reward, baseline.expand_as(reward)) * part.caption_share
        share = part.caption_share
        return loss, {
            "loss": loss.item(),
            "reward": reward.mean().item() * share,
            "baseline": baseline.mean().item() * share,
            "attention_entropy": attention_entropy(outputs.alpha.detach(), mask).item() * share,
            "residual": doubly_stochastic_penalty(outputs.alpha.detach(), mask, reduction="mean").item() * share,
        }

    def _part(self, batch: Batch) -> _Part:
        rows = self.processes.rows()
        ids, mask = torch.from_numpy(batch.caption_ids[rows]), torch.from_numpy(batch.mask[rows])
        captions, words = ids.shape[0] * ids.shape[1], max(1, int(batch.mask.sum()))
        return _Part(
            ids.to(self.device),
            mask.to(self.device),
            Randomness(batch.seed, len(batch.images), rows),
            captions,
            captions / batch.caption_count,
            int(mask.sum()) / words,
            words / batch.caption_count,
        )

    @contextmanager
    def _precision(self) -> Iterator[None]:
        kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(self.experiment.precision)
        with torch.autocast(self.device.split(":")[0], dtype=kind, enabled=kind is not None):
            yield

    # ------------------------------------------------------------------------------------------------ change

    def optimise(self, loss: Tensor, numbers: Numbers, rates: tuple[float, float], step: int, flag: bool) -> Numbers:
        """Change the weights by the gradient of the loss over all processes; return the numbers over all of them.

        `rates` are the learning rates of decoder and encoder. "skipped" is 1 where loss or gradient was not finite and
        nothing was changed; "flag" is above 0 where the flag was set in any process.
        """
        if loss.requires_grad:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        self.processes.add_up_gradients(parameters)
        numbers = self._add_up(numbers | {"flag": float(flag)})
        for group, rate in zip(self.optimiser.param_groups, rates, strict=False):
            group["lr"] = rate
        self.scaler.unscale_(self.optimiser)
        limit = self.experiment.optimiser.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_([each for each in parameters if each.grad is not None], limit)
        numbers["gradient"] = float(norm)
        # The scaler leaves a step out by itself, and that is how it finds its scale.
        finite = math.isfinite(numbers["loss"]) and (math.isfinite(numbers["gradient"]) or self.scaler.is_enabled())
        if finite:
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self._average(step)
        self.optimiser.zero_grad(set_to_none=True)
        return numbers | {"skipped": float(not finite)}

    def _add_up(self, numbers: Numbers) -> Numbers:
        if self.processes.count == 1:
            return numbers
        values = torch.tensor([numbers[name] for name in sorted(numbers)], dtype=torch.float64, device=self.device)
        return dict(zip(sorted(numbers), self.processes.add_up(values).tolist(), strict=True))

    @torch.no_grad()
    def _average(self, step: int) -> None:
        if not self.averages:
            return
        decay = average_decay(self.experiment.optimiser.average, step)
        for name, value in self._weights():
            self.averages[name].lerp_(value, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the modules have the averaged weights for a while, where there are some."""
        own = {name: value.clone() for name, value in self._weights()} if self.averages else {}
        self._replace(self.averages)
        try:
            yield
        finally:
            self._replace(own)

    def adopt(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over weights of the modules "decoder" and "encoder" by their names, for the averages too."""
        values = {f"{module}.{name}": value for module, own in weights.items() for name, value in own.items()}
        self._replace(values)
        for name, average in self.averages.items():
            if name in values:
                average.copy_(values[name])

    @torch.no_grad()
    def _replace(self, values: dict[str, Tensor]) -> None:
        for name, value in self._weights():
            if name in values:
                value.copy_(values[name])

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> TrainingState:
        """Return all that training needs to go on exactly as if it had not stopped."""
        tensors = {f"weight.{name}": value for name, value in self._weights()}
        tensors |= {f"average.{name}": value for name, value in self.averages.items()}
        for index, own in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in own.items()}
        return TrainingState(tensors, {"baseline": self.baseline, "scaler": self.scaler.state_dict()})

    @torch.no_grad()
    def restore(self, state: TrainingState) -> None:
        """Go back to a state that `state` returned."""
        self._replace({name.removeprefix("weight."): value for name, value in state.tensors.items()})
        for name, average in self.averages.items():
            average.copy_(state.tensors[f"average.{name}"])
        optimiser = self.optimiser.state_dict()
        for name, value in state.tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".", 2)
                optimiser["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(optimiser)
        self.baseline = state.values["baseline"]
        if state.values["scaler"]:
            self.scaler.load_state_dict(state.values["scaler"])
