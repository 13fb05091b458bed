"""Splits of a data set that names none: drawn by a seed, written to splits.json, and read from there ever after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from captioner.datasets.annotations import load_json
from captioner.files import write_whole

SPLITS_FILE = "splits.json"
DEFAULT_SEED = 0
FRACTIONS = (0.8, 0.1, 0.1)  # of train, val and test


def splits_by_name(root: Path, file_names: Collection[str], seed: int | None, notes: list[str]) -> dict[str, list[str]]:
    """Return the splits of every image that splits.json names, which is made and written where there is none.

    Images that it does not list are put into train; what is notable about it is added to `notes`.
    """
    path = root / SPLITS_FILE
    if path.is_file():
        splits = _read_splits(path, seed)
        notes.append(f"splits read from {SPLITS_FILE}")
    else:
        seed = DEFAULT_SEED if seed is None else seed
        splits = _seeded_splits(file_names, seed)
        notes.append(_write_splits(path, seed, splits))
    members: dict[str, list[str]] = {}
    for split, names in splits.items():
        for name in dict.fromkeys(names):
            members.setdefault(name, []).append(split)
    known = set(file_names)
    if unlisted := len(known - members.keys()):
        # Adding them to a test set would change what earlier results were measured on.
        notes.append(f"put into train: {unlisted} images that are not in {SPLITS_FILE}")
    if gone := len(members.keys() - known):
        notes.append(f"named in {SPLITS_FILE} but not in the data set: {gone} images")
    return {name: members.get(name, ["train"]) for name in file_names}


def _seeded_splits(file_names: Iterable[str], seed: int) -> dict[str, list[str]]:
    """Cut the images, in the order of a hash of seed and name, into train, val and test."""
    # A hash rather than a random generator: the same on every machine and with every version of every library.
    ordered = sorted(file_names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    first, second = round(len(ordered) * FRACTIONS[0]), round(len(ordered) * (FRACTIONS[0] + FRACTIONS[1]))
    return {"train": sorted(ordered[:first]), "val": sorted(ordered[first:second]), "test": sorted(ordered[second:])}


def _read_splits(path: Path, seed: int | None) -> dict[str, list[str]]:
    content = load_json(path)
    written = content.get("seed")
    if seed is not None and written != seed:
        raise ValueError(f"{path} was made with seed {written}, not {seed}: ask for the same, or remove the file")
    splits = content.get("splits")
    if not isinstance(splits, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in splits.values()
    ):
        raise ValueError(f"{path} has no usable 'splits', expected an object of lists of file names")
    return splits


def _write_splits(path: Path, seed: int, splits: dict[str, list[str]]) -> str:
    """Write the splits in one move and return a note about it."""
    content = {"seed": seed, "fractions": FRACTIONS, "splits": splits}
    sizes = ", ".join(f"{name} {len(names)}" for name, names in splits.items())
    try:
        write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        return f"could not write {SPLITS_FILE} ({error.strerror}): {sizes} (seed {seed}, the same at every load)"
    return f"wrote {SPLITS_FILE}: {sizes} (seed {seed})"
