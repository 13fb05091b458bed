"""The images of a data set that one worker of a cluster captions at a time, and what becomes of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from captioner.captioning.captioner import Captioner
from captioner.captioning.collection import caption_sources
from captioner.captioning.options import CaptionOptions
from captioner.captioning.records import Origin, Record, caption_record, error_record
from captioner.images.finding import ARCHIVES, find_images, find_sources, is_url
from captioner.images.key_set import KeySet
from captioner.images.kinds import EXTENSIONS
from captioner.images.patterns import expand_patterns
from captioner.images.remote import Storage, fetch_image, find_urls, stream_shard
from captioner.images.sources import Source, name_key
from captioner.threads import map_ahead

FETCHERS = 16  # threads that wait for a store at a time


@dataclass(frozen=True)
class Unit:
    """Some images, by their paths or URLs, or a shard: an archive of images, of which there is one name."""

    names: tuple[str, ...]
    is_shard: bool = False
    attempts: int = 0  # that came to nothing

    @property
    def key(self) -> str:
        """What tells it from all others, fit for a file's name."""
        return hashlib.blake2b(b"\0".join(map(os.fsencode, self.names)), digest_size=12).hexdigest()

    def halves(self) -> tuple[Unit, Unit]:
        """Return two units that have its images between them."""
        middle = len(self.names) // 2
        return replace(self, names=self.names[:middle]), replace(self, names=self.names[middle:])


class Units:
    """The units of a data set that are not done; `skipped` counts the images and shards that are.

    `inputs` are paths and URLs of images, of archives, and of folders of either, or patterns of them. They are looked
    through as units are taken. `done` are the keys of names that are done, to which those taken are added, so that an
    image given twice is captioned once.
    """

    def __init__(
        self, inputs: Iterable[str], done: KeySet, *, size: int, recursive: bool = False, storage: Storage | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; a unit has at least 1 image")
        self.inputs, self.done, self.size, self.recursive, self.storage = inputs, done, size, recursive, storage or {}
        self.skipped = self.found = 0

    def __iter__(self) -> Iterator[Unit]:
        names: list[str] = []
        for name in self._names():
            self.found += 1
            if not self.done.add(name_key(name)):
                self.skipped += 1
            elif name.lower().endswith(ARCHIVES):
                yield Unit((name,), is_shard=True)
            else:
                names.append(name)
                if len(names) == self.size:
                    yield Unit(tuple(names))
                    names = []
        if names:
            yield Unit(tuple(names))

    def _names(self) -> Iterator[str]:
        endings = (*EXTENSIONS, *ARCHIVES)
        for given in self.inputs:
            if is_url(given):
                yield from find_urls(given, self.storage)
            else:
                paths = find_images(expand_patterns([given]), recursive=self.recursive, extensions=endings)
                yield from (path.as_posix() for path in paths)


def caption_unit(
    model: Captioner, unit: Unit, origin: Origin, options: CaptionOptions, *, folder: Path, storage: Storage
) -> list[Record]:
    """Return a record of each image of a unit, with its captions or with the reason why it has none.

    Relative paths start from `folder`. Records of a shard's images name it as their `shard`.
    """
    sources = _shard(unit.names[0], folder, storage) if unit.is_shard else _images(unit.names, folder, storage)
    rows = []
    for result in caption_sources(model, sources, options):
        if result.error is not None:
            rows.append(error_record(result.name, result.error.reason))
        else:
            rows.append(caption_record(result.name, result.captions, origin))
    if unit.is_shard:
        rows = rows or [error_record(unit.names[0], "no images in it")]
        return [{**row, "shard": unit.names[0]} for row in rows]
    return rows


def _images(names: tuple[str, ...], folder: Path, storage: Storage) -> Iterator[Source]:
    def fetch(name: str) -> Source:
        return fetch_image(name, storage) if is_url(name) else Source(name, folder / name)

    return map_ahead(fetch, names, workers=FETCHERS, ahead=2 * FETCHERS, name="fetch")


def _shard(name: str, folder: Path, storage: Storage) -> Iterator[Source]:
    if is_url(name):
        yield from stream_shard(name, storage)
        return
    path = folder / name
    prefix = path.as_posix()
    for source in find_sources([path]):
        yield replace(source, name=name + source.name.removeprefix(prefix))
