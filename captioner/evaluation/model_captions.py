"""Captions of the images of a split, made into a folder once and read from there, with regions from a cache.

Regions are rounded to half precision whether they come from a cache or not, so that a cache changes nothing but time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioner.captioning.caption import Caption, Result
from captioner.captioning.captioner import Captioner
from captioner.captioning.folder_run import Report, caption_into
from captioner.captioning.options import CaptionOptions, OutputOptions
from captioner.captioning.recorded_captions import recorded_captions, share_grid
from captioner.captioning.records import CAPTIONS, ERRORS, read_lines
from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.tables import json_text
from captioner.files import printable, read_json_object, write_whole
from captioner.images.opening import upright_size
from captioner.images.preprocessing import Prepared, Preprocessing
from captioner.images.sources import Source, is_in_share
from captioner.model.encoders.region_cache import FORMAT_VERSION, RegionCache, cache_folder, read_stamp
from captioner.processes import Processes

DATA = "data.json"  # which images the captions in a folder are of
LARGEST = 1_000_000  # bytes of it
_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def open_cache(root: Path, encoder_identity: Mapping[str, Any]) -> RegionCache | None:
    """Return the cache below `root` of the regions that a model's encoder makes, None where there is none."""
    identity = {"format": FORMAT_VERSION, **copy.deepcopy(dict(encoder_identity))}
    identity["preprocessing"]["flip"] = False
    folder = cache_folder(root, identity)
    return RegionCache(folder) if (folder / "cache.json").is_file() else None


@dataclass(frozen=True)
class _Cached(Prepared):
    """An image whose regions need not be computed."""

    file_name: str


@dataclass(frozen=True)
class _ShortReading(Preprocessing):
    """Reads no more than the size of an image whose regions are in a cache and still of the file as it is."""

    cache: RegionCache | None = field(default=None, repr=False)
    names: Mapping[str, str] = field(default_factory=dict, repr=False)  # in the cache, by path

    def read(self, source: str | os.PathLike[str] | bytes) -> Prepared:
        """Open and fit an image file, or find that this is not needed."""
        if self.cache is not None and not isinstance(source, bytes):
            path = Path(source)
            name = self.names.get(os.fspath(source), "") or self.cache.find(path) or ""
            record = self.cache.records.get(name)
            if record is not None and record.is_of(path, read_stamp(path)):
                geometry = self.cache.geometry(name, self.geometry(*upright_size(path)))
                return _Cached(_NO_PIXELS, geometry, name)
        return super().read(source)


class SplitCaptioner(Captioner):
    """A model that captions the images of a split, and knows the regions of those that a cache has."""

    def __init__(self, model: Captioner, images: Sequence[CaptionedImage], cache: RegionCache | None = None) -> None:
        """Take over a loaded model, with which all is shared but how it reads images."""
        vars(self).update(vars(model))
        self.cache = cache
        names = {os.fspath(image.path): image.file_name for image in images}
        self.preprocessing = _ShortReading(**vars(self.preprocessing), cache=cache, names=names)

    def encode(self, prepared: Sequence[Prepared]) -> Tensor:
        """Return the regions (B, L, D) of B images, from the cache where it has them."""
        known = [index for index, image in enumerate(prepared) if isinstance(image, _Cached)]
        new = [index for index, image in enumerate(prepared) if not isinstance(image, _Cached)]
        parts = []
        if known and self.cache is not None:
            names = [image.file_name for image in prepared if isinstance(image, _Cached)]
            parts.append(torch.from_numpy(self.cache.regions(names)).to(self.device).float())
        if new:
            parts.append(super().encode([prepared[index] for index in new]).half().float())
        order = torch.tensor([*known, *new]).argsort().to(self.device)  # (B,)
        return torch.cat(parts)[order]  # (B, L, D)


def caption_split(
    folder: Path,
    model: Captioner,
    images: Sequence[CaptionedImage],
    options: CaptionOptions,
    identity: Mapping[str, Any],
    *,
    existing: str = "skip",
    processes: Processes | None = None,
    listen: Callable[[Result], None] = lambda result: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Caption the images that the record in `folder` does not hold yet, with attention.

    `identity` tells the data in plain values; a folder with captions of other data is refused, or emptied where
    `existing` is "overwrite". `progress` is told how many of this process's images are done with. The rest is as for
    `captioner.captioning.folder_run.caption_into`.
    """
    processes = processes or Processes()
    if processes.is_first:
        _claim(folder, dict(identity), existing)
    processes.wait()
    sources = [Source(image.file_name, image.path) for image in images]
    total = sum(is_in_share(source.key, processes.rank, processes.count) for source in sources)
    return caption_into(
        folder,
        model,
        sources,
        options,
        OutputOptions(existing=existing, attention=True, stamped=False),
        processes=processes,
        listen=listen,
        progress=lambda done, _: progress(done, total),
    )


def _claim(folder: Path, identity: dict[str, Any], existing: str) -> None:
    """Write down what data the captions in a folder are of; raise ValueError where they are of other data."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = read_json_object(folder / DATA, most=LARGEST)
    except FileNotFoundError:
        found = None
    except ValueError:
        raise ValueError(f"{folder / DATA} is damaged; remove {folder} to start anew") from None
    if found == identity:
        return
    if found is not None or (folder / CAPTIONS).exists():
        if existing != "overwrite":
            what = ", ".join(f"{key} {value}" for key, value in (found or {"data": "unknown"}).items())
            raise ValueError(f"{folder} has captions of other images ({what}); name another folder, or overwrite")
        for name in (CAPTIONS, ERRORS):
            (folder / name).unlink(missing_ok=True)
    write_whole(folder / DATA, json_text(identity))


def read_captions(folder: Path, images: Collection[CaptionedImage]) -> dict[str, Caption]:
    """Return the captions of images that the record in `folder` has, with their attention, by file name."""
    paths = {image.file_name: image.path for image in images}
    found = {}
    for line in read_lines(folder / CAPTIONS):
        if line.name in paths:
            try:
                found[line.name] = recorded_captions(line.record, paths[line.name])[0]
            except ValueError as error:
                raise ValueError(f"{folder / CAPTIONS}: {printable(line.name)}: {error}") from None
    return dict(zip(found, share_grid(list(found.values())), strict=True))
