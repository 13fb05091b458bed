"""A calibration for tests: even odds at a mean log probability of -1 per word."""

from __future__ import annotations

from captioner.model.confidence import Calibration, Group

CALIBRATION = Calibration(
    model="0123456789abcdef",
    intercept=3.0,
    slope=3.0,
    accepted_from=30.0,
    quantile=0.25,
    data="toy",
    split="val",
    digest="00",
    search={"method": "beam", "beam": 5},
    error=0.02,
    low=Group(30, 0.4),
    others=Group(70, 0.8),
)
