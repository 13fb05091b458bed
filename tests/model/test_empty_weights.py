from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.toy_checkpoints import make_checkpoint
from torch import nn

from captioner.model.bundled import PRETRAINED
from captioner.model.checkpoint import load_checkpoint
from captioner.model.decoders.lstm import initialise_gates
from captioner.model.empty_weights import EmptyWeights
from captioner.model.encoders import efficientnet_lite


def gates() -> tuple[nn.Linear, nn.Linear]:
    recurrent, other = nn.Linear(6, 24, bias=False), nn.Linear(5, 24)
    initialise_gates(recurrent, other)
    return recurrent, other


def test_nothing_is_drawn_within_and_everything_after() -> None:
    before = torch.get_rng_state()
    with EmptyWeights():
        recurrent, other = gates()
        embedding = nn.Embedding(7, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(each.weight.any() for each in (recurrent, other, embedding))
    assert other.bias.chunk(4)[1].eq(1).all()  # what is no random number is set
    with pytest.raises(ZeroDivisionError), EmptyWeights():
        raise ZeroDivisionError
    recurrent, _ = gates()
    for gate in recurrent.weight.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6))


def test_a_built_decoder_has_all_weights_of_its_checkpoint() -> None:
    checkpoint = make_checkpoint()
    state = checkpoint.build_decoder().state_dict()
    assert state.keys() == checkpoint.weights.keys()
    assert all(torch.equal(state[name], weight.to(state[name].dtype)) for name, weight in checkpoint.weights.items())


def test_a_tuned_encoder_is_the_installed_one_with_the_tuned_weights() -> None:
    checkpoint = load_checkpoint(PRETRAINED / "flickr8k-soft")
    installed = efficientnet_lite.load_pretrained("efficientnet-lite2").features.state_dict()
    last = list(installed)[-12:]
    tuned = {name: installed[name].half() + 1 for name in last if installed[name].is_floating_point()}
    encoder = checkpoint.build_encoder()
    encoder.trunk.load_state_dict(tuned, strict=False)
    checkpoint = replace(checkpoint, encoder_weights=tuned, encoder_identity=encoder.identity())
    state = torch.get_rng_state()
    trunk = checkpoint.build_encoder().trunk.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert len(tuned) > 5
    for name, weight in {**installed, **tuned}.items():
        assert torch.equal(trunk[name], weight.to(trunk[name].dtype)), name
