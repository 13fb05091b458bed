"""Two LSTM layers; `tests/model/test_textbook.py` holds them to their page, `test_interface.py` to the interface."""

from __future__ import annotations

import pytest
import torch
from helpers.decoder_kinds import D, V, make_inputs, make_kind
from torch import Tensor

from captioner.model.config import FEEDS, AttentionConfig, DecoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.decoders.two_layers import TwoLayerDecoder, TwoLayerInputs
from captioner.model.kernels.shared_matrix import SharedMatrix


def make(mode: str = "soft", **settings: object) -> TwoLayerDecoder:
    decoder = make_kind(f"two-layers-{mode}", **settings)
    assert isinstance(decoder, TwoLayerDecoder)
    return decoder


def test_the_language_lstm_steers_the_next_look_and_the_word_this_one() -> None:
    decoder, (regions, ids) = make(), make_inputs(batch=1, captions=1)
    alpha = decoder(regions, ids).alpha[0, 0]
    other = ids.clone()
    other[0, 0, 2] = ids[0, 0, 2] % (V - 1) + 1
    changed = decoder(regions, other).alpha[0, 0]
    assert torch.equal(changed[:2], alpha[:2])
    assert (changed[2] != alpha[2]).any(), "the look does not depend on the word that is read"
    inputs, state = decoder.start(regions)
    hidden, cell, language, language_cell = state.tensors
    words = decoder.embed(ids[:, :, 0]).projected
    looks = [
        decoder.step(inputs, type(state)((hidden, cell, each, language_cell)), words).alpha
        for each in (language, language + 1)
    ]
    assert (looks[0] != looks[1]).any(), "the look does not depend on the language LSTM"


def test_beams_of_one_parent_share_the_products_of_its_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, (regions, ids) = make(), make_inputs(batch=2, captions=4)
    rows: dict[int, int] = {}
    multiply = SharedMatrix.__call__

    def count(matrix: SharedMatrix, inputs: Tensor) -> Tensor:
        rows[id(matrix)] = inputs[..., 0].numel()
        return multiply(matrix, inputs)

    with torch.no_grad():
        inputs, state = decoder.start(regions, 4)
        assert isinstance(inputs, TwoLayerInputs)
        monkeypatch.setattr(SharedMatrix, "__call__", count)
        parents = torch.tensor([[0, 0, 0, 1], [2, 2, 2, 2]])
        decoder.step(inputs, state, decoder.embed(ids[:, :, 0]).projected, parents=parents)
    assert rows[id(inputs.from_hidden)] == rows[id(inputs.from_language)] == 3  # parents
    assert rows[id(inputs.from_attention)] == rows[id(inputs.from_context)] == 8  # captions


def test_without_attention_the_image_still_reaches_the_words() -> None:
    decoder, (regions, ids) = make("none", gate="none"), make_inputs()
    assert (decoder(regions, ids).logits != decoder(regions + 1 + torch.randn_like(regions), ids).logits).any()
    for feed in FEEDS[1:]:
        with pytest.raises(ValueError, match=rf"^attention\.feed is '{feed}'; with decoder\.layers 2, .*'every-step'$"):
            make_decoder(DecoderConfig(layers=2), AttentionConfig("none", feed=feed), V, D, (2, 2))


def test_an_lstm_has_no_third_layer() -> None:
    with pytest.raises(ValueError, match=r"^decoder layers is 3; an LSTM has 1 or 2$"):
        DecoderConfig(layers=3)


def test_weights_of_one_layer_do_not_fit_two() -> None:
    one = make_kind("lstm-soft").state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: .*from_mean"):
        make().load_state_dict(one)
