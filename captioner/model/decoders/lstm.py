"""The paper's decoder: an LSTM that looks at the regions by its hidden state, then reads the word and what it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.datasets.vocabulary import PAD
from captioner.model.attention import Attention, Glimpse, PreparedRegions
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoders.interface import Decoder, DecoderInputs, EmbeddedWords, Outputs, State, Step, projection
from captioner.model.empty_weights import draw_orthogonal
from captioner.model.glimpse import Fixations
from captioner.model.kernels.aligned import aligned_linear
from captioner.model.kernels.lstm import WordGates, lstm_cell
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import SharedMatrix, at_least_single
from captioner.model.kernels.shared_rows import SharedRows
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions, mean_region


@dataclass(frozen=True)
class LSTMInputs(DecoderInputs):
    """What every step of a batch of images needs: their regions, and the weights that steps share."""

    regions: PreparedRegions
    from_hidden: SharedMatrix  # (H, 4H + ...), all layers that read the hidden state end to end
    from_context: SharedMatrix  # (R, 4H)
    word_gates: WordGates | None  # where nothing learns

    def select(self, index: Tensor) -> LSTMInputs:
        """Return the inputs of some images only."""
        return replace(self, regions=self.regions.select(index))


class LSTMDecoder(Decoder):
    """A caption's words from regions (B, L, D), one after the other; V words, a `grid` of (rows, columns) = L cells.

    The state is (hidden, cell), each (B, N, H).
    """

    attention: Attention

    def __init__(
        self, config: DecoderConfig, attention: AttentionConfig, words: int, region_width: int, grid: tuple[int, int]
    ) -> None:
        super().__init__()
        self.config = config
        context, embedding, hidden = config.regions or region_width, config.embedding, config.hidden
        self.project = projection(config, region_width)
        self.attention = Attention(attention, context, hidden, grid)
        self.feed = attention.feed if attention.mode == "none" else None
        self.initial_hidden = self._initial(context, hidden)
        self.initial_memory = self._initial(context, hidden)  # of the cell; checkpoints have the weights by this name
        self.gate = Linear(hidden, 1 if config.gate == "scalar" else context) if config.gate != "none" else None
        self.embedding = nn.Embedding(words, embedding, padding_idx=PAD)
        # The LSTM's input matrix in three parts, so that the words' part is one product for a whole caption.
        self.from_word = Linear(embedding, 4 * hidden)
        self.from_context = Linear(context, 4 * hidden, bias=False)
        self.from_hidden = Linear(hidden, 4 * hidden, bias=False)
        self.output_hidden = Linear(hidden, embedding)
        self.output_context = Linear(context, embedding, bias=False) if config.deep_output else None
        self.output = Linear(embedding, words)
        if config.tied:
            self.output.weight = self.embedding.weight
        self._initialise()

    def _initial(self, context: int, hidden: int) -> nn.Module | None:
        """Return what makes an initial state of the mean region; None where the state starts at zero."""
        if self.feed in ("every-step", "first-step"):
            return None
        if self.feed == "state":
            return Linear(context, hidden)
        return nn.Sequential(Linear(context, hidden), nn.Tanh())

    def _initialise(self) -> None:
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()
            initialise_gates(self.from_hidden, self.from_word)
            self.output.bias.zero_()

    def start(
        self, regions: Tensor | Regions, captions: int = 1, randomness: Randomness | None = None
    ) -> tuple[DecoderInputs, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""
        prepared = self._prepare(regions, randomness)
        mean = mean_region(prepared.features.matrix, prepared.mask)  # (B, R)
        zeros = mean.new_zeros(len(mean), self.config.hidden)
        hidden = self.initial_hidden(mean) if self.initial_hidden is not None else zeros  # (B, H)
        cell = self.initial_memory(mean) if self.initial_memory is not None else zeros  # (B, H)
        inputs = LSTMInputs(
            prepared, end_to_end(self._readers()), SharedMatrix(self.from_context.weight.t()), self._word_gates()
        )
        state = State((at_least_single(hidden).unsqueeze(1), at_least_single(cell).unsqueeze(1)))  # (B, 1, H)
        return inputs, state.expand(captions)

    def _prepare(self, regions: Tensor | Regions, randomness: Randomness | None) -> PreparedRegions:
        """Return what attention needs of regions (B, L, D)."""
        regions = Regions.of(regions)
        projected: Tensor = self.project(regions.present())  # (B, L, R)
        if randomness is not None:
            projected = randomness.dropout(projected, self.config.region_dropout)
        return self.attention.prepare(projected, randomness and randomness.looks, regions.mask)

    def _word_gates(self) -> WordGates | None:
        return None if torch.is_grad_enabled() else WordGates(self.embedding, self.from_word)

    def _readers(self) -> list[nn.Linear]:
        """Return the layers that read the hidden state; one product serves them all."""
        return [self.from_hidden, *([self.gate] if self.gate is not None else []), *self.attention.readers()]

    def embed(
        self, words: Tensor, inputs: DecoderInputs | None = None, randomness: Randomness | None = None
    ) -> EmbeddedWords:
        """Return words (B, N), or whole captions (B, N, T), and their part of the gates (..., 4H)."""
        assert inputs is None or isinstance(inputs, LSTMInputs)
        vectors = self._dropout(self.embedding(words), randomness)  # (..., E)
        if inputs is None or inputs.word_gates is None:
            return EmbeddedWords(vectors, self.from_word(vectors))
        return EmbeddedWords(vectors, inputs.word_gates(words))

    def step(
        self,
        inputs: DecoderInputs,
        state: State,
        words: Tensor,
        randomness: Randomness | None = None,
        *,
        parents: Tensor | None = None,
        captions: int | None = None,
    ) -> Step:
        """Look at the regions and read one word of each caption: equations 1 to 6.

        What the decoder sees does not depend on the word, and is shared by captions of one parent.
        """
        assert isinstance(inputs, LSTMInputs)
        hidden, cell = state.tensors  # (B, N, H)
        rows = SharedRows(parents, hidden.shape[1]) if parents is not None else None
        if rows is not None:
            hidden, cell = rows.select(hidden), rows.select(cell)  # (P, H)
        widths = [reader.out_features for reader in self._readers()]
        gates, *reads = torch.split(inputs.from_hidden(hidden), widths, dim=-1)  # (B, N, 4H), ...
        beta = reads.pop(0).sigmoid() if self.gate is not None else gates.new_ones(*gates.shape[:-1], 1)  # (B, N, G)
        glimpse = self._attend(inputs.regions, state.tensors[0], reads, rows, randomness, captions)
        context = self._feed(glimpse.context, beta, state.step)  # (B, N, R)
        gates = inputs.from_context(context) + gates  # (B, N, 4H)
        alpha, chosen, fixations = glimpse.alpha, glimpse.chosen, glimpse.fixations  # (B, N, L), (B, N)
        if rows is not None:
            gates, cell, context, alpha, beta = (rows.share(each) for each in (gates, cell, context, alpha, beta))
            chosen = rows.share(chosen) if chosen is not None else None
            fixations = fixations.map(rows.share) if fixations is not None else None
        hidden, cell = lstm_cell(words + gates, cell)  # (B, N, H)
        return Step(State((hidden, cell), state.step + 1), hidden, context, alpha, beta, chosen, fixations)

    def _attend(
        self,
        regions: PreparedRegions,
        hidden: Tensor,
        reads: list[Tensor],
        rows: SharedRows | None,
        randomness: Randomness | None,
        captions: int | None,
    ) -> Glimpse:
        """Return what attention sees for hidden states (B, N, H), of the rows (P) only where there are some."""
        looks = randomness and randomness.looks
        if rows is None:
            glimpse: Glimpse = self.attention(regions, hidden, looks, reads=reads, captions=captions)
            return glimpse
        spread = [rows.spread(read) for read in reads]  # (B, N, ...)
        seen: Glimpse = self.attention(regions, hidden, looks, reads=spread, captions=captions)
        chosen = rows.select(seen.chosen) if seen.chosen is not None else None
        fixations = seen.fixations.map(rows.select) if seen.fixations is not None else None
        return Glimpse(rows.select(seen.context), rows.select(seen.alpha), chosen, fixations)

    def _feed(self, context: Tensor, beta: Tensor, step: int) -> Tensor:
        """Return the context (..., R) as the LSTM reads it: gated, or none where the image came with the first step."""
        if self.feed in ("state", "feed-forward") or (self.feed == "first-step" and step > 0):
            return torch.zeros_like(context)
        return context if self.gate is None else beta * context  # section 4.2.1

    def logits(
        self, words: EmbeddedWords, step: Step, randomness: Randomness | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return scores (..., V) of the next word: L_o (E y + L_h h + L_z z), eq. 7.

        Without a deep output they are those of the hidden state alone. With a mask (B, N, T) the rows (W, V) are those
        of the W words where it is True.
        """
        vectors, hidden, context = words.vectors, step.hidden, step.context  # (..., E), (..., H), (..., R)
        if mask is not None:
            vectors, hidden, context = vectors[mask], hidden[mask], context[mask]  # (W, ...)
        summary = self.output_hidden(self._dropout(hidden, randomness, mask))  # (..., E)
        if self.output_context is not None:
            summary = vectors + summary + self.output_context(context)
        return aligned_linear(self.output, self._dropout(summary, randomness, mask))  # (..., V)

    def forward(
        self,
        regions: Tensor | Regions,
        caption_ids: Tensor,
        randomness: Randomness | None = None,
        mask: Tensor | None = None,
    ) -> Outputs:
        """Read captions (B, N, T + 1) and score each next word, all but the last word of each being read.

        With a mask (B, N, T), only words where it is True are scored, and a step reads only as many captions of each
        image as it takes to have those: least where an image's captions stand in the order of their lengths, the
        longest first.
        """
        captions, length = caption_ids.shape[1], caption_ids.shape[2] - 1
        inputs, state = self.start(regions, captions, randomness)
        assert isinstance(inputs, LSTMInputs)
        words = self.embed(caption_ids[:, :, :-1], randomness=randomness)  # (B, N, T): one product for all steps
        going = _active(mask) if mask is not None else [captions] * length
        steps: list[Step] = []
        for active, gates in zip(going, words.projected.unbind(dim=2), strict=False):  # the n captions that continue
            steps.append(self.step(inputs, state.first(active), gates[:, :active], randomness, captions=captions))
            state = steps[-1].state
        joined = _join(steps, captions, length)
        logits = self.logits(words, joined, randomness, mask)
        expected = inputs.regions.expected
        return Outputs(logits, joined.alpha, joined.beta, joined.chosen, expected, joined.fixations)


@torch.no_grad()
def initialise_gates(recurrent: nn.Linear, other: nn.Linear) -> None:
    """Set the weights by which an LSTM's gates read its own hidden state, and the bias, which is the other layer's."""
    for gate in recurrent.weight.chunk(4):
        draw_orthogonal(gate)
    other.bias.zero_()
    other.bias.chunk(4)[1].fill_(1.0)  # an LSTM that forgets at first learns late


def end_to_end(layers: Sequence[nn.Linear]) -> SharedMatrix:
    """Return the layers that read the same, end to end, (I, O + ...): one product serves them all."""
    weight = torch.cat(tuple(layer.weight for layer in layers))  # (O + ..., I)
    none = weight.new_zeros(weight.shape[0])
    bias = torch.cat(tuple(none[: len(each.weight)] if each.bias is None else each.bias for each in layers))
    return SharedMatrix(weight.t(), bias)


def _active(mask: Tensor) -> list[int]:
    """Return how many captions of each image are still to be read, step by step, for a mask (B, N, T)."""
    some = mask.any(dim=0)  # (N, T)
    places = torch.arange(1, len(some) + 1, device=mask.device).unsqueeze(-1)  # (N, 1)
    counts: list[int] = (some * places).amax(dim=0).tolist()
    return [count for count in counts if count]


def _join(steps: list[Step], captions: int, length: int) -> Step:
    """Return steps (B, n, X), of which the later ones may have fewer captions, as one of tensors (B, N, T, X)."""

    def stack(tensors: list[Tensor]) -> Tensor:
        missing = [captions - tensor.shape[1] for tensor in tensors]
        padded = [F.pad(each, (0, 0, 0, some)) if some else each for each, some in zip(tensors, missing, strict=True)]
        stacked = torch.stack(padded, dim=2)  # (B, N, t, X)
        return F.pad(stacked, (0, 0, 0, length - len(steps))) if len(steps) < length else stacked

    chosen = [step.chosen.unsqueeze(-1) for step in steps if step.chosen is not None]
    return Step(
        steps[-1].state,
        stack([step.hidden for step in steps]),
        stack([step.context for step in steps]),
        stack([step.alpha for step in steps]),
        stack([step.beta for step in steps]),
        stack(chosen).squeeze(-1) if chosen else None,
        _join_fixations([step.fixations for step in steps if step.fixations is not None], stack),
    )


def _join_fixations(fixations: list[Fixations], stack: Callable[[list[Tensor]], Tensor]) -> Fixations | None:
    """Return fixations of T steps as one of tensors (B, N, T, ...), None where there are none."""
    if not fixations:
        return None
    shape = fixations[0].points.shape[2:]  # (G, 2)
    points = stack([each.points.flatten(2) for each in fixations])  # (B, N, T, 2G)
    densities = stack([each.log_density.unsqueeze(-1) for each in fixations])  # (B, N, T, 1)
    values = stack([each.value.unsqueeze(-1) for each in fixations])  # (B, N, T, 1)
    points = points.reshape(*points.shape[:3], *shape)  # (B, N, T, G, 2)
    return Fixations(points, densities.squeeze(-1), values.squeeze(-1), fixations[0].extents)
