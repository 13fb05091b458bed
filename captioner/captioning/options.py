"""How images are captioned; no torch here, so that a command can refuse a setting at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from captioner.captioning.output.tables import FORMATS, NAMINGS, SIDECARS
from captioner.captioning.output.wording import Wording
from captioner.model.search_settings import SearchConfig, Setting, check_settings, setting, settings_of

EXISTING = ("skip", "overwrite", "error")


class CaptionSettings(TypedDict, total=False):
    """The keywords of a Python call, for type checkers: `sample`, and `SETTINGS` without `n_best` and `workers`."""

    beam: int | None
    groups: int | None
    diversity: float | None
    sample: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    length_power: float | None
    minimum_length: int | None
    maximum_length: int | None
    no_repeat: int | None
    content_limit: int | None
    batch_size: int | None


@dataclass(frozen=True)
class CaptionOptions:
    """How images are captioned: the search, how many captions of each, and how many images at a time.

    A `batch_size` or number of `workers` of None is chosen by the program; neither changes what is said. The `seed`
    decides, with an image's name or place, what is drawn for it. With `heads`, captions have the weights of every layer
    and head of a decoder with several beside those that are their attention.
    """

    search: SearchConfig = field(default_factory=SearchConfig)
    n_best: int = setting(1, "return the N best captions per image", least=1, http=(1, 20))
    seed: int = setting(0, "seed for sampling", "SEED", method="sample", http=(-(2**63), 2**63 - 1))
    batch_size: int | None = setting(None, "caption N images at a time (default: chosen automatically)", least=1)
    workers: int | None = setting(None, "decode images in N threads (default: one per core)", least=1)
    heads: bool = False

    def __post_init__(self) -> None:
        check_settings("", self)
        if self.search.method == "beam" and self.n_best > self.search.beam:
            raise ValueError(f"n_best is {self.n_best}; a beam of {self.search.beam} gives at most {self.search.beam}")

    def identity(self) -> dict[str, Any]:
        """Return all that decides what is said, in plain values for JSON."""
        method, about = self.search.method, settings_of(SearchConfig)
        settings = {
            name: value
            for name, value in asdict(self.search).items()
            if name not in about or about[name].method in (None, method)
        }
        if method == "beam" and self.search.groups == 1:
            del settings["groups"], settings["diversity"]
        if not self.search.content_limit:
            del settings["content_limit"]
        if method == "sample":
            settings["seed"] = self.seed
        return {**settings, "n_best": self.n_best}

    def image_seed(self, image: bytes) -> int:
        """Return the seed of one image's samples."""
        return int.from_bytes(hashlib.blake2b(image, key=str(self.seed).encode(), digest_size=8).digest(), "big") >> 1


# All that a caller may set, beside `sample`: from these the command line and the HTTP API are made.
SETTINGS: Mapping[str, Setting] = {**settings_of(SearchConfig), **settings_of(CaptionOptions)}


def make_options(
    *,
    sample: bool = False,
    n_best: int | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    heads: bool = False,
    **search: float | None,
) -> CaptionOptions:
    """Return options with some settings given; None is the default, a beam wide enough for `n_best` in `groups`.

    Settings of a beam do not apply to samples, nor those of samples to a beam.
    """
    method = "sample" if sample else "beam"
    given: dict[str, Any] = {name: value for name, value in search.items() if value is not None}
    for name in (*given, *(["seed"] if seed is not None else [])):
        if name in SETTINGS and SETTINGS[name].method not in (None, method):
            raise ValueError(f"{name} {'does not apply to sampling' if sample else 'applies to sampling only'}")
    if not sample and "beam" not in given:
        wanted, groups = max(SearchConfig.beam, n_best or 1), max(given.get("groups", 1), 1)
        given["beam"] = -(-wanted // groups) * groups
    return CaptionOptions(
        SearchConfig(method, **given), 1 if n_best is None else n_best, seed or 0, batch_size, workers, heads
    )


@dataclass(frozen=True)
class OutputOptions:
    """What is kept of each image, in which formats, and what becomes of captions that are there already.

    `existing` is "skip" (they stay), "overwrite" (those of the images given are made anew) or "error" (nothing is
    done). `attention` puts attention grids into the record; where they are not `needed`, records without stay. `beside`
    writes sidecars beside the images, named by the file's `full` name or its `stem`, and `embed` puts captions into
    the images; nothing else lies outside the folder. `prune` forgets images that are gone. Records are `stamped` with
    what tells whether an image was replaced since. `corrections` are captions by the names of their images that people
    have chosen or written, which the folder keeps.
    """

    formats: tuple[str, ...] = ("jsonl",)
    existing: str = "skip"
    attention: bool = False
    beside: bool = False
    naming: str = "full"
    embed: bool = False
    prune: bool = False
    wording: Wording = field(default_factory=Wording)
    needed: bool = True
    stamped: bool = True
    corrections: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for format in self.formats:
            if format not in FORMATS:
                raise ValueError(f"format is {format!r}; choose from {', '.join(FORMATS)}")
        if self.existing not in EXISTING:
            raise ValueError(f"existing is {self.existing!r}; choose from {', '.join(EXISTING)}")
        if self.naming not in NAMINGS:
            raise ValueError(f"naming is {self.naming!r}; choose from {', '.join(NAMINGS)}")

    @property
    def beside_kinds(self) -> tuple[str, ...]:
        """The kinds of sidecars that are written beside images."""
        if not self.beside:
            return ()
        return tuple(kind for kind in SIDECARS if kind in self.formats) or ("txt",)
