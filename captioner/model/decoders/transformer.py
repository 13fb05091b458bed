"""A decoder of attention alone (Vaswani et al., 2017): each word looks at the words before it, then at the regions.

A layer has three parts, each added to what it reads: attention over the words so far, attention over the regions, and a
feed-forward network. Their inputs are normalised first, which trains without a long warm-up. All words of a caption are
read at once in teacher forcing; a step reads one, with the keys and values of those before it kept in the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captioner.datasets.vocabulary import PAD
from captioner.model.config import DecoderConfig
from captioner.model.decoders.interface import Decoder, DecoderInputs, EmbeddedWords, Outputs, State, Step, projection
from captioner.model.decoders.transformer_layer import Layered, Reading, TransformerLayer
from captioner.model.kernels.aligned import aligned_linear
from captioner.model.kernels.lstm import WordGates
from captioner.model.kernels.products import Linear
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions

LONGEST = 128  # words that learned positions are for, the start marker included


@dataclass(frozen=True)
class TransformerInputs(DecoderInputs):
    """What every step of a batch of images needs: the regions' keys and values in each layer."""

    keys: tuple[Tensor, ...]  # each (B, heads, H / heads, L)
    values: tuple[Tensor, ...]  # each (B, heads, L, H / heads)
    mask: Tensor | None  # (B, L) bool: which regions there are; None: all
    words: WordGates | None  # where nothing learns

    def select(self, index: Tensor) -> TransformerInputs:
        """Return the inputs of some images only."""
        keys, values = (tuple(each[index] for each in tensors) for tensors in (self.keys, self.values))
        return TransformerInputs(keys, values, self.mask[index] if self.mask is not None else None, self.words)


class TransformerDecoder(Decoder):
    """A caption's words from regions (B, L, D), by layers of attention; V words.

    Its alpha is the mean over heads of the last layer's look at the regions. The state has keys and values of the words
    so far, (B, N, 2, t, H) of each layer.
    """

    def __init__(self, config: DecoderConfig, words: int, region_width: int) -> None:
        super().__init__()
        self.config, self.attention = config, None
        embedding, width = config.embedding, config.hidden
        self.project = projection(config, region_width)
        self.embedding = nn.Embedding(words, embedding, padding_idx=PAD)
        self.from_word = Linear(embedding, width)
        self.positions = nn.Embedding(LONGEST, width) if config.positions == "learned" else None
        self.layers = nn.ModuleList(
            TransformerLayer(config, config.regions or region_width) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.output_hidden = Linear(width, embedding)
        self.output = Linear(embedding, words)
        if config.tied:
            self.output.weight = self.embedding.weight
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.embedding.weight[PAD].zero_()
        self.output.bias.zero_()
        if self.positions is not None:
            self.positions.weight.copy_(sinusoids(torch.arange(LONGEST), self.config.hidden))

    def start(
        self, regions: Tensor | Regions, captions: int = 1, randomness: Randomness | None = None
    ) -> tuple[DecoderInputs, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""
        regions = Regions.of(regions)
        projected: Tensor = self.project(regions.present())  # (B, L, R)
        if randomness is not None:
            projected = randomness.dropout(projected, self.config.region_dropout)
        keys, values = zip(*(layer.prepare(projected) for layer in self._layers()), strict=True)
        words = None if torch.is_grad_enabled() else WordGates(self.embedding, self.from_word)
        nothing = projected.new_zeros(len(projected), 1, 2, 0, self.config.hidden)  # (B, 1, 2, 0, H)
        return TransformerInputs(keys, values, regions.mask, words), State((nothing,) * len(keys)).expand(captions)

    def _layers(self) -> Iterator[TransformerLayer]:
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            yield layer

    def embed(
        self, words: Tensor, inputs: DecoderInputs | None = None, randomness: Randomness | None = None
    ) -> EmbeddedWords:
        """Return words (B, N), or whole captions (B, N, T), and as the first layer reads them but for their places."""
        assert inputs is None or isinstance(inputs, TransformerInputs)
        vectors = self._dropout(self.embedding(words), randomness)  # (..., E)
        known = inputs.words if inputs is not None else None
        projected = self.from_word(vectors) if known is None else known(words)  # (..., H)
        return EmbeddedWords(vectors, projected * math.sqrt(self.config.hidden))  # as large as positions are

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
        """Read one word of each caption, which looks at those before it and at the regions.

        Captions of one parent share the keys and values of the words so far; all else depends on the word.
        """
        if parents is not None:
            images = torch.arange(len(parents), device=parents.device).unsqueeze(1)  # (B, 1)
            state = State(tuple(past[images, parents] for past in state.tensors), state.step)  # (B, K, 2, t, H)
        rows, layered, state = self._read(inputs, state, words.unsqueeze(2), randomness)
        hidden, context, alpha = (each.squeeze(2) for each in (rows, layered[-1].context, layered[-1].alpha))
        alpha = alpha.mean(dim=2)  # (B, N, L)
        return Step(state, hidden, context, alpha, alpha.new_ones(*alpha.shape[:2], 1), None)

    def _read(
        self,
        inputs: DecoderInputs,
        state: State,
        words: Tensor,
        randomness: Randomness | None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Layered], State]:
        """Read words (B, N, S, H) through all layers: return hidden states, packed, what layers did, and the state."""
        assert isinstance(inputs, TransformerInputs)
        batch, captions, count, _ = words.shape
        reading = Reading((batch, captions, count), mask, inputs.mask, randomness)
        rows = reading.pack(words + self._places(state.step, count, words))
        layered: list[Layered] = []
        for each in zip(self._layers(), state.tensors, inputs.keys, inputs.values, strict=True):
            layer, past, keys, values = each
            layered.append(layer(rows, past, keys, values, reading))
            rows = layered[-1].words
        after = State(tuple(each.past for each in layered), state.step + count)
        hidden: Tensor = self.norm(rows)
        return hidden, layered, after

    def _places(self, first: int, count: int, like: Tensor) -> Tensor:
        """Return what tells the places of words, (S, H), the first of which is the `first` of its caption, from 0."""
        places = torch.arange(first, first + count, device=like.device)
        if self.positions is None:
            return sinusoids(places, self.config.hidden).to(like.dtype)
        if first + count > LONGEST:
            raise ValueError(
                f"a caption has {first + count - 1} words or more; learned positions are for {LONGEST - 1}, "
                "decoder.positions sinusoidal for any number"
            )
        learned: Tensor = self.positions(places)
        return learned

    def logits(
        self, words: EmbeddedWords, step: Step, randomness: Randomness | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return scores (..., V) of the next word, of the hidden state alone; see `Decoder.logits`."""
        return self._score(step.hidden if mask is None else step.hidden[mask], randomness, mask)

    def _score(self, hidden: Tensor, randomness: Randomness | None, mask: Tensor | None) -> Tensor:
        summary = self.output_hidden(self._dropout(hidden, randomness, mask))  # (..., E)
        return aligned_linear(self.output, summary)  # (..., V)

    def forward(
        self,
        regions: Tensor | Regions,
        caption_ids: Tensor,
        randomness: Randomness | None = None,
        mask: Tensor | None = None,
    ) -> Outputs:
        """Read captions (B, N, T + 1), all words at once, and score each next word but the first.

        With a mask (B, N, T), only words where it is True are scored; those where it is not are left out of all layers.
        """
        hidden, layered = self._read_captions(regions, caption_ids, randomness, mask)
        alpha = layered[-1].alpha.mean(dim=3)  # (B, N, T, L)
        if mask is not None:
            alpha = alpha * mask.unsqueeze(-1)
        beta = alpha.new_ones(*alpha.shape[:3], 1)  # (B, N, T, 1)
        return Outputs(self._score(hidden, randomness, mask), alpha, beta, None, None)

    def all_looks(self, regions: Tensor | Regions, caption_ids: Tensor) -> Tensor:
        """Return the weights (B, N, T, layers, heads, L) of each next word, where `forward` has their mean."""
        _, layered = self._read_captions(regions, caption_ids, None, None)
        return torch.stack([each.alpha for each in layered], dim=3)

    def _read_captions(
        self, regions: Tensor | Regions, caption_ids: Tensor, randomness: Randomness | None, mask: Tensor | None
    ) -> tuple[Tensor, list[Layered]]:
        inputs, state = self.start(regions, caption_ids.shape[1], randomness)
        words = self.embed(caption_ids[:, :, :-1], randomness=randomness).projected  # (B, N, T, H)
        hidden, layered, _ = self._read(inputs, state, words, randomness, mask)
        return hidden, layered


def sinusoids(places: Tensor, width: int) -> Tensor:
    """Return sines and cosines (S, H) of places (S,), of wavelengths from 2 pi to 10,000 times that."""
    steps = torch.arange(0, width, 2, device=places.device) / width  # (H / 2,)
    angles = places.unsqueeze(1) * 10_000.0**-steps  # (S, H / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
