"""Two LSTM layers on one page, beside the paper's one in `textbook.py`: bottom-up and top-down attention without boxes.

Anderson et al. (2018) put a language LSTM above the one that attends. `decoders/two_layers.py` is the same made fast;
tests hold it to this page, values and gradients. The letters are those of `textbook.py`, but hidden state and cell are
(C, 2, n): those of the attention LSTM, then those of the language LSTM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.decoders.two_layers import TwoLayerDecoder
from captioner.model.textbook import Phi, Textbook, soft

if TYPE_CHECKING:
    from typing_extensions import Self


class TwoLayerTextbook(Textbook):
    """The decoder with a second layer; T_y and T_h are the attention LSTM's, T_z is the language LSTM's."""

    layers = 2

    def __init__(self, D: int, m: int, n: int, K: int, A: int, *, gate: int = 1, deep_output: bool = True) -> None:
        super().__init__(D, m, n, K, A, gate=gate, deep_output=deep_output)
        self.T_mean, self.T_language = nn.Linear(D, 4 * n, bias=False), nn.Linear(n, 4 * n, bias=False)
        self.U_attention, self.U_h = nn.Linear(n, 4 * n), nn.Linear(n, 4 * n, bias=False)

    def start(self, a: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return h_0 and c_0 (C, 2, n), zero."""
        zeros = a.new_zeros(len(a), 2, self.T_h.in_features)  # (C, 2, n)
        return zeros, zeros

    def step(
        self, a: Tensor, there: Tensor, h: Tensor, c: Tensor, y: Tensor, phi: Phi = soft
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Read the words y (C,): return logits (C, K), alpha and the weights used (C, L), and the new h and c."""
        (h_1, h_2), (c_1, c_2) = h.unbind(dim=1), c.unbind(dim=1)  # each (C, n)
        Ey = self.E(y)  # (C, m)
        mean = (a * there.unsqueeze(2)).sum(dim=1) / there.sum(dim=1, keepdim=True)  # (C, D)
        h_1, c_1 = cell(self.T_y(Ey) + self.T_mean(mean) + self.T_language(h_2) + self.T_h(h_1), c_1)
        alpha = self.attend(a, h_1, there)  # (C, L): by the hidden state that has read the word
        weights = phi(alpha)  # (C, L)
        z = self.context(a, h_1, weights)  # (C, D)
        h_2, c_2 = cell(self.T_z(z) + self.U_attention(h_1) + self.U_h(h_2), c_2)
        return self.output(Ey, h_2, z), alpha, weights, torch.stack([h_1, h_2], dim=1), torch.stack([c_1, c_2], dim=1)

    @classmethod
    def from_decoder(cls, decoder: LSTMDecoder) -> Self:
        """Return the page on the layers of a decoder, not copies: both have one set of weights and gradients."""
        page = super().from_decoder(decoder)
        assert isinstance(decoder, TwoLayerDecoder)
        page.T_mean, page.T_language = decoder.from_mean, decoder.from_language
        page.U_attention, page.U_h = decoder.language_from_attention, decoder.language_from_language
        return page


def cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c (C, n) of an LSTM with these gates (C, 4n) before their activations."""
    i, f, g, o = gates.chunk(4, dim=1)  # each (C, n)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()  # (C, n)
    return o.sigmoid() * c.tanh(), c
