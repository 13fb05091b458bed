"""The decoder that the settings ask for; `decoders/` has them all, behind one interface."""

from __future__ import annotations

from captioner.model.config import AttentionConfig, DecoderConfig, check_parts
from captioner.model.decoders.interface import Decoder, Outputs, State
from captioner.model.decoders.lstm import LSTMDecoder
from captioner.model.decoders.transformer import TransformerDecoder
from captioner.model.decoders.two_layers import TwoLayerDecoder

__all__ = ["Decoder", "Outputs", "State", "make_decoder"]


def make_decoder(
    config: DecoderConfig, attention: AttentionConfig, words: int, region_width: int, grid: tuple[int, int]
) -> Decoder:
    """Return a new decoder of V words, for regions (B, L, `region_width`) of a `grid` of (rows, columns) = L cells."""
    check_parts(config, attention)
    if config.kind == "transformer":
        return TransformerDecoder(config, words, region_width)
    decoder = TwoLayerDecoder if config.layers == 2 else LSTMDecoder
    return decoder(config, attention, words, region_width, grid)
