"""What training reads: captions of one or several data sets as word ids, and the regions of their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from captioner.ahead import map_ahead
from captioner.batches import Batch, Corpus, EpochPlan, Numbers
from captioner.datasets import CaptionDataset, CaptionedImage, load_dataset
from captioner.distributed import Processes
from captioner.encoder import Encoder
from captioner.experiment import Experiment
from captioner.features import fill_cache
from captioner.region_cache import RegionCache, cache_folder, cache_identity
from captioner.settings import DataConfig
from captioner.vocabulary import SPECIALS, Vocabulary

AHEAD = 3  # batches that are read while one is learned from
Read = TypeVar("Read")
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, out of how much


@dataclass(frozen=True)
class ValidationSet:
    """The images of one data set that captions are searched for, and their regions."""

    name: str
    images: tuple[CaptionedImage, ...]
    cache: RegionCache


@dataclass(frozen=True)
class TrainingData:
    """Everything that batches are made of; nothing of it is in memory but captions."""

    corpus: Corpus
    vocabulary: Vocabulary
    sources: NDArray[np.int64]  # (I,), the data set of each image of the corpus
    caches: tuple[RegionCache, ...]  # one for each data set
    mirrored: tuple[RegionCache, ...]  # the same of flipped images, where those are used
    validation: tuple[ValidationSet, ...]

    def regions(self, images: Numbers, mirrored: NDArray[np.bool_]) -> NDArray[np.float16]:
        """Return the regions (B, L, D) of images of the corpus, of the flipped ones where `mirrored` (B,)."""
        regions = np.empty((len(images), *self.caches[0].shape), np.float16)
        for row, (image, flipped) in enumerate(zip(images.tolist(), mirrored.tolist(), strict=True)):
            caches = self.mirrored if flipped else self.caches
            regions[row] = caches[self.sources[image]].regions([self.corpus.images[image].file_name])[0]
        return regions

    def pixels(self, images: Numbers, mirrored: NDArray[np.bool_], encoder: Encoder) -> NDArray[np.uint8]:
        """Return the images (B, S, S, 3) themselves, as the encoder takes them."""
        ways = (encoder.preprocessing, replace(encoder.preprocessing, flip=True))
        chosen = zip(images.tolist(), mirrored.tolist(), strict=True)
        size = encoder.preprocessing.size
        read = [ways[flipped].read(self.corpus.images[image].path).pixels for image, flipped in chosen]
        return np.stack(read) if read else np.empty((0, size, size, 3), np.uint8)


def prepare_data(
    experiment: Experiment,
    encoder: Encoder,
    vocabulary: Vocabulary | None,
    processes: Processes,
    *,
    device: str = "auto",
    say: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda what, done, total: None,
) -> TrainingData:
    """Read the data sets, fill what their region caches lack, and build a vocabulary where none is given.

    Only the first process fills caches and says what it finds; the others wait for it.
    """
    _check_cache_roots(experiment.data)
    sets = _with_own_names([_load(data) for data in experiment.data])
    splits = [_splits(data, own) for data, own in zip(experiment.data, sets, strict=True)]
    flips = (False, True) if experiment.batches.flips else (False,)
    if processes.is_first:
        for data, own, (train, validation) in zip(experiment.data, sets, splits, strict=True):
            for note in own.notes:
                say(f"{own.name}: {note}")
            for flip in flips:
                what = "mirrored" if flip else "regions"
                images = train if flip else [*train, *validation]
                _, report = fill_cache(
                    images,
                    _cache_root(data),
                    encoder,
                    flip=flip,
                    device=device,
                    progress=lambda done, total, what=what: progress(what, done, total),  # type: ignore[misc]
                )
                for reason in report.refused:
                    say(f"left out: {reason}")
    processes.wait()
    opened = [[_open_cache(data, encoder, flip) for data in experiment.data] for flip in flips]
    kept = [
        [image for image in train if all(image.file_name in caches[index] for caches in opened)]
        for index, (train, _) in enumerate(splits)
    ]
    images = [image for own in kept for image in own]
    if not images:
        raise ValueError("none of the training images could be read; there is nothing to train on")
    if vocabulary is None:
        tokens = (words for image in images for words in image.tokenized())
        least = experiment.vocabulary.minimum_count
        vocabulary = Vocabulary.build(tokens, least)
        if len(vocabulary) == len(SPECIALS):
            raise ValueError(f"no word occurs {least} times in the training captions; lower vocabulary.minimum_count")
    return TrainingData(
        Corpus.build(images, vocabulary),
        vocabulary,
        np.repeat(np.arange(len(kept)), [len(own) for own in kept]),
        tuple(opened[0]),
        tuple(opened[1]) if len(opened) > 1 else (),
        tuple(
            _validation_set(own, validation, cache, experiment.validation.images)
            for own, (_, validation), cache in zip(sets, splits, opened[0], strict=True)
        ),
    )


def _check_cache_roots(configs: Sequence[DataConfig]) -> None:
    """Raise ValueError where images of two data sets would be taken for each other's in one cache."""
    owners: dict[Path, tuple[int, Path]] = {}
    for index, data in enumerate(configs):
        root = Path(data.root).resolve()
        first, other = owners.setdefault(_cache_root(data).resolve(), (index, root))
        if other != root:
            raise ValueError(
                f"data.{first} and data.{index} both keep their regions in {_cache_root(data)}; "
                f"name another folder in data.{index}.features"
            )


def _with_own_names(sets: Sequence[CaptionDataset]) -> list[CaptionDataset]:
    """Number the data sets that have the name of an earlier one, so that their scores are told apart."""
    names = [own.name for own in sets]
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    return [
        replace(own, name=f"{own.name} {count + 1}") if count else own for own, count in zip(sets, earlier, strict=True)
    ]


def _load(data: DataConfig) -> CaptionDataset:
    return load_dataset(data.root, data.format, restval_to_train=data.restval_to_train, tolerance=data.tolerance)


def _splits(data: DataConfig, own: CaptionDataset) -> tuple[tuple[CaptionedImage, ...], tuple[CaptionedImage, ...]]:
    return own.split(data.train), own.split(data.validation)


def _cache_root(data: DataConfig) -> Path:
    return Path(data.features) if data.features else Path("features") / Path(data.root).resolve().name


def _open_cache(data: DataConfig, encoder: Encoder, flip: bool) -> RegionCache:
    return RegionCache(cache_folder(_cache_root(data), cache_identity(encoder, flip=flip)))


def _validation_set(
    own: CaptionDataset, images: Sequence[CaptionedImage], cache: RegionCache, count: int
) -> ValidationSet:
    usable = [image for image in images if image.file_name in cache]
    if not usable:
        raise ValueError(f"none of the validation images of {own.name} could be read")
    if count and count < len(usable):
        usable = [usable[index * len(usable) // count] for index in range(count)]  # spread over the split
    return ValidationSet(own.name, tuple(usable), cache)


def read_batches(plan: EpochPlan, first: int, read: Callable[[Batch], Read]) -> Iterator[tuple[Batch, Read]]:
    """Yield the batches of a plan from number `first` on with what `read` makes of them, read a little ahead."""

    def load(index: int) -> tuple[Batch, Read]:
        batch = plan[index]
        return batch, read(batch)

    return map_ahead(load, range(first, len(plan)), workers=1, ahead=AHEAD, name="batches")
