from __future__ import annotations

import math

import pytest

from captioner.model.config import AttentionConfig
from captioner.training.settings import OptimiserConfig, ScheduleConfig


def shares(config: ScheduleConfig, total: int, steps_per_epoch: int = 10) -> list[float]:
    return [config.rate_share(step, total, steps_per_epoch) for step in range(total)]


@pytest.mark.parametrize("decay", ["cosine", "step", "constant"])
def test_the_rate_rises_evenly_to_the_whole(decay: str) -> None:
    found = shares(ScheduleConfig(decay, warmup=4, every=9), 40)
    assert found[:5] == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5, 1.0])
    assert max(found) == 1.0


def test_cosine_by_hand() -> None:
    config = ScheduleConfig("cosine", warmup=0, floor=0.0)
    assert [config.rate_share(step, 4, 1) for step in range(5)] == pytest.approx(
        [1.0, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2, 0.0]
    )
    # After two steps of warm-up a half of the eight others have passed at step 6: midway between 1 and the floor.
    config = ScheduleConfig("cosine", warmup=2, floor=0.2)
    assert config.rate_share(2, 10, 1) == 1.0
    assert config.rate_share(6, 10, 1) == pytest.approx(0.6)
    assert config.rate_share(10, 10, 1) == pytest.approx(0.2)
    assert config.rate_share(99, 10, 1) == pytest.approx(0.2)  # it does not rise again
    found = shares(config, 10)[2:]
    assert found == sorted(found, reverse=True)


def test_a_training_shorter_than_its_warm_up_never_reaches_the_whole_rate() -> None:
    assert shares(ScheduleConfig("cosine", warmup=9), 3) == pytest.approx([0.1, 0.2, 0.3])


def test_a_warm_up_below_one_is_a_share_of_the_steps() -> None:
    share, steps = ScheduleConfig(warmup=0.25), ScheduleConfig(warmup=5)
    assert shares(share, 20) == shares(steps, 20)
    assert share.warmup_steps(1000) == 250
    assert share.warmup_steps(1) == 0  # too short to warm up at all
    assert ScheduleConfig(warmup=1).warmup_steps(1000) == 1
    with pytest.raises(
        ValueError, match=r"schedule warmup is 2.5; it is a number of steps, or a share of them below 1"
    ):
        ScheduleConfig(warmup=2.5)


def test_step_multiplies_after_whole_epochs() -> None:
    config = ScheduleConfig("step", warmup=0, every=2, factor=0.1)
    found = shares(config, 15, steps_per_epoch=3)
    assert found == pytest.approx([1.0] * 6 + [0.1] * 6 + [0.01] * 3)


def test_constant_is_the_whole_rate() -> None:
    assert shares(ScheduleConfig("constant", warmup=0), 9) == [1.0] * 9


def test_temperature_falls_by_equal_factors_from_first_to_last_step() -> None:
    config = AttentionConfig("gumbel", temperature=2.0, final_temperature=0.125)
    found = [config.temperature_at(step, 5) for step in range(5)]
    assert found == pytest.approx([2.0, 1.0, 0.5, 0.25, 0.125])
    assert config.temperature_at(99, 5) == pytest.approx(0.125)
    assert config.temperature_at(0, 1) == 2.0


def test_averages_forget_fast_at_first() -> None:
    assert [OptimiserConfig(average=0.5).average_decay(step) for step in range(3)] == pytest.approx(
        [1 / 10, 2 / 11, 3 / 12]
    )
    assert OptimiserConfig(average=0.5).average_decay(7) == 8 / 17
    assert OptimiserConfig(average=0.5).average_decay(8) == 0.5
    assert OptimiserConfig(average=0.5).average_decay(10**9) == 0.5
