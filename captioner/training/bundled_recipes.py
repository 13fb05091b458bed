"""Recipes by name: those that come with the package, and YAML files anywhere; no torch here."""

from __future__ import annotations

import difflib
import os
from itertools import takewhile
from pathlib import Path

RECIPES = Path(__file__).parent.parent / "recipes"


def bundled_recipes() -> dict[str, str]:
    """Return the names of the recipes that come with the package, each with what its file says first."""
    return {path.stem: _description(path) for path in sorted(RECIPES.glob("*.yaml"), key=lambda path: path.stem)}


def _description(path: Path) -> str:
    """Return the comment that a recipe starts with, up to the line that tells how it is run."""
    lines = takewhile(
        lambda line: line.startswith("#") and "captioner train" not in line,
        path.read_text(encoding="utf-8").splitlines(),
    )
    return " ".join(line.removeprefix("#").strip() for line in lines)


def find_recipe(recipe: str | os.PathLike[str]) -> Path:
    """Return the file of a recipe: a bundled one by name, or a path; a ValueError names the choices.

    A file comes before a bundled recipe of the same name only when its path says so, as in `./tiny`.
    """
    names = list(bundled_recipes())
    if isinstance(recipe, str) and recipe in names:
        return RECIPES / f"{recipe}.yaml"
    path = Path(recipe)
    if path.exists():
        return path
    if path.stem in names and path.suffix in (".yaml", ".yml"):
        raise ValueError(f"{path} is not there; the recipe {path.stem} comes with captioner and needs no path")
    if path.suffix or path.name != str(recipe):
        return path  # it is said to be a file, and whoever opens it says that it is not there
    close = difflib.get_close_matches(path.name, names, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"unknown recipe {path.name!r}{meant}; choose from {', '.join(names)}, or name a YAML file")
