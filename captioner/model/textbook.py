"""READ THIS FIRST. Show, Attend and Tell (Xu et al., 2015) on one page: the paper's letters, its equation numbers.

Plain torch, and slow: a row for each of C captions, each with a copy of its image's regions, one step after the
other up to the longest caption. `attention.py`, `decoders/lstm.py` and `losses.py` are the same model made fast; tests
hold them to this page, values and gradients (`tests/model/test_textbook.py`).

    a      (C, L, D)   annotation vectors: the L regions that the encoder sees
    there  (C, L)      which of them there are, where images have fewer than L; the paper's always have all
    y      (C, T + 1)  words, start and end included; E (K, m) embeds the K words of the vocabulary
    h, c   (C, n)      hidden state and cell of the LSTM
    alpha  (C, L)      attention at one step, each row sums to one
    z      (C, D)      context vector, what was seen at one step

In the rest of the code V is the paper's K, E its m, H its n, and B images have N captions each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.scores import AdditiveScore

if TYPE_CHECKING:
    from typing_extensions import Self

Phi = Callable[[Tensor], Tensor]  # of eq. 6: attention alpha (C, L) -> the weights (C, L) that make the context


def soft(alpha: Tensor) -> Tensor:
    """Soft attention looks everywhere at once: the context is its expectation under alpha, eq. 13."""
    return alpha


def hard(alpha: Tensor) -> Tensor:
    """Hard attention looks at one region: s ~ Multinoulli(alpha), eq. 8, as a one-hot row; no gradient passes it."""
    s = torch.multinomial(alpha.detach(), 1)  # (C, 1)
    return torch.zeros_like(alpha).scatter(1, s, 1.0)  # (C, L)


class Textbook(nn.Module):
    """The decoder. `gate` is the width of beta, 1 as in the paper, D for one number per feature, 0 for no gate.

    Without `deep_output`, words are scored by the hidden state alone. `A` is the width of the attention's tanh layer.
    """

    layers = 1

    def __init__(self, D: int, m: int, n: int, K: int, A: int, *, gate: int = 1, deep_output: bool = True) -> None:
        super().__init__()
        self.encode = nn.Sequential()  # the paper takes the CNN's regions as they are; ours may be projected first
        self.f_init_h = nn.Sequential(nn.Linear(D, n), nn.Tanh())
        self.f_init_c = nn.Sequential(nn.Linear(D, n), nn.Tanh())
        self.W_a, self.W_h, self.v = nn.Linear(D, A, bias=False), nn.Linear(n, A), nn.Linear(A, 1, bias=False)
        self.f_beta = nn.Linear(n, gate) if gate else None
        self.E = nn.Embedding(K, m)
        # The affine map of eq. 1 takes [E y, h, z] end to end: here are its three blocks.
        self.T_y, self.T_h = nn.Linear(m, 4 * n), nn.Linear(n, 4 * n, bias=False)
        self.T_z = nn.Linear(D, 4 * n, bias=False)
        self.L_h, self.L_o = nn.Linear(n, m), nn.Linear(m, K)
        self.L_z = nn.Linear(D, m, bias=False) if deep_output else None

    def start(self, a: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return h_0 and c_0 (C, n): two small networks of the mean region, section 3.1.2."""
        mean = (a * there.unsqueeze(2)).sum(dim=1) / there.sum(dim=1, keepdim=True)  # (C, D)
        return self.f_init_h(mean), self.f_init_c(mean)

    def attend(self, a: Tensor, h: Tensor, there: Tensor) -> Tensor:
        """Return alpha (C, L): how much each region matters for the next word, given all that was said."""
        e = self.f_att(a, h).masked_fill(~there, -torch.inf)  # (C, L), eq. 4; exp(-inf) is a weight of zero
        return e.softmax(dim=1)  # (C, L), eq. 5

    def f_att(self, a: Tensor, h: Tensor) -> Tensor:
        """Return the scores e (C, L) of the regions: a network with one layer of tanh (Bahdanau et al., 2015)."""
        layer = torch.tanh(self.W_a(a) + self.W_h(h).unsqueeze(1))  # (C, L, A)
        e: Tensor = self.v(layer).squeeze(2)  # (C, L)
        return e

    def context(self, a: Tensor, h: Tensor, weights: Tensor) -> Tensor:
        """Return z (C, D) of weights (C, L): eq. 9 where they are one-hot, eq. 13 where they are alpha; then gated."""
        z = (weights.unsqueeze(2) * a).sum(dim=1)  # (C, D)
        return z if self.f_beta is None else self.beta(h) * z  # section 4.2.1

    def beta(self, h: Tensor) -> Tensor:
        """Return the gate beta (C, gate), from 0 to 1: how much of the image the next word needs."""
        assert self.f_beta is not None
        beta: Tensor = self.f_beta(h).sigmoid()  # (C, gate)
        return beta

    def lstm(self, Ey: Tensor, h: Tensor, c: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c (C, n) after reading the word before and the context."""
        i, f, g, o = (self.T_y(Ey) + self.T_h(h) + self.T_z(z)).chunk(4, dim=1)  # each (C, n), eq. 1
        i, f, o, g = i.sigmoid(), f.sigmoid(), o.sigmoid(), g.tanh()
        c = f * c + i * g  # (C, n), eq. 2
        return o * c.tanh(), c  # eq. 3

    def output(self, Ey: Tensor, h: Tensor, z: Tensor) -> Tensor:
        """Return logits (C, K) of the next word, eq. 7."""
        deep = self.L_h(h) if self.L_z is None else Ey + self.L_h(h) + self.L_z(z)  # (C, m)
        logits: Tensor = self.L_o(deep)  # (C, K)
        return logits

    def step(
        self, a: Tensor, there: Tensor, h: Tensor, c: Tensor, y: Tensor, phi: Phi = soft
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Read the words y (C,): return logits (C, K), alpha and the weights used (C, L), and the new h and c."""
        alpha = self.attend(a, h, there)  # (C, L)
        weights = phi(alpha)  # (C, L), eq. 6
        z = self.context(a, h, weights)  # (C, D)
        Ey = self.E(y)  # (C, m)
        h, c = self.lstm(Ey, h, c, z)
        return self.output(Ey, h, z), alpha, weights, h, c

    def forward(
        self, regions: Tensor, y: Tensor, phi: Phi = soft, there: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Teacher forcing on words (C, T + 1): logits (C, T, K), alpha and weights (C, T, L) of each next word."""
        a = self.encode(regions)  # (C, L, D)
        there = all_there(a) if there is None else there  # (C, L)
        h, c = self.start(a, there)
        steps = []
        for t in range(y.shape[1] - 1):
            logits, alpha, weights, h, c = self.step(a, there, h, c, y[:, t], phi)
            steps.append((logits, alpha, weights))
        logits, alpha, s = (torch.stack(each, dim=1) for each in zip(*steps, strict=True))
        return logits, alpha, s

    @classmethod
    def from_decoder(cls, decoder: LSTMDecoder) -> Self:
        """Return the page on the layers of a decoder, not copies: both have one set of weights and gradients."""
        if decoder.config.layers != cls.layers:
            raise ValueError(f"decoder.layers is {decoder.config.layers}; this textbook has {cls.layers}")
        config, attention, score = decoder.config, decoder.attention.config, decoder.attention.score
        known = attention.mode in ("soft", "hard") and type(score) is AdditiveScore and not attention.heads
        if not known:
            raise ValueError(f"{attention} is not in the paper: the textbook knows soft and hard, additive, no heads")
        assert isinstance(score, AdditiveScore)
        sizes = (score.region.in_features, config.embedding, config.hidden, decoder.output.out_features)
        page = cls(*sizes, A=attention.width, gate=0, deep_output=False)
        page.encode, page.E = decoder.project, decoder.embedding
        page.f_init_h, page.f_init_c = decoder.initial_hidden, decoder.initial_memory  # type: ignore[assignment]
        page.W_a, page.W_h, page.v = score.region, score.reader, score.energy  # type: ignore[assignment]
        page.f_beta, page.L_z = decoder.gate, decoder.output_context
        page.T_y, page.T_h, page.T_z = decoder.from_word, decoder.from_hidden, decoder.from_context
        page.L_h, page.L_o = decoder.output_hidden, decoder.output
        return page


def all_there(a: Tensor) -> Tensor:
    """Return (C, L): every region is there, as in the paper."""
    return a.new_ones(a.shape[:2], dtype=torch.bool)


def log_likelihood(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Return log p(y | a) (C,) of captions y (C, T + 1); mask (C, T) is True where there is a word to predict."""
    log_p = logits.log_softmax(dim=2).gather(2, y[:, 1:].unsqueeze(2)).squeeze(2)  # (C, T)
    return (log_p * mask).sum(dim=1)


def doubly_stochastic_penalty(alpha: Tensor, mask: Tensor, there: Tensor) -> Tensor:
    """Return (C,): how far each region is from being looked at once over the whole caption, the sum of eq. 14."""
    looks = (alpha * mask.unsqueeze(2)).sum(dim=1)  # (C, L), sum over t
    return ((1 - looks).square() * there).sum(dim=1)  # (C,), sum over i


def soft_loss(
    page: Textbook, regions: Tensor, y: Tensor, mask: Tensor, lambda_: float = 1.0, there: Tensor | None = None
) -> Tensor:
    """Return eq. 14, the mean over captions of - log p(y | a) + lambda sum_i (1 - sum_t alpha_ti)^2."""
    there = all_there(regions) if there is None else there  # (C, L)
    logits, alpha, _ = page(regions, y, there=there)
    return (-log_likelihood(logits, y, mask) + lambda_ * doubly_stochastic_penalty(alpha, mask, there)).mean()


def hard_loss(
    log_p: Tensor,
    alpha: Tensor,
    s: Tensor,
    mask: Tensor,
    *,
    b: float,
    lambda_r: float = 0.1,
    lambda_e: float = 0.002,
) -> Tensor:
    """Return a number whose gradient is that of the learning rule of section 4.1, the sign turned to descend.

    The objective is the lower bound L_s = sum_s p(s | a) log p(y | s, a) <= log p(y | a), eq. 10. Its gradient, eq. 11,
    is estimated by one sampled path s (C, T, L) per caption, eq. 12:

        d log p(y | s, a) + lambda_r (log p(y | s, a) - b) d log p(s | a) + lambda_e d H[s]

    `log_p` (C,) is log p(y | s, a); b the moving average of it over batches, which lowers the estimate's variance.
    """
    log_p_s = ((s * alpha).sum(dim=2).log() * mask).sum(dim=1)  # (C,), log p(s | a) by eq. 8
    log_alpha = alpha.where(alpha > 0, 1.0).log()  # (C, T, L), as 0 log 0 = 0: a region that is not there adds nothing
    entropy = (-(alpha * log_alpha).sum(dim=2) * mask).sum(dim=1)  # (C,), H[s]
    reward = lambda_r * (log_p.detach() - b)  # (C,), a number: REINFORCE takes no gradient through it
    return -(log_p + reward * log_p_s + lambda_e * entropy).mean()


def moving_baseline(b: float, log_p: Tensor) -> float:
    """Return b_k = 0.9 b_(k-1) + 0.1 log p(y | s_k, a), the mean over the captions of batch k."""
    return 0.9 * b + 0.1 * float(log_p.detach().mean())
