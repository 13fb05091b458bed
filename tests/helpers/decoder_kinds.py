"""Toy decoders of every kind, and captions for them to read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captioner.model.config import MODES, POSITIONS, AttentionConfig, DecoderConfig
from captioner.model.decoder import Decoder, Outputs, make_decoder

V, D, L, GRID = 11, 6, 4, (2, 2)
TRANSFORMER = {
    "kind": "transformer",
    "layers": 2,
    "heads": 2,
    "hidden": 6,
    "feed_forward": 7,
    "gate": "none",
    "deep_output": False,
}
# A kind's settings of the decoder and of attention.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"lstm-{mode}": ({}, {"mode": mode}) for mode in MODES},
    "lstm-three-glimpses": ({}, {"mode": "glimpse", "glimpses": 3, "scales": 2, "patch": 2}),
    **{f"two-layers-{mode}": ({"layers": 2}, {"mode": mode}) for mode in MODES},
    **{
        f"transformer-{positions}": ({**TRANSFORMER, "positions": positions}, {"score": "scaled-dot"})
        for positions in POSITIONS
    },
}


def make_kind(kind: str, seed: int = 0, attention: dict[str, Any] | None = None, **settings: Any) -> Decoder:
    """Return a toy decoder of a kind, in double precision."""
    torch.manual_seed(seed)
    parts, attending = KINDS[kind]
    sizes = {"embedding": 4, "hidden": 5, "regions": 3, "dropout": 0.0}
    config = DecoderConfig(**{**sizes, **parts, **settings})
    return make_decoder(config, AttentionConfig(**{"width": 5, **attending, **(attention or {})}), V, D, GRID).double()


def looked(outputs: Outputs) -> Tensor:
    """Return a number that depends on all that a policy has made: points have no gradient from words."""
    if outputs.fixations is None:
        return outputs.alpha.new_zeros(())
    return (outputs.fixations.log_density + outputs.fixations.value.square()).mean()


def make_inputs(batch: int = 3, captions: int = 2, length: int = 5) -> tuple[Tensor, Tensor]:
    """Return regions (B, L, D) and captions (B, N, T + 1)."""
    generator = torch.Generator().manual_seed(1)
    regions = torch.randn(batch, L, D, generator=generator, dtype=torch.float64)
    return regions, torch.randint(1, V, (batch, captions, length + 1), generator=generator)
