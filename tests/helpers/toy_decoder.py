"""A decoder of eight words and four regions that has learnt nothing, but prefers some words to others."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoders.lstm import LSTMDecoder

V, D, L = 8, 6, 4


def make_decoder(seed: int = 0, mode: str = "soft", inference: str = "expectation", words: int = V) -> LSTMDecoder:
    """Return the decoder, in double precision, ready to search with."""
    torch.manual_seed(seed)
    config = DecoderConfig(embedding=5, hidden=6, regions=0, dropout=0.0)
    attention = AttentionConfig(mode, width=5, inference=inference)
    decoder = LSTMDecoder(config, attention, words, D, (2, 2)).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4)  # lively: otherwise every word is about as probable as any other
    return decoder


def some_regions(batch: int, seed: int = 1) -> Tensor:
    """Return regions (batch, L, D)."""
    return torch.randn(batch, L, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
