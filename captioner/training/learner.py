"""One step of learning, shared among processes: the gradient of a loss, the change of the weights, their averages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from captioner.datasets.vocabulary import PAD
from captioner.model.checkpoint import TrainingState
from captioner.model.decoder import Decoder
from captioner.model.encoders.encoder import Encoder
from captioner.model.losses import moving_baseline
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions
from captioner.processes import Processes
from captioner.training.batches import Batch, Indices
from captioner.training.criterion import Criterion, Numbers, Part, over_words
from captioner.training.objects import BatchObjects, RegionClassifier
from captioner.training.recipe import Recipe
from captioner.training.rewards import Rewards

REFERENCES = 2  # of a step's seed: random numbers for given captions beside sampled ones; 1 are looks
OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


class Learner:
    """The weights being trained and all that changes with them; `optimise` is the only way they change."""

    def __init__(self, recipe: Recipe, decoder: Decoder, encoder: Encoder, processes: Processes, device: str) -> None:
        self.recipe, self.processes, self.device = recipe, processes, device
        self.decoder, self.encoder = decoder.to(device), encoder.to(device)
        self.modules: dict[str, nn.Module] = {"decoder": decoder}
        classifier = RegionClassifier(encoder.dimensions).to(device) if recipe.loss.objects else None
        if classifier is not None:
            self.modules["objects"] = classifier
        self.criterion = Criterion(recipe, decoder, device, classifier)
        trained = [parameter for module in self.modules.values() for parameter in module.parameters()]
        groups: list[dict[str, Any]] = [{"params": trained}]
        if recipe.tuning.from_epoch:
            self.modules["encoder"] = encoder.upper(recipe.tuning.blocks)
            groups.append({"params": list(self.modules["encoder"].parameters())})
        settings = recipe.optimiser
        self.optimiser = OPTIMISERS[settings.name](groups, lr=settings.rate, weight_decay=settings.weight_decay)
        self.averages = {name: value.clone() for name, value in self._weights()} if settings.average else {}
        self.baseline: float | None = None  # of hard attention's rewards
        # Half precision has so small a range that gradients vanish unless they are scaled up.
        self.scaler = torch.amp.GradScaler(device.split(":")[0], enabled=recipe.precision == "float16")

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and values of everything that training changes."""
        for name, module in self.modules.items():
            for key, value in module.named_parameters():
                yield f"{name}.{key}", value.detach()

    # ------------------------------------------------------------------------------------------------ losses

    def teacher_forcing_loss(
        self, batch: Batch, regions: Tensor | Regions, objects: BatchObjects | None = None
    ) -> tuple[Tensor, Numbers]:
        """Return the loss of the captions of this process's rows of a batch, regions (b, L, D), see `Criterion`.

        `objects` are those of the rows, where the recipe asks for them.
        """
        part = self._part(batch, batch.caption_ids, batch.mask, batch.seed, objects)
        return self.criterion.teacher_forcing(part, regions, self._move_baseline)

    def self_critical_loss(
        self, batch: Batch, regions: Tensor | Regions, rewards: Rewards, objects: BatchObjects | None = None
    ) -> tuple[Tensor, Numbers]:
        """Return the loss of captions that are sampled for this process's rows of a batch, regions (b, L, D).

        That of the references is added where the batch has some; `objects` belong to them.
        """
        part, taught = self._part(batch, batch.caption_ids, batch.mask, batch.seed), None
        if batch.references is not None:
            given = batch.references[:, :, 1:] != PAD  # (B, 1, T)
            taught = self._part(batch, batch.references, given, (*batch.seed, REFERENCES), objects)
        return self.criterion.self_critical(part, regions, rewards, taught, self._move_baseline)

    def _part(
        self,
        batch: Batch,
        caption_ids: Indices,
        mask: NDArray[np.bool_],
        seed: tuple[int, ...],
        objects: BatchObjects | None = None,
    ) -> Part:
        """Return this process's rows of captions (B, N, T + 1) of the batch's images."""
        rows = self.processes.rows()
        ids, given = torch.from_numpy(caption_ids[rows]), torch.from_numpy(mask[rows])
        words, captions = max(1, int(mask.sum())), caption_ids.shape[0] * caption_ids.shape[1]
        return Part(
            batch.images[rows],
            ids.to(self.device),
            given.to(self.device),
            Randomness(seed, len(batch.images), rows),
            caption_share=ids.shape[0] * ids.shape[1] / captions,
            word_share=int(given.sum()) / words,
            process_share=1 / self.processes.count,
            caption_words=words / captions,
            objects=objects.to(self.device) if objects is not None else None,
        )

    def _move_baseline(self, log_likelihood: float) -> float:
        """Take a batch into the baseline, given this process's share of its mean log likelihood; return the new one."""
        mean = self.processes.add_up(torch.tensor(log_likelihood, dtype=torch.float64, device=self.device)).item()
        if math.isfinite(mean) or self.baseline is None:  # a batch that comes to nothing must not spoil the others
            self.baseline = moving_baseline(self.baseline, mean, self.recipe.loss.baseline_decay)
        return self.baseline

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
        numbers = over_words(self._add_up(numbers | {"flag": float(flag)}))
        for group, rate in zip(self.optimiser.param_groups, rates, strict=False):
            group["lr"] = rate
        self.scaler.unscale_(self.optimiser)
        limit = self.recipe.optimiser.clip or math.inf
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
        decay = self.recipe.optimiser.average_decay(step)
        for name, value in self._weights():
            self.averages[name].lerp_(value, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the modules have the averaged weights for a while, where there are some."""
        current = {name: value.clone() for name, value in self._weights()} if self.averages else {}
        self._replace(self.averages)
        try:
            yield
        finally:
            self._replace(current)

    def adopt(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over weights of the modules "decoder" and "encoder" by their names, for the averages too."""
        new = {f"{module}.{name}": value for module, values in weights.items() for name, value in values.items()}
        self._replace(new)
        for name, average in self.averages.items():
            if name in new:
                average.copy_(new[name])

    @torch.no_grad()
    def _replace(self, values: dict[str, Tensor]) -> None:
        for name, value in self._weights():
            if name in values:
                value.copy_(values[name])

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> TrainingState:
        """Return all that training needs to resume exactly as if it had not stopped."""
        tensors = {f"weight.{name}": value for name, value in self._weights()}
        tensors |= {f"average.{name}": value for name, value in self.averages.items()}
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in moments.items()}
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
