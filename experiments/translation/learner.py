"""The weights being trained and all that changes with them; nothing is random but by seed and step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from runs import Settings
from sentences import Batch
from torch import Tensor
from translator import Translator

from captioner.model.randomness import Randomness

DRAWS, ORDER = 1, 2  # of a seed: what its random numbers are for
LAST_RATE = 0.02  # at the end of the training, as a share of the highest


class Learner:
    """A translator that learns: Adam with a warm-up and cosine decay, and averaged weights."""

    def __init__(self, translator: Translator, settings: Settings, steps: int) -> None:
        self.translator, self.settings, self.steps = translator, settings, steps
        self.step = 0
        self.parameters = dict(translator.named_parameters())  # tied weights once
        self.optimiser = torch.optim.Adam(self.parameters.values(), betas=(0.9, 0.98), fused=True)
        self.averages = {name: value.detach().clone() for name, value in self.parameters.items()}

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        settings = self.settings
        warm = min(1.0, (self.step + 1) / max(1, settings.warmup))
        share = min(1.0, self.step / max(1, self.steps))
        return settings.rate * warm * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share)))

    def learn(self, batch: Batch) -> float:
        """Take one step on a batch and return the mean negative log likelihood of its pieces."""
        randomness = Randomness((self.settings.seed, self.step, DRAWS), len(batch.source))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            losses, nll = self.translator.losses(batch, self.settings.smoothing, randomness)  # (W,)
        self.optimiser.zero_grad(set_to_none=True)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.clip)
        self.optimiser.step()
        decay = min(self.settings.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.parameters.items():
                self.averages[name].lerp_(value, 1 - decay)
        self.step += 1
        return float(nll.detach().mean())

    def averaged(self) -> Translator:
        """Return a translator of the averaged weights."""
        decoder = self.translator.decoder
        words = (self.translator.encoder.embedding.num_embeddings, decoder.embedding.num_embeddings)
        averaged = Translator(self.settings.sizes(), words)
        averaged.load_state_dict(self.averages, strict=False)  # but for the second name of tied weights
        return averaged.eval()

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that it takes to resume."""
        tensors = {f"weight.{name}": value.detach() for name, value in self.parameters.items()}
        tensors |= {f"average.{name}": value for name, value in self.averages.items()}
        for index, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{key}": value for key, value in moments.items()}
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go back to a state that `state` returned after so many steps."""
        self.step = step
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"weight.{name}"])
            self.averages[name].copy_(tensors[f"average.{name}"])
        optimiser = self.optimiser.state_dict()
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".", 2)
                optimiser["state"].setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict(optimiser)
