"""The LSTM decoder: one step, shared by training and every search.

Batches are image-major: N captions of each of B images, which share the image's regions and what is computed of them.
Nothing is random unless draws are given: they make it a step of training, with dropout and sampled looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.datasets.vocabulary import PAD
from captioner.model.attention import Attention, Glimpse, Memory
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.kernels.lstm import WordGates, lstm_cell
from captioner.model.kernels.shared_matrix import SharedMatrix, at_least_single, take_rows
from captioner.model.randomness import Draws


@dataclass(frozen=True)
class Scene:
    """What the decoder needs at every step of a batch of images: what it attends to, and its own weights."""

    memory: Memory
    from_hidden: SharedMatrix  # (H, 4H + ...), all layers that read the hidden state end to end
    from_context: SharedMatrix  # (R, 4H)
    from_word: WordGates | None = None  # where nothing learns

    def select(self, index: Tensor) -> Scene:
        """Return the scene of some images only."""
        return Scene(self.memory.select(index), self.from_hidden, self.from_context, self.from_word)


@dataclass(frozen=True)
class State:
    """The LSTM after some words of each caption."""

    hidden: Tensor  # (B, N, H)
    memory: Tensor  # (B, N, H)
    step: int = 0  # words read so far

    def first(self, captions: int) -> State:
        """Return the state of the first captions of each image only."""
        return State(self.hidden[:, :captions], self.memory[:, :captions], self.step)

    def select(self, index: Tensor) -> State:
        """Return the state of some images only."""
        return State(self.hidden[index], self.memory[index], self.step)


@dataclass(frozen=True)
class Look:
    """What the decoder makes of its states before it reads a word: the same for every word that may follow.

    Its rows are the states of a batch, (B, N), or the P of them that were to look.
    """

    gates: Tensor  # (B, N, 4H) of the LSTM, without the word's part
    memory: Tensor  # (B, N, H), as it was
    context: Tensor  # (B, N, R), gated
    alpha: Tensor  # (B, N, L)
    beta: Tensor  # (B, N, G)
    chosen: Tensor | None  # (B, N)
    step: int  # words read so far

    def follow(self, rows: Tensor) -> Look:
        """Return the look that each of some captions (B, K) goes on from, one of P rows."""
        chosen = self.chosen[rows] if self.chosen is not None else None
        gates, memory, context = (take_rows(tensor, rows) for tensor in (self.gates, self.memory, self.context))
        return Look(gates, memory, context, take_rows(self.alpha, rows), take_rows(self.beta, rows), chosen, self.step)


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
    """The steps of teacher forcing, T of them; what lies beyond a caption's end is zero."""

    logits: Tensor  # (B, N, T, V), or (W, V) of the W words that a mask told to score
    alpha: Tensor  # (B, N, T, L)
    beta: Tensor  # (B, N, T, G)
    chosen: Tensor | None  # (B, N, T)
    expected: Tensor | None  # (B, 1, 1) bool: images whose context was an expectation, where others' was one region


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

    def start(self, regions: Tensor, captions: int = 1, draws: Draws | None = None) -> tuple[Scene, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""
        projected: Tensor = self.project(regions)  # (B, L, R)
        if draws is not None:
            projected = draws.dropout(projected, self.config.region_dropout)
        memory = self.attention.prepare(projected, draws and draws.looks)
        mean = memory.regions.matrix.mean(dim=1)  # (B, R)
        zeros = mean.new_zeros(len(mean), self.config.hidden)
        hidden = self.initial_hidden(mean) if self.initial_hidden is not None else zeros  # (B, H)
        cell = self.initial_memory(mean) if self.initial_memory is not None else zeros  # (B, H)
        readers = self._readers()
        weight = torch.cat(tuple(reader.weight for reader in readers))  # (4H + ..., H)
        none = weight.new_zeros(weight.shape[0])
        bias = torch.cat(tuple(none[: len(each.weight)] if each.bias is None else each.bias for each in readers))
        words = None if torch.is_grad_enabled() else WordGates(self.embedding, self.from_word)
        hidden, cell = at_least_single(hidden), at_least_single(cell)
        scene = Scene(memory, SharedMatrix(weight.t(), bias), SharedMatrix(self.from_context.weight.t()), words)
        shape = (len(mean), captions, self.config.hidden)
        return scene, State(hidden.unsqueeze(1).expand(shape), cell.unsqueeze(1).expand(shape))

    def _readers(self) -> list[nn.Linear]:
        """Return the layers that read the hidden state; one product serves them all."""
        return [self.from_hidden, *([self.gate] if self.gate is not None else []), *self.attention.readers()]

    def step(self, scene: Scene, state: State, words: Tensor, draws: Draws | None = None) -> Step:
        """Read one word (B, N) of each caption."""
        return self.read(scene, self.look(scene, state, draws), words, draws)

    def look(
        self,
        scene: Scene,
        state: State,
        draws: Draws | None = None,
        *,
        captions: int | None = None,
        rows: Tensor | None = None,
    ) -> Look:
        """Look at the regions from each state, the first half of a step; with rows (P,), only from those of B * N.

        Samples are drawn for `captions` of each image (default: N), of which those here are the first.
        """
        hidden, memory = state.hidden, state.memory  # (B, N, H)
        if rows is not None:
            hidden, memory = hidden.flatten(0, 1)[rows], memory.flatten(0, 1)[rows]  # (P, H)
        widths = [reader.out_features for reader in self._readers()]
        reads = torch.split(scene.from_hidden(hidden), widths, dim=-1)
        beside = 1 if self.gate is None else 2  # the gates and beta come before what attention reads
        glimpse = self._glimpse(scene, state, reads[beside:], draws, captions, rows)
        context = glimpse.context  # (B, N, R)
        beta = context.new_ones(*context.shape[:-1], 1)
        if self.gate is not None:
            beta = reads[1].sigmoid()  # (B, N, G), section 4.2.1
            context = beta * context
        if self.feed in ("state", "feed-forward") or (self.feed == "first-step" and state.step > 0):
            context = torch.zeros_like(context)
        gates = scene.from_context(context) + reads[0]  # (B, N, 4H)
        return Look(gates, memory, context, glimpse.alpha, beta, glimpse.chosen, state.step)

    def _glimpse(
        self,
        scene: Scene,
        state: State,
        reads: Sequence[Tensor],
        draws: Draws | None,
        captions: int | None,
        rows: Tensor | None,
    ) -> Glimpse:
        """Return what attention sees; it goes image by image, so that rows (P,) are put at their places for it."""
        own = reads if rows is None else [_spread(read, rows, state) for read in reads]
        glimpse: Glimpse = self.attention(
            scene.memory, state.hidden, draws and draws.looks, reads=own, captions=captions
        )
        if rows is None:
            return glimpse
        chosen = glimpse.chosen.flatten()[rows] if glimpse.chosen is not None else None
        return Glimpse(glimpse.context.flatten(0, 1)[rows], glimpse.alpha.flatten(0, 1)[rows], chosen)

    def read(self, scene: Scene, look: Look, words: Tensor, draws: Draws | None = None) -> Step:
        """Read one word (B, N) of each caption after a look (B, N, ...), the second half of a step."""
        embedded = self._dropout(self.embedding(words), draws)  # (B, N, E)
        own = self.from_word(embedded) if scene.from_word is None or draws is not None else scene.from_word(words)
        hidden, memory = lstm_cell(own + look.gates, look.memory)  # (B, N, H)
        logits = self.output(self._summary(embedded, hidden, look.context, draws))
        return Step(logits, look.alpha, look.beta, look.chosen, State(hidden, memory, look.step + 1))

    def forward(
        self, regions: Tensor, caption_ids: Tensor, draws: Draws | None = None, mask: Tensor | None = None
    ) -> Outputs:
        """Read captions (B, N, T + 1) and score each next word, all but the last word of each being read.

        With a mask (B, N, T), only words where it is True are scored, and a step reads only as many captions of each
        image as it takes to have those: least where an image's captions stand in the order of their lengths, the
        longest first.
        """
        captions, steps = caption_ids.shape[1], caption_ids.shape[2] - 1
        scene, state = self.start(regions, captions, draws)
        embedded = self._dropout(self.embedding(caption_ids[:, :, :-1]), draws)  # (B, N, T, E)
        gates = self.from_word(embedded).unbind(dim=2)  # T times (B, N, 4H)
        looks: list[tuple[Tensor, Tensor, Glimpse, Tensor]] = []
        for step, active in enumerate(_active(mask) if mask is not None else [captions] * steps):
            own = gates[step][:, :active]  # (B, n, 4H), n captions are left
            state, context, glimpse, beta = self._advance(scene, state.first(active), own, draws, captions)
            looks.append((state.hidden, context, glimpse, beta))
        hidden = _stack([hidden for hidden, _, _, _ in looks], captions, steps)  # (B, N, T, H)
        context = _stack([context for _, context, _, _ in looks], captions, steps)  # (B, N, T, R)
        if mask is not None:
            embedded, hidden, context = embedded[mask], hidden[mask], context[mask]  # (W, ...)
        chosen = [glimpse.chosen for _, _, glimpse, _ in looks if glimpse.chosen is not None]
        return Outputs(
            self.output(self._summary(embedded, hidden, context, draws, mask)),
            _stack([glimpse.alpha for _, _, glimpse, _ in looks], captions, steps),
            _stack([beta for _, _, _, beta in looks], captions, steps),
            _stack([each.unsqueeze(-1) for each in chosen], captions, steps).squeeze(-1) if chosen else None,
            scene.memory.expected,
        )

    def _advance(
        self, scene: Scene, state: State, word_gates: Tensor, draws: Draws | None, captions: int | None = None
    ) -> tuple[State, Tensor, Glimpse, Tensor]:
        """Look, then let the LSTM read the word, whose part of the gates is (B, N, 4H), and what was seen."""
        look = self.look(scene, state, draws, captions=captions)
        hidden, cell = lstm_cell(word_gates + look.gates, look.memory)  # (B, N, H)
        glimpse = Glimpse(look.context, look.alpha, look.chosen)
        return State(hidden, cell, state.step + 1), look.context, glimpse, look.beta

    def _summary(
        self, embedded: Tensor, hidden: Tensor, context: Tensor, draws: Draws | None, mask: Tensor | None = None
    ) -> Tensor:
        """Return (..., E) by which the next word is scored: E y + L_h h + L_z z, eq. 7, or the hidden state's alone."""
        summary = self.output_hidden(self._dropout(hidden, draws, mask))  # (..., E)
        if self.output_context is not None:
            summary = embedded + summary + self.output_context(context)
        return self._dropout(summary, draws, mask)

    def _dropout(self, values: Tensor, draws: Draws | None, mask: Tensor | None = None) -> Tensor:
        return draws.dropout(values, self.config.dropout, mask) if draws is not None else values


def _active(mask: Tensor) -> list[int]:
    """Return how many captions of each image are still to be read, step by step, for a mask (B, N, T)."""
    some = mask.any(dim=0)  # (N, T)
    places = torch.arange(1, len(some) + 1, device=mask.device).unsqueeze(-1)  # (N, 1)
    counts: list[int] = (some * places).amax(dim=0).tolist()
    return [count for count in counts if count]


def _stack(steps: list[Tensor], captions: int, length: int) -> Tensor:
    """Return steps (B, n, X), of which the later ones may have fewer captions, as one tensor (B, N, T, X)."""
    padded = [F.pad(step, (0, 0, 0, captions - step.shape[1])) if step.shape[1] < captions else step for step in steps]
    stacked = torch.stack(padded, dim=2)
    return F.pad(stacked, (0, 0, 0, length - len(steps))) if len(steps) < length else stacked


def _spread(values: Tensor, rows: Tensor, state: State) -> Tensor:
    """Return values (P, X) at their rows among the B * N of a state, and zeros elsewhere: (B, N, X)."""
    batch, captions = state.hidden.shape[:2]
    spread = values.new_zeros(batch * captions, values.shape[-1])
    return spread.index_copy_(0, rows, values).view(batch, captions, -1)
