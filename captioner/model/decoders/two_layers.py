"""Two LSTMs, one above the other (Anderson et al., 2018): the lower one looks, the upper one speaks.

The attention LSTM reads the word, the mean region and the language LSTM's last hidden state; its own says where to
look. The language LSTM reads what was seen there and the attention LSTM's hidden state; its own makes the words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from captioner.model.attention import Glimpse
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoders.interface import DecoderInputs, State, Step
from captioner.model.decoders.lstm import LSTMDecoder, LSTMInputs, end_to_end, initialise_gates
from captioner.model.kernels.lstm import lstm_cell
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import SharedMatrix, at_least_single
from captioner.model.kernels.shared_rows import SharedRows
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions, mean_region


@dataclass(frozen=True)
class TwoLayerInputs(LSTMInputs):
    """What every step of a batch of images needs; `from_hidden` is (H, 4H), of the attention LSTM alone."""

    mean_gates: Tensor  # (B, 1, 4H), the mean region's part of the attention LSTM's gates
    from_language: SharedMatrix  # (H, 4H + 4H), the language LSTM's last hidden state, to the gates of both
    from_attention: SharedMatrix  # (H, 4H + ...), all layers that read the attention LSTM's new hidden state

    def select(self, index: Tensor) -> TwoLayerInputs:
        """Return the inputs of some images only."""
        return replace(self, regions=self.regions.select(index), mean_gates=self.mean_gates[index])


class TwoLayerDecoder(LSTMDecoder):
    """A caption's words from regions, by an attention LSTM and a language LSTM of the same width H.

    The state is hidden state and cell of the one, then of the other, each (B, N, H); it starts at zero, since the mean
    region is read at every step.
    """

    def __init__(
        self, config: DecoderConfig, attention: AttentionConfig, words: int, region_width: int, grid: tuple[int, int]
    ) -> None:
        super().__init__(config, attention, words, region_width, grid)
        context, hidden = config.regions or region_width, config.hidden
        # The attention LSTM's gates, beside those of its word and its own hidden state:
        self.from_mean = Linear(context, 4 * hidden, bias=False)
        self.from_language = Linear(hidden, 4 * hidden, bias=False)
        # The language LSTM's, beside those of the context:
        self.language_from_attention = Linear(hidden, 4 * hidden)
        self.language_from_language = Linear(hidden, 4 * hidden, bias=False)
        initialise_gates(self.language_from_language, self.language_from_attention)

    def _initial(self, context: int, hidden: int) -> nn.Module | None:
        return None

    def start(
        self, regions: Tensor | Regions, captions: int = 1, randomness: Randomness | None = None
    ) -> tuple[DecoderInputs, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""
        prepared = self._prepare(regions, randomness)
        mean = mean_region(prepared.features.matrix, prepared.mask).unsqueeze(1)  # (B, 1, R)
        inputs = TwoLayerInputs(
            prepared,
            SharedMatrix(self.from_hidden.weight.t()),
            SharedMatrix(self.from_context.weight.t()),
            self._word_gates(),
            self.from_mean(mean),
            end_to_end([self.from_language, self.language_from_language]),
            end_to_end(self._readers()),
        )
        zeros = at_least_single(mean).new_zeros(len(mean), 1, self.config.hidden)  # (B, 1, H)
        return inputs, State((zeros, zeros, zeros, zeros)).expand(captions)

    def _readers(self) -> list[nn.Linear]:
        """Return the layers that read the attention LSTM's new hidden state; one product serves them all."""
        _, *readers = super()._readers()
        return [self.language_from_attention, *readers]

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
        """Read one word of each caption, look at the regions, and read what is seen there.

        Where the decoder looks depends on the word, so captions of one parent share no look, only what both LSTMs make
        of the hidden states before: nearly half of the products.
        """
        assert isinstance(inputs, TwoLayerInputs)
        hidden, cell, language, language_cell = state.tensors  # (B, N, H)
        rows = SharedRows(parents, hidden.shape[1]) if parents is not None else None
        if rows is not None:
            hidden, language = rows.select(hidden), rows.select(language)  # (P, H)
            cell, language_cell = (rows.share(rows.select(each)) for each in (cell, language_cell))  # (B, K, H)
        gates, language_gates = inputs.from_language(language).chunk(2, dim=-1)  # (B, N, 4H)
        gates = inputs.from_hidden(hidden) + gates  # (B, N, 4H)
        if rows is not None:
            gates, language_gates = rows.share(gates), rows.share(language_gates)  # (B, K, 4H)
        hidden, cell = lstm_cell(words + inputs.mean_gates + gates, cell)  # (B, N, H)
        widths = [reader.out_features for reader in self._readers()]
        seen_gates, *reads = torch.split(inputs.from_attention(hidden), widths, dim=-1)  # (B, N, 4H), ...
        beta = reads.pop(0).sigmoid() if self.gate is not None else gates.new_ones(*gates.shape[:-1], 1)  # (B, N, G)
        looks = randomness and randomness.looks
        glimpse: Glimpse = self.attention(inputs.regions, hidden, looks, reads=reads, captions=captions)
        context = self._feed(glimpse.context, beta, state.step)  # (B, N, R)
        language_gates = inputs.from_context(context) + seen_gates + language_gates  # (B, N, 4H)
        language, language_cell = lstm_cell(language_gates, language_cell)  # (B, N, H)
        after = State((hidden, cell, language, language_cell), state.step + 1)
        return Step(after, language, context, glimpse.alpha, beta, glimpse.chosen, glimpse.fixations)
