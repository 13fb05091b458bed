"""The LSTM decoder: one step, shared by training and every search.

Batches are image-major: N captions of each of B images, which share the image's regions and what is computed of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.attention import Attention, Glimpse, Memory
from captioner.config import AttentionConfig, DecoderConfig
from captioner.vocabulary import PAD


@dataclass(frozen=True)
class State:
    """The LSTM after some words of each caption."""

    hidden: Tensor  # (B, N, H)
    memory: Tensor  # (B, N, H)
    step: int = 0  # words read so far


@dataclass(frozen=True)
class Step:
    """What comes of reading one word: scores of the next, where the decoder looked for it, and the state after."""

    logits: Tensor  # (B, N, V)
    alpha: Tensor  # (B, N, L)
    beta: Tensor  # (B, N, G): G is 1, or the context's width where the gate is a vector
    chosen: Tensor | None  # (B, N), the region that was sampled, where one was
    state: State


@dataclass(frozen=True)
class Outputs:
    """The steps of teacher forcing, T of them."""

    logits: Tensor  # (B, N, T, V)
    alpha: Tensor  # (B, N, T, L)
    beta: Tensor  # (B, N, T, G)
    chosen: Tensor | None  # (B, N, T)


class Decoder(nn.Module):
    """A caption's words from regions (B, L, D), one after the other; V words, a `grid` of (rows, columns) = L cells."""

    def __init__(
        self, config: DecoderConfig, attention: AttentionConfig, words: int, region_width: int, grid: tuple[int, int]
    ) -> None:
        super().__init__()
        self.config = config
        context, embedding, hidden = config.regions or region_width, config.embedding, config.hidden
        self.project = nn.Sequential()
        if config.regions:
            self.project.append(nn.Linear(region_width, context))
        if config.normalise:
            self.project.append(nn.LayerNorm(context))
        self.attention = Attention(attention, context, hidden, grid)
        self.feed = attention.feed if attention.mode == "none" else None
        self.initial_hidden = self._initial(context, hidden)
        self.initial_memory = self._initial(context, hidden)
        self.gate = nn.Linear(hidden, 1 if config.gate == "scalar" else context) if config.gate != "none" else None
        self.embedding = nn.Embedding(words, embedding, padding_idx=PAD)
        # The LSTM's input matrix in three parts, so that the words' part is one product for a whole caption.
        self.from_word = nn.Linear(embedding, 4 * hidden)
        self.from_context = nn.Linear(context, 4 * hidden, bias=False)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        self.output_hidden = nn.Linear(hidden, embedding)
        self.output_context = nn.Linear(context, embedding, bias=False) if config.deep_output else None
        self.output = nn.Linear(embedding, words)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(config.dropout)
        self._initialise()

    def _initial(self, context: int, hidden: int) -> nn.Module | None:
        """Return what makes an initial state of the mean region; None where the state starts at zero."""
        if self.feed in ("every-step", "first-step"):
            return None
        if self.feed == "state":
            return nn.Linear(context, hidden)
        return nn.Sequential(nn.Linear(context, hidden), nn.Tanh())

    def _initialise(self) -> None:
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()
            for gate in self.from_hidden.weight.chunk(4):
                nn.init.orthogonal_(gate)
            self.from_word.bias.zero_()
            self.from_word.bias.chunk(4)[1].fill_(1.0)  # an LSTM that forgets at first learns late
            self.output.bias.zero_()

    def start(
        self, regions: Tensor, captions: int = 1, generator: torch.Generator | None = None
    ) -> tuple[Memory, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""
        memory = self.attention.prepare(self.project(regions), generator)
        mean = memory.regions.mean(dim=1)  # (B, R)
        zeros = mean.new_zeros(len(mean), self.config.hidden)
        hidden = self.initial_hidden(mean) if self.initial_hidden is not None else zeros  # (B, H)
        cell = self.initial_memory(mean) if self.initial_memory is not None else zeros  # (B, H)
        shape = (len(mean), captions, self.config.hidden)
        return memory, State(hidden.unsqueeze(1).expand(shape), cell.unsqueeze(1).expand(shape))

    def step(self, memory: Memory, state: State, words: Tensor, generator: torch.Generator | None = None) -> Step:
        """Read one word (B, N) of each caption."""
        embedded = self.dropout(self.embedding(words))  # (B, N, E)
        state, context, glimpse, beta = self._advance(memory, state, self.from_word(embedded), generator)
        logits = self._logits(embedded, state.hidden, context)
        return Step(logits, glimpse.alpha, beta, glimpse.chosen, state)

    def forward(self, regions: Tensor, caption_ids: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """Read captions (B, N, T + 1) and score each next word, all but the last word of each being read."""
        memory, state = self.start(regions, caption_ids.shape[1], generator)
        embedded = self.dropout(self.embedding(caption_ids[:, :, :-1]))  # (B, N, T, E)
        gates = self.from_word(embedded)  # (B, N, T, 4H)
        steps = []
        for step in range(gates.shape[2]):
            state, context, glimpse, beta = self._advance(memory, state, gates[:, :, step], generator)
            steps.append((state.hidden, context, glimpse, beta))
        hidden = torch.stack([hidden for hidden, _, _, _ in steps], dim=2)  # (B, N, T, H)
        context = torch.stack([context for _, context, _, _ in steps], dim=2)  # (B, N, T, R)
        chosen = [glimpse.chosen for _, _, glimpse, _ in steps if glimpse.chosen is not None]
        return Outputs(
            self._logits(embedded, hidden, context),
            torch.stack([glimpse.alpha for _, _, glimpse, _ in steps], dim=2),
            torch.stack([beta for _, _, _, beta in steps], dim=2),
            torch.stack(chosen, dim=2) if chosen else None,
        )

    def _advance(
        self, memory: Memory, state: State, word_gates: Tensor, generator: torch.Generator | None
    ) -> tuple[State, Tensor, Glimpse, Tensor]:
        """Look, then let the LSTM read the word, whose part of the gates is (B, N, 4H), and what was seen."""
        glimpse: Glimpse = self.attention(memory, state.hidden, generator)
        context = glimpse.context  # (B, N, R)
        beta = context.new_ones(*context.shape[:2], 1)
        if self.gate is not None:
            beta = self.gate(state.hidden).sigmoid()  # (B, N, G), section 4.2.1
            context = beta * context
        if self.feed in ("state", "feed-forward") or (self.feed == "first-step" and state.step > 0):
            context = torch.zeros_like(context)
        gates = word_gates + self.from_context(context) + self.from_hidden(state.hidden)  # (B, N, 4H)
        entry, forget, candidate, output = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * state.memory + entry.sigmoid() * candidate.tanh()  # (B, N, H), eq. 2
        hidden = output.sigmoid() * cell.tanh()  # (B, N, H), eq. 3
        return State(hidden, cell, state.step + 1), context, glimpse, beta

    def _logits(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Return scores (..., V) of the next word: L_o (E y + L_h h + L_z z), eq. 7, or of the hidden state alone."""
        summary = self.output_hidden(self.dropout(hidden))  # (..., E)
        if self.output_context is not None:
            summary = embedded + summary + self.output_context(context)
        logits: Tensor = self.output(self.dropout(summary))
        return logits
