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
from torch.nn import functional as F

from captioner.datasets.vocabulary import PAD
from captioner.model.config import DecoderConfig
from captioner.model.decoders.interface import Decoder, DecoderInputs, EmbeddedWords, Outputs, State, Step, projection
from captioner.model.kernels.aligned import aligned_linear
from captioner.model.kernels.lstm import WordGates
from captioner.model.kernels.shared_matrix import at_least_single
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


@dataclass(frozen=True)
class _Reading:
    """S words of each caption on their way through the layers; with a mask, only the W where it is True."""

    shape: tuple[int, int, int]  # B, N, S
    mask: Tensor | None  # (B, N, S)
    regions: Tensor | None  # (B, L) bool: which regions there are; None: all
    randomness: Randomness | None

    def pack(self, words: Tensor) -> Tensor:
        """Return the words that are read, (W, X) of (B, N, S, X), or all."""
        return words if self.mask is None else words[self.mask]

    def unpack(self, rows: Tensor) -> Tensor:
        """Return the words that are read at their places among (B, N, S, X), zero elsewhere."""
        if self.mask is None:
            return rows
        places = self.mask.flatten().nonzero().squeeze(1)  # (W,)
        spread = rows.new_zeros(math.prod(self.shape), rows.shape[-1]).index_copy(0, places, rows)
        return spread.view(*self.shape, rows.shape[-1])


@dataclass(frozen=True)
class _Layered:
    """What a layer made of the words."""

    words: Tensor  # (B, N, S, H), or (W, H) of those that are read
    past: Tensor  # (B, N, 2, t + S, H), keys and values of all words so far
    context: Tensor  # (B, N, S, H), what was seen of the regions
    alpha: Tensor  # (B, N, S, heads, L)


class TransformerLayer(nn.Module):
    """One layer of width H on regions of width R: words so far, regions, feed-forward."""

    def __init__(self, config: DecoderConfig, region_width: int) -> None:
        super().__init__()
        width = config.hidden
        self.heads, self.dropout = config.heads, config.dropout
        self.word_norm, self.region_norm, self.feed_norm = (nn.LayerNorm(width) for _ in range(3))
        self.word_reader = nn.Linear(width, 3 * width)  # queries, keys and values end to end
        self.word_output = nn.Linear(width, width)
        self.region_query = nn.Linear(width, width)
        self.region_reader = nn.Linear(region_width, 2 * width)  # keys and values
        self.region_output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config.feed_forward), nn.ReLU(), nn.Linear(config.feed_forward, width)
        )

    def prepare(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (B, heads, H / heads, L) and values (B, heads, L, H / heads) of regions (B, L, R)."""
        keys, values = self.region_reader(regions).chunk(2, dim=-1)  # (B, L, H)
        # Laid out as products read them, or every step would do that again.
        return self._heads(keys).transpose(-1, -2).contiguous(), self._heads(values).contiguous()

    def forward(self, words: Tensor, past: Tensor, keys: Tensor, values: Tensor, reading: _Reading) -> _Layered:
        """Read words (B, N, S, H), or those of them that are read, after the `past` (B, N, 2, t, H) of this layer."""
        seen, past = self._read_words(reading.unpack(self.word_reader(self.word_norm(words))), past)
        words = words + self._drop(self.word_output(reading.pack(seen)), reading)
        query = reading.unpack(self.region_query(self.region_norm(words)))
        context, alpha = self._look(query, keys, values, reading.regions)  # (B, N, S, H), (B, N, S, heads, L)
        words = words + self._drop(self.region_output(reading.pack(context)), reading)
        words = words + self._drop(self.feed_forward(self.feed_norm(words)), reading)
        return _Layered(words, past, context, alpha)

    def _read_words(self, read: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each word sees of those up to it, (B, N, S, H), of queries, keys and values end to end."""
        batch, captions, count, _ = read.shape
        query, new = read[..., : past.shape[-1]], read[..., past.shape[-1] :]  # (B, N, S, H), (B, N, S, 2H)
        past = torch.cat([past.to(new.dtype), torch.stack(new.chunk(2, dim=-1), dim=2)], dim=3)  # (B, N, 2, t + S, H)
        queries = self._heads(query.flatten(0, 1))  # (B * N, heads, S, H / heads)
        keys, values = (self._heads(each.flatten(0, 1)) for each in past.unbind(dim=2))
        # One word may see all there are; of several, each those up to itself.
        causal = None
        if count > 1:
            causal = torch.ones(count, past.shape[3], dtype=torch.bool, device=read.device)
            causal = causal.tril(past.shape[3] - count)  # (S, t + S)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal)
        return seen.transpose(1, 2).reshape(batch, captions, count, -1), past

    def _look(self, query: Tensor, keys: Tensor, values: Tensor, there: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what queries (B, N, S, H) see of the regions, (B, N, S, H), and their weights (B, N, S, heads, L)."""
        batch, captions, count, width = query.shape
        queries = self._heads(query.flatten(1, 2))  # (B, heads, N * S, H / heads): captions share their regions
        scores = at_least_single(queries @ keys) / math.sqrt(queries.shape[-1])  # (B, heads, N * S, L)
        if there is not None:
            scores = scores.masked_fill(~there[:, None, None], -math.inf)
        alpha = scores.softmax(dim=-1)
        context = (alpha.to(values.dtype) @ values).transpose(1, 2).reshape(batch, captions, count, width)
        return context, alpha.transpose(1, 2).view(batch, captions, count, self.heads, -1)

    def _heads(self, rows: Tensor) -> Tensor:
        """Return rows (B, S, H) as (B, heads, S, H / heads)."""
        return rows.view(*rows.shape[:2], self.heads, -1).transpose(1, 2)

    def _drop(self, values: Tensor, reading: _Reading) -> Tensor:
        if reading.randomness is None:
            return values
        return reading.randomness.dropout(values, self.dropout, reading.mask)


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
        self.from_word = nn.Linear(embedding, width)
        self.positions = nn.Embedding(LONGEST, width) if config.positions == "learned" else None
        self.layers = nn.ModuleList(
            TransformerLayer(config, config.regions or region_width) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.output_hidden = nn.Linear(width, embedding)
        self.output = nn.Linear(embedding, words)
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
    ) -> tuple[Tensor, list[_Layered], State]:
        """Read words (B, N, S, H) through all layers: return hidden states, packed, what layers did, and the state."""
        assert isinstance(inputs, TransformerInputs)
        batch, captions, count, _ = words.shape
        reading = _Reading((batch, captions, count), mask, inputs.mask, randomness)
        rows = reading.pack(words + self._places(state.step, count, words))
        layered: list[_Layered] = []
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
    ) -> tuple[Tensor, list[_Layered]]:
        inputs, state = self.start(regions, caption_ids.shape[1], randomness)
        words = self.embed(caption_ids[:, :, :-1], randomness=randomness).projected  # (B, N, T, H)
        hidden, layered, _ = self._read(inputs, state, words, randomness, mask)
        return hidden, layered


def sinusoids(places: Tensor, width: int) -> Tensor:
    """Return sines and cosines (S, H) of places (S,), of wavelengths from 2 pi to 10,000 times that."""
    steps = torch.arange(0, width, 2, device=places.device) / width  # (H / 2,)
    angles = places.unsqueeze(1) * 10_000.0**-steps  # (S, H / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
