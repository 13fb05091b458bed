from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from helpers.toy_learner import L, make_batch, make_learner, snapshot, some_regions

from captioner.training.learner import Learner
from captioner.training.settings import OptimiserConfig, TuningConfig

OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
RATES = (0.02, 0.01, 0.005)


def train(learner: Learner, steps: int = 3) -> list[dict[str, float]]:
    found = []
    for step in range(steps):
        loss, numbers = learner.teacher_forcing_loss(make_batch(step), some_regions(step))
        found.append(learner.optimise(loss, numbers, (RATES[step % 3], 0.0), step, flag=False))
    return found


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_weights_change_as_torch_s_own_optimiser_changes_them(name: str, clip: float) -> None:
    learner = make_learner(optimiser=OptimiserConfig(name, weight_decay=0.1, clip=clip))
    twin = copy.deepcopy(learner.decoder)
    optimiser = OPTIMISERS[name](twin.parameters(), weight_decay=0.1)
    numbers = train(learner)
    replica = make_learner()
    replica.criterion.decoder = twin
    for step, found in enumerate(numbers):
        loss, _ = replica.teacher_forcing_loss(make_batch(step), some_regions(step))
        optimiser.zero_grad()
        loss.backward()
        norm = torch.stack([parameter.grad.norm() for parameter in twin.parameters()]).norm()  # type: ignore[union-attr]
        assert found["gradient"] == pytest.approx(norm.item())
        if clip:
            assert norm > clip, "nothing to clip"
            for parameter in twin.parameters():
                parameter.grad *= clip / norm
        optimiser.param_groups[0]["lr"] = RATES[step]
        optimiser.step()
        assert (found["loss"], found["skipped"], found["flag"]) == (pytest.approx(loss.item()), 0.0, 0.0)
    for key, value in learner.decoder.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[key], rtol=1e-5, atol=1e-7)


def test_averages_by_hand_over_three_steps() -> None:
    learner = make_learner(optimiser=OptimiserConfig(average=0.15))
    plain = make_learner(optimiser=OptimiserConfig())
    expected = snapshot(plain)
    for step, decay in enumerate((0.1, 0.15, 0.15)):  # (1 + t) / (10 + t), at most the decay asked for
        for each in (learner, plain):
            loss, numbers = each.teacher_forcing_loss(make_batch(step), some_regions(step))
            each.optimise(loss, numbers, (0.05, 0.0), step, flag=False)
        expected = {name: decay * value + (1 - decay) * snapshot(plain)[name] for name, value in expected.items()}
    before = snapshot(learner)
    assert all(torch.equal(before[name], value) for name, value in snapshot(plain).items())  # they change nothing
    with learner.averaged():
        for name, value in snapshot(learner).items():
            torch.testing.assert_close(value, expected[name])
            assert not torch.equal(value, before[name])
    assert all(torch.equal(before[name], value) for name, value in snapshot(learner).items())
    with pytest.raises(ZeroDivisionError), learner.averaged():
        raise ZeroDivisionError
    assert all(torch.equal(before[name], value) for name, value in snapshot(learner).items())


def test_without_averages_the_weights_stand_for_themselves() -> None:
    learner = make_learner()
    before = snapshot(learner)
    with learner.averaged():
        assert all(torch.equal(before[name], value) for name, value in snapshot(learner).items())


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_a_step_that_is_not_finite_changes_nothing(mode: str) -> None:
    learner = make_learner(mode, optimiser=OptimiserConfig(average=0.9))
    train(learner, 1)
    before, state = snapshot(learner), learner.state()
    kept = {name: tensor.clone() for name, tensor in state.tensors.items()}
    regions = some_regions()
    regions[2, 1, 3] = math.nan
    loss, numbers = learner.teacher_forcing_loss(make_batch(), regions)
    found = learner.optimise(loss, numbers, (0.1, 0.0), 1, flag=False)
    assert found["skipped"] == 1.0
    assert math.isnan(found["loss"])
    assert all(torch.equal(before[name], value) for name, value in snapshot(learner).items())
    after = learner.state()
    assert all(torch.equal(kept[name], value) for name, value in after.tensors.items())
    assert after.values["baseline"] == state.values["baseline"]
    assert train(learner, 1)[0]["skipped"] == 0.0  # and the next one is as good as ever


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    learner = make_learner()
    before = snapshot(learner)
    loss, numbers = learner.teacher_forcing_loss(make_batch(), some_regions())
    loss.register_hook(lambda gradient: gradient * math.inf)
    assert learner.optimise(loss, numbers, (0.1, 0.0), 0, flag=True) | {"gradient": 0.0} == {
        **numbers, "gradient": 0.0, "skipped": 1.0, "flag": 1.0
    }  # fmt: skip
    assert all(torch.equal(before[name], value) for name, value in snapshot(learner).items())


@pytest.mark.parametrize(("mode", "name"), [("soft", "adamw"), ("hard", "rmsprop")])
def test_a_restored_learner_goes_on_to_the_bit(mode: str, name: str) -> None:
    settings = OptimiserConfig(name, average=0.8)
    learner = make_learner(mode, dropout=0.2, optimiser=settings)
    train(learner)
    state = learner.state()
    tensors = {key: tensor.clone() for key, tensor in state.tensors.items()}
    expected = train(learner)
    other = make_learner(mode, dropout=0.2, scale=1.0, optimiser=settings)
    other.restore(replace(state, tensors=tensors))
    assert train(other) == expected
    for key, tensor in learner.state().tensors.items():
        assert torch.equal(other.state().tensors[key], tensor), key


def test_the_encoder_is_learned_only_where_it_is_tuned() -> None:
    fixed = make_learner()
    assert len(fixed.optimiser.param_groups) == 1
    learner = make_learner(tuning=TuningConfig(from_epoch=1))
    pixels = torch.randn(4, L, 3)
    trunk = learner.encoder.trunk
    weight = trunk.weight.detach().clone()
    loss, numbers = learner.teacher_forcing_loss(make_batch(), trunk(pixels).double())
    learner.optimise(loss, numbers, (0.0, 0.01), 0, flag=False)
    # Adam's first step is as long as its rate wherever there is a gradient; the decoder's own rate is 0 here.
    moved = (trunk.weight - weight).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=0.05, atol=1e-4)
