"""A layer of the transformer decoder: words look at the words before them, then at the regions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.config import DecoderConfig
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import at_least_single
from captioner.model.randomness import Randomness


@dataclass(frozen=True)
class Reading:
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
class Layered:
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
        self.word_reader = Linear(width, 3 * width)  # queries, keys and values end to end
        self.word_output = Linear(width, width)
        self.region_query = Linear(width, width)
        self.region_reader = Linear(region_width, 2 * width)  # keys and values
        self.region_output = Linear(width, width)
        self.feed_forward = nn.Sequential(
            Linear(width, config.feed_forward), nn.ReLU(), Linear(config.feed_forward, width)
        )

    def prepare(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (B, heads, H / heads, L) and values (B, heads, L, H / heads) of regions (B, L, R)."""
        keys, values = self.region_reader(regions).chunk(2, dim=-1)  # (B, L, H)
        # Laid out as products read them, or every step would do that again.
        return self._heads(keys).transpose(-1, -2).contiguous(), self._heads(values).contiguous()

    def forward(self, words: Tensor, past: Tensor, keys: Tensor, values: Tensor, reading: Reading) -> Layered:
        """Read words (B, N, S, H), or those of them that are read, after the `past` (B, N, 2, t, H) of this layer."""
        seen, past = self._read_words(reading.unpack(self.word_reader(self.word_norm(words))), past)
        words = words + self._drop(self.word_output(reading.pack(seen)), reading)
        query = reading.unpack(self.region_query(self.region_norm(words)))
        context, alpha = self._look(query, keys, values, reading.regions)  # (B, N, S, H), (B, N, S, heads, L)
        words = words + self._drop(self.region_output(reading.pack(context)), reading)
        words = words + self._drop(self.feed_forward(self.feed_norm(words)), reading)
        return Layered(words, past, context, alpha)

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

    def _drop(self, values: Tensor, reading: Reading) -> Tensor:
        if reading.randomness is None:
            return values
        return reading.randomness.dropout(values, self.dropout, reading.mask)
