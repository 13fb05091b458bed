from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from captioner.training.recipe import Recipe
from captioner.training.resuming import check_extension, check_settings, differences
from captioner.training.settings import DataConfig, SelfCriticalConfig

RUN = Path("runs/x")
RECIPE = Recipe((DataConfig("photos"),), epochs=5)


def with_epochs(epochs: int, critical: int = 0) -> Recipe:
    return replace(RECIPE, epochs=epochs, self_critical=SelfCriticalConfig(epochs=critical))


def test_settings_are_compared_key_by_key() -> None:
    check_settings(RECIPE, RECIPE, RUN)
    moved = replace(RECIPE.data[0], root="elsewhere", features="there")
    free = replace(
        RECIPE,
        data=(moved,),
        epochs=8,
        save_every=5,
        tensorboard=True,
        validation=replace(RECIPE.validation, patience=2, overlays=9),
        self_critical=SelfCriticalConfig(epochs=3),
    )
    check_settings(free, RECIPE, RUN)
    for other, message in (
        (replace(RECIPE, data=(replace(moved, train="val"),)), r"data\.0\.train 'train', not 'val'"),
        (replace(RECIPE, data=(moved, moved)), r"data \["),
        (replace(RECIPE, validation=replace(RECIPE.validation, beam=7)), "validation.beam 3, not 7"),
        (replace(RECIPE, precision="bfloat16"), "precision 'float32', not 'bfloat16'"),
    ):
        expected = rf"^runs/x was begun with {message}[^\n]*; keep that, [^\n]* may change epochs, [^\n]*\)$"
        with pytest.raises(ValueError, match=expected):
            check_settings(other, RECIPE, RUN)


def test_differences_name_dotted_keys_and_both_values() -> None:
    other = replace(RECIPE, seed=3, data=(DataConfig("photos", train="all"),))
    assert differences(other, RECIPE) == [("data.0.train", "all", "train"), ("seed", 3, 0)]


@pytest.mark.parametrize(
    ("now", "then", "done", "said"),
    [
        ((5, 0), (5, 0), (2, 3), None),
        ((8, 0), (5, 0), (5, 0), "epochs: 8 instead of 5, and the learning rate follows the schedule of that many"),
        ((4, 0), (5, 0), (3, 9), "epochs: 4 instead of 5, and the learning rate follows the schedule of that many"),
        ((5, 2), (5, 0), (5, 0), "epochs: 5 and 2 self-critical instead of 5"),
        ((5, 4), (5, 2), (6, 1), "epochs: 5 and 4 self-critical instead of 5 and 2 self-critical"),
        ((7, 2), (5, 2), (5, 0), "epochs: 7 and 2 self-critical instead of 5 and 2 self-critical, and the learning "),
    ],
)
def test_a_run_may_become_longer_or_end_sooner(
    now: tuple[int, int], then: tuple[int, int], done: tuple[int, int], said: str | None
) -> None:
    progress = {"epoch": done[0], "batch": done[1], "step": 99}
    told = check_extension(with_epochs(*now), with_epochs(*then), progress, RUN)
    assert told == said if said is None else (told or "").startswith(said)


@pytest.mark.parametrize(
    ("now", "then", "done", "message"),
    [
        ((2, 0), (5, 0), (2, 1), r"^runs/x has trained 3 epochs already; epochs=2 is fewer$"),
        ((4, 2), (5, 2), (5, 0), r"^runs/x has trained 5 epochs already"),
        ((8, 2), (5, 2), (5, 1), r"^runs/x is past its 5 epochs of cross entropy, .*; change self_critical.epochs"),
        ((5, 1), (5, 3), (7, 0), r"^runs/x has trained 7 epochs already"),
    ],
)
def test_what_is_done_cannot_be_undone(
    now: tuple[int, int], then: tuple[int, int], done: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_extension(with_epochs(*now), with_epochs(*then), {"epoch": done[0], "batch": done[1], "step": 9}, RUN)
