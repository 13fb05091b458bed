"""What may change between the run that began and the one that resumes it; no torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.training.recipe import Recipe, recipe_to_dict

# Where things lie, what is only looked at, and how long training goes on. That a file of encoder weights holds the same
# ones is checked when they are loaded.
FREE_SETTINGS = (
    "epochs",
    "self_critical.epochs",
    "validation.patience",
    "validation.overlays",
    "save_every",
    "tensorboard",
    "data.root",
    "data.features",
    "encoder.weights",
)


def check_settings(recipe: Recipe, before: Recipe, folder: Path) -> None:
    """Raise ValueError, naming the first key, where the run in a folder was begun with settings that must stay."""
    for key, now, then in differences(recipe, before):
        plain = ".".join(part for part in key.split(".") if not part.isdecimal())
        if plain not in FREE_SETTINGS:
            raise ValueError(
                f"{folder} was begun with {key} {then!r}, not {now!r}; keep that, or name another --run "
                f"(a run that resumes may change {', '.join(FREE_SETTINGS)})"
            )


def check_extension(recipe: Recipe, before: Recipe, progress: dict[str, int], folder: Path) -> str | None:
    """Return what to say of other epochs than a run was begun with; None where they are the same.

    `progress` has the whole epochs that are done and the batches of the next. A ValueError tells what cannot be.
    """
    now, then = ((each.epochs, each.self_critical.epochs) for each in (recipe, before))
    if now == then:
        return None
    done = progress["epoch"] + (progress["batch"] > 0)
    if then[1] and done > then[0] and now[0] != then[0]:
        raise ValueError(
            f"{folder} is past its {then[0]} epochs of cross entropy, and epochs cannot change any more; "
            "change self_critical.epochs instead"
        )
    if sum(now) < done or (now[0] < done <= then[0]):
        raise ValueError(f"{folder} has trained {done} epochs already; epochs={now[0]} is fewer")
    schedule = ", and the learning rate follows the schedule of that many" if now[0] != then[0] else ""
    return f"epochs: {_epochs(now)} instead of {_epochs(then)}{schedule}"


def _epochs(counts: tuple[int, int]) -> str:
    return f"{counts[0]} and {counts[1]} self-critical" if counts[1] else str(counts[0])


def differences(one: Recipe, other: Recipe) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys at which two recipes differ, with both values."""
    return list(_differences(recipe_to_dict(one), recipe_to_dict(other), ""))


def _differences(one: Any, other: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _differences(one.get(name), other.get(name), f"{key}.{name}".strip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from _differences(first, second, f"{key}.{index}")
    elif one != other:
        yield key, one, other
