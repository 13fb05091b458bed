"""Networks whose weights are not set at random first, because stored ones take their place.

Drawing millions of random numbers takes time; drawing none of them on torch's meta device loads torch's compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWING = {
    *("uniform_", "normal_", "trunc_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_"),
}
_is_within: ContextVar[bool] = ContextVar("within EmptyWeights", default=False)


class EmptyWeights(TorchFunctionMode):
    """Within it, weights that would be drawn at random are zeros: all of them must be loaded afterwards."""

    def __enter__(self) -> EmptyWeights:
        super().__enter__()  # type: ignore[no-untyped-call]
        self.token: Token[bool] = _is_within.set(True)
        return self

    def __exit__(self, *error: Any) -> None:
        _is_within.reset(self.token)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`, unless it draws random numbers into a tensor."""
        given = kwargs or {}
        if getattr(func, "__name__", "") not in _DRAWING:
            return func(*args, **given)
        tensor: Tensor = args[0] if args else given["tensor"]
        if not tensor.is_meta:
            tensor.detach().zero_()
        return tensor


def draw_orthogonal(weight: Tensor) -> None:
    """Set a matrix to a random orthogonal one; within `EmptyWeights` it stays as it is, and nothing is decomposed."""
    if not _is_within.get():
        nn.init.orthogonal_(weight)
