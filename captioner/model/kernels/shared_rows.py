"""Rows that several captions share: what is computed of a state is computed once, however many continue it."""

from __future__ import annotations

import torch
from torch import Tensor


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Return rows (...) of a table (P, X), (..., X), whole rows copied at a time."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, *table.shape[1:])  # the plain line: table[rows]


class SharedRows:
    """The P of B x N states that captions (B, K) continue, as `parents` (B, K) into the N of their image say.

    In a beam about a third of the states have no child, and the others have several. The plain line that this replaces:

        state = state.gather(1, parents), and then the whole step for each of the B x K rows
    """

    def __init__(self, parents: Tensor, states: int) -> None:
        used = torch.zeros(len(parents), states, dtype=torch.bool, device=parents.device)  # (B, N)
        used = used.scatter_(1, parents, True).flatten()  # (B * N,)
        places = used.cumsum(dim=0).sub_(1).view(len(parents), states)  # (B, N), of each state among those used
        self.states = states
        self.rows = used.nonzero().squeeze(1)  # (P,)
        self.parents = places.gather(1, parents)  # (B, K), among the P

    def select(self, values: Tensor) -> Tensor:
        """Return the used rows (P, ...) of values (B, N, ...)."""
        return values.flatten(0, 1)[self.rows]

    def spread(self, values: Tensor) -> Tensor:
        """Return values (P, X) at their places among (B, N, X), zero elsewhere: attention works image by image."""
        spread = values.new_zeros(len(self.parents) * self.states, values.shape[-1])
        return spread.index_copy_(0, self.rows, values).view(len(self.parents), self.states, -1)

    def share(self, values: Tensor) -> Tensor:
        """Return for each caption (B, K, ...) what was computed of its parent, of values (P, ...)."""
        return take_rows(values, self.parents)
