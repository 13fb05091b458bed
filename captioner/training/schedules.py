"""What changes with the steps of a training, as pure functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from captioner.model.config import AttentionConfig
from captioner.training.settings import ScheduleConfig


def rate_share(config: ScheduleConfig, step: int, total: int, steps_per_epoch: int) -> float:
    """Return the share, 0..1, of the learning rate that holds at `step` (from 0) of `total`."""
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    if config.decay == "cosine":
        passed = min(1.0, (step - config.warmup) / max(1, total - config.warmup))
        return config.floor + (1 - config.floor) * (1 + math.cos(math.pi * passed)) / 2
    if config.decay == "step":
        return float(config.factor ** (step // (config.every * max(1, steps_per_epoch))))
    return 1.0


def temperature(config: AttentionConfig, step: int, total: int) -> float:
    """Return the temperature of gumbel samples at `step` (from 0) of `total`, falling by equal factors."""
    passed = min(1.0, step / max(1, total - 1))
    return float(config.temperature * (config.final_temperature / config.temperature) ** passed)


def average_decay(largest: float, step: int) -> float:
    """Return the decay of averaged weights at `step` (from 0): small at first, when weights are soon out of date."""
    return min(largest, (1 + step) / (10 + step))
