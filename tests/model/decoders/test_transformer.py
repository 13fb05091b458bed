from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from helpers.decoder_kinds import TRANSFORMER, D, L, V, make_inputs, make_kind
from torch import Tensor, nn

from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.decoders.transformer import LONGEST, TransformerDecoder, sinusoids
from captioner.model.decoders.transformer_layer import TransformerLayer

SETTINGS: dict[str, Any] = {"embedding": 4, "regions": 3, "positions": "sinusoidal", **TRANSFORMER}
SCALED_DOT = AttentionConfig(score="scaled-dot")


def make(**settings: Any) -> TransformerDecoder:
    decoder = make_kind("transformer-sinusoidal", **settings)
    assert isinstance(decoder, TransformerDecoder)
    return decoder


def torchs_layer(layer: TransformerLayer, regions: int) -> nn.TransformerDecoderLayer:
    """Return torch's own layer with the weights of ours; its keys and values of regions are as wide as the regions."""
    width, feed_forward = layer.word_output.in_features, layer.feed_forward[0].out_features
    theirs = nn.TransformerDecoderLayer(width, layer.heads, feed_forward, 0.0, batch_first=True, norm_first=True)
    theirs.multihead_attn = nn.MultiheadAttention(width, layer.heads, batch_first=True, kdim=regions, vdim=regions)
    theirs = theirs.double()
    query, keys_values = layer.region_query, layer.region_reader
    keys, values = keys_values.weight.chunk(2)
    copies = {
        "self_attn.in_proj_weight": layer.word_reader.weight,
        "self_attn.in_proj_bias": layer.word_reader.bias,
        "multihead_attn.q_proj_weight": query.weight,
        "multihead_attn.k_proj_weight": keys,
        "multihead_attn.v_proj_weight": values,
        "multihead_attn.in_proj_bias": torch.cat([query.bias, keys_values.bias]),
    }
    layers = {
        "self_attn.out_proj": layer.word_output,
        "multihead_attn.out_proj": layer.region_output,
        "linear1": layer.feed_forward[0],
        "linear2": layer.feed_forward[2],
        "norm1": layer.word_norm,
        "norm2": layer.region_norm,
        "norm3": layer.feed_norm,
    }
    for name, own in layers.items():
        copies |= {f"{name}.weight": own.weight, f"{name}.bias": own.bias}
    theirs.load_state_dict(copies)
    return theirs.eval()


def test_the_layers_are_torchs() -> None:
    decoder = make(heads=3, layers=3)
    regions, ids = make_inputs(batch=2, captions=1, length=5)
    projected = decoder.project(regions)  # (B, L, R)
    words = decoder.from_word(decoder.embedding(ids[:, 0, :-1])) * math.sqrt(6)  # (B, T, H)
    words = words + sinusoids(torch.arange(5), 6).double()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for layer in decoder.layers:
        words = torchs_layer(layer, 3)(words, projected, tgt_mask=causal)
    expected = decoder.output(decoder.output_hidden(decoder.norm(words)))
    torch.testing.assert_close(decoder(regions, ids).logits[:, 0], expected)


def test_alpha_is_the_mean_over_heads_of_the_last_layer() -> None:
    decoder = make(layers=3)
    regions, ids = make_inputs()
    looks = decoder.all_looks(regions, ids)
    assert looks.shape == (3, 2, 5, 3, 2, L)
    torch.testing.assert_close(looks.sum(dim=-1), torch.ones(3, 2, 5, 3, 2).double())
    torch.testing.assert_close(looks[:, :, :, -1].mean(dim=3), decoder(regions, ids).alpha)
    assert (looks[:, :, :, 0] != looks[:, :, :, 1]).any()
    assert (looks[..., 0, :] != looks[..., 1, :]).any()


@pytest.mark.parametrize("kind", ["lstm-soft", "two-layers-hard"])
def test_a_decoder_that_looks_once_has_one_layer_and_head(kind: str) -> None:
    decoder, (regions, ids) = make_kind(kind), make_inputs()
    looks = decoder.all_looks(regions, ids)
    assert looks.shape == (3, 2, 5, 1, 1, L)
    torch.testing.assert_close(looks[:, :, :, 0, 0], decoder(regions, ids).alpha)


def test_a_mask_leaves_words_out_of_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make()
    regions, ids = make_inputs(batch=2, captions=2, length=6)
    mask = torch.arange(6) < torch.tensor([[5, 3], [2, 0]]).unsqueeze(-1)  # (B, N, T)
    rows: list[int] = []
    for layer in decoder.layers:
        layer.feed_forward.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[0]))
    outputs = decoder(regions, ids, mask=mask)
    assert rows == [10, 10]
    assert not outputs.alpha[~mask].any()


def test_places_of_words_are_told_apart() -> None:
    """Without positions, the words before the last could come in any order."""
    regions, ids = make_inputs(batch=1, captions=1, length=4)
    swapped = ids[:, :, [1, 0, 2, 3, 4]]
    for positions in ("sinusoidal", "learned"):
        decoder = make_kind(f"transformer-{positions}")
        assert (decoder(regions, ids).logits[0, 0, 3] - decoder(regions, swapped).logits[0, 0, 3]).abs().max() > 1e-6


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(torch.arange(7), 6)
    for place in range(7):
        for pair in range(3):
            angle = place / 10_000 ** (2 * pair / 6)
            assert table[place, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    torch.testing.assert_close(sinusoids(torch.arange(3, 5), 6), table[3:5])
    assert sinusoids(torch.arange(2), 5).shape == (2, 5)


def test_learned_positions_come_to_an_end() -> None:
    regions, _ = make_inputs(batch=1)
    long = torch.ones(1, 1, LONGEST + 2, dtype=torch.long)
    assert make_kind("transformer-learned")(regions, long[:, :, :-1]).logits.shape == (1, 1, LONGEST, V)
    with pytest.raises(ValueError, match=r"^a caption has 128 words or more; learned positions are for 127"):
        make_kind("transformer-learned")(regions, long)
    assert make()(regions, long).logits.shape == (1, 1, LONGEST + 1, V)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "gru"}, "decoder kind is 'gru'; choose from lstm, transformer"),
        ({"layers": 0}, "decoder layers is 0; it must be at least 1"),
        ({"heads": 0}, "decoder heads is 0; it must be at least 1"),
        ({"heads": 4}, "decoder heads is 4; it must divide hidden, 6"),
        ({"feed_forward": 0}, "decoder feed_forward is 0; it must be at least 1"),
        ({"positions": "none"}, "decoder positions is 'none'; choose from learned, sinusoidal"),
        ({"gate": "vector"}, "decoder gate is 'vector'; a transformer has none: choose none"),
        ({"deep_output": True}, "decoder deep_output is true; a transformer has none: choose false"),
        ({"kind": "lstm"}, "decoder heads is 2; an LSTM has none: choose kind transformer"),
        ({"kind": "lstm", "heads": 0}, "decoder feed_forward is 7; an LSTM has none: choose kind transformer"),
        (
            {"kind": "lstm", "heads": 0, "feed_forward": 0},
            "decoder positions is 'sinusoidal'; an LSTM has none: choose kind transformer",
        ),
    ],
)
def test_settings_that_do_not_apply_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DecoderConfig(**{**SETTINGS, **settings})


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ({"mode": "hard"}, "attention.mode is 'hard'; with decoder.kind transformer it must be 'soft'"),
        ({"mode": "none"}, "attention.mode is 'none'; with decoder.kind transformer it must be 'soft'"),
        ({"score": "additive"}, "attention.score is 'additive'; with decoder.kind transformer it must be 'scaled-dot'"),
        ({"heads": 2}, "attention.heads is 2; with decoder.kind transformer it must be 0"),
    ],
)
def test_attention_that_does_not_apply_is_refused(attention: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_decoder(DecoderConfig(**SETTINGS), AttentionConfig(**{"score": "scaled-dot", **attention}), V, D, (2, 2))


def test_region_widths_need_not_be_the_decoders() -> None:
    regions, ids = make_inputs()
    for width in (0, 5):
        decoder = make_decoder(DecoderConfig(**{**SETTINGS, "regions": width}), SCALED_DOT, V, D, (2, 2)).double()
        logits: Tensor = decoder(regions, ids).logits
        assert logits.isfinite().all()
