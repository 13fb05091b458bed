"""Weights by their names: whether they are numbers, fit a network and are the same, and rounded to half precision."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from captioner.datasets.annotations import shown


def check_finite(what: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError where a tensor has numbers that are infinite, or none."""
    for name, tensor in tensors.items():
        # One such number makes the sum one, and a sum is quicker; but a sum may also overflow.
        if (
            tensor.is_floating_point()
            and not tensor.sum(dtype=torch.float32).isfinite()
            and not tensor.isfinite().all()
        ):
            raise ValueError(f"{what} {shown(name)} has numbers that are not finite; the model is of no use")


def check_fit(whose: str, layout: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the weights have the names and shapes of `layout`."""
    for name, expected in layout.items():
        if name not in weights:
            raise ValueError(f"the weights do not fit {whose}: {name} is missing")
        if weights[name].is_floating_point() != expected.is_floating_point():
            raise ValueError(f"the weights do not fit {whose}: {name} is of {weights[name].dtype}")
        if weights[name].shape != expected.shape:
            found, wanted = tuple(weights[name].shape), tuple(expected.shape)
            raise ValueError(f"the weights do not fit {whose}: {name} is {found}, expected {wanted}")
    if unknown := [name for name in weights if name not in layout]:
        raise ValueError(f"the weights do not fit {whose}: it has no {unknown[0]}")


def differ(one: Tensor, other: Tensor) -> bool:
    """Tell whether two weights, which may be one, have other numbers."""
    return one.data_ptr() != other.data_ptr() and not torch.equal(one, other)


def halve(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in half precision; raise ValueError where one is too large for it."""
    halves = {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}
    for name, weight in weights.items():
        if (halves[name].isinf() & ~weight.isinf()).any():
            raise ValueError(f"weight {name} reaches {weight.abs().max():.3g}, too much for half precision")
    return halves
