"""How images are captioned; no torch here, so that a command can refuse a setting at once."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from captioner.captioning.outputs import FORMATS
from captioner.model.config import SearchConfig

EXISTING = ("skip", "overwrite", "error")
_OF_BEAMS, _OF_SAMPLES = ("beam", "groups", "diversity"), ("temperature", "top_k", "top_p")


class CaptionSettings(TypedDict, total=False):
    """What a caller may give beside the images; what it means is told by `SearchConfig` and `CaptionOptions`."""

    beam: int | None
    groups: int | None
    sample: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    length_power: float | None
    minimum_length: int | None
    maximum_length: int | None
    no_repeat: int | None
    batch_size: int | None


@dataclass(frozen=True)
class CaptionOptions:
    """How images are captioned: the search, how many captions of each, and how many images at a time.

    A `batch_size` or number of `workers` (decoding threads) of None is chosen by the program; neither changes what is
    said. The `seed` is that of sampling: with an image's name or place it decides what is drawn for it.
    """

    search: SearchConfig = field(default_factory=SearchConfig)
    n_best: int = 1
    seed: int = 0
    batch_size: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_best", "batch_size", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.search.method == "beam" and self.n_best > self.search.beam:
            raise ValueError(f"n_best is {self.n_best}; a beam of {self.search.beam} gives at most {self.search.beam}")

    def identity(self) -> dict[str, Any]:
        """Return all that decides what is said, in plain values for JSON."""
        unused = _OF_SAMPLES if self.search.method == "beam" else _OF_BEAMS
        settings = {name: value for name, value in asdict(self.search).items() if name not in unused}
        if self.search.method == "beam" and self.search.groups == 1:
            del settings["groups"], settings["diversity"]
        if self.search.method == "sample":
            settings["seed"] = self.seed
        return {**settings, "n_best": self.n_best}

    def image_seed(self, image: bytes) -> int:
        """Return the seed of one image's samples."""
        return int.from_bytes(hashlib.blake2b(image, key=str(self.seed).encode(), digest_size=8).digest(), "big") >> 1


def make_options(
    *,
    n_best: int | None = None,
    beam: int | None = None,
    groups: int | None = None,
    sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    length_power: float | None = None,
    minimum_length: int | None = None,
    maximum_length: int | None = None,
    no_repeat: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> CaptionOptions:
    """Return options with some settings given; None is the default, a beam wide enough for `n_best` in `groups`.

    Settings of a beam do not go with `sample`, nor those of samples without.
    """
    of_beams = {"beam": beam, "groups": groups}
    of_samples = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    idle = next((name for name, value in (of_beams if sample else of_samples).items() if value is not None), None)
    if idle is not None:
        raise ValueError(f"{idle} {'does not go with sample' if sample else 'goes with sample only'}")
    if beam is None and not sample:
        wanted, parts = max(SearchConfig.beam, n_best or 1), max(groups or 1, 1)
        of_beams["beam"] = -(-wanted // parts) * parts
    of_both = {
        "length_power": length_power,
        "minimum_length": minimum_length,
        "maximum_length": maximum_length,
        "no_repeat": no_repeat,
    }
    given = {**of_beams, **of_samples, **of_both, "method": "sample" if sample else "beam"}
    del given["seed"]
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return CaptionOptions(SearchConfig(**settings), 1 if n_best is None else n_best, seed or 0, batch_size, workers)


@dataclass(frozen=True)
class OutputOptions:
    """What is kept of each image, in which formats, and what becomes of captions that are there already.

    `existing` is "skip" (they stay), "overwrite" (those of the images given are made anew) or "error" (nothing is
    done). `attention` puts attention grids into the record, `beside` writes a text file beside each image, the one
    thing that lies outside the folder.
    """

    formats: tuple[str, ...] = ("jsonl",)
    existing: str = "skip"
    attention: bool = False
    beside: bool = False

    def __post_init__(self) -> None:
        for format in self.formats:
            if format not in FORMATS:
                raise ValueError(f"format is {format!r}; choose from {', '.join(FORMATS)}")
        if self.existing not in EXISTING:
            raise ValueError(f"existing is {self.existing!r}; choose from {', '.join(EXISTING)}")
