"""What training reads: captions of one or several data sets as word ids, and the regions of their images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from captioner.datasets.dataset import CaptionDataset, CaptionedImage, load_dataset
from captioner.datasets.vocabulary import SPECIALS, Vocabulary
from captioner.images.preprocessing import BOXES
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.fill_cache import fill_cache
from captioner.model.encoders.region_cache import RegionCache, cache_folder, cache_identity
from captioner.processes import Processes
from captioner.threads import map_ahead
from captioner.training.batches import Batch, Corpus, EpochPlan, Indices
from captioner.training.objects import Boxes, read_boxes
from captioner.training.recipe import Recipe
from captioner.training.settings import DataConfig

AHEAD = 3  # batches that are read while one is learned from
Read = TypeVar("Read")
_Split = tuple[tuple[CaptionedImage, ...], tuple[CaptionedImage, ...]]  # to train on, and to validate on
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, out of how much


@dataclass(frozen=True)
class ValidationSet:
    """The images of one data set that captions are searched for, and their regions, also those of a lower part."""

    name: str
    images: tuple[CaptionedImage, ...]
    cache: RegionCache
    lower: RegionCache | None = None


@dataclass(frozen=True)
class Caches:
    """The regions of all images that one encoder makes, a cache for each data set."""

    plain: tuple[RegionCache, ...]
    mirrored: tuple[RegionCache, ...] = ()  # the same of flipped images, where those are used

    def of(self, index: int) -> tuple[RegionCache, ...]:
        """Return those of one data set."""
        return (self.plain[index], *self.mirrored[index : index + 1])

    def close(self) -> None:
        """Close all of them."""
        for cache in (*self.plain, *self.mirrored):
            cache.close()


@dataclass(frozen=True)
class TrainingData:
    """Everything that batches are made of; nothing of it is in memory but captions."""

    corpus: Corpus
    vocabulary: Vocabulary
    sources: NDArray[np.int64]  # (I,), the data set of each image of the corpus
    caches: Caches
    validation: tuple[ValidationSet, ...]
    lower: Caches | None = None  # of the encoder's lower part, where the blocks above it are trained
    boxes: Boxes | None = None  # of objects in the images of the corpus, where a loss asks for them

    def close(self) -> None:
        """Close the caches; nothing can be read after this."""
        for caches in (self.caches, self.lower):
            if caches is not None:
                caches.close()

    def regions(self, images: Indices, mirrored: NDArray[np.bool_], *, lower: bool = False) -> NDArray[np.float16]:
        """Return the regions (B, L, D) of images of the corpus, of the flipped ones where `mirrored` (B,).

        They are those of the whole encoder, or of its `lower` part.
        """
        caches = self.lower if lower else self.caches
        assert caches is not None
        regions = np.empty((len(images), *caches.plain[0].shape), np.float16)
        for row, (image, flipped) in enumerate(zip(images.tolist(), mirrored.tolist(), strict=True)):
            cache = (caches.mirrored if flipped else caches.plain)[self.sources[image]]
            regions[row] = cache.regions([self.corpus.images[image].file_name])[0]
        return regions

    def mask(self, images: Indices) -> NDArray[np.bool_] | None:
        """Return where images of the corpus have regions, (B, L); None where every image has all."""
        names = [(self.sources[image], self.corpus.images[image].file_name) for image in images.tolist()]
        caches = self.lower or self.caches  # of the lower part there is one of every image
        masks = [caches.plain[source].mask([name]) for source, name in names]
        return (
            np.concatenate([mask for mask in masks if mask is not None]) if any(m is not None for m in masks) else None
        )

    def pixels(self, images: Indices, mirrored: NDArray[np.bool_], encoder: Encoder) -> NDArray[np.uint8]:
        """Return the images (B, S, S, 3) themselves, as the encoder takes them."""
        ways = (encoder.preprocessing, replace(encoder.preprocessing, flip=True))
        chosen = zip(images.tolist(), mirrored.tolist(), strict=True)
        size = encoder.preprocessing.size
        read = [ways[flipped].read(self.corpus.images[image].path).pixels for image, flipped in chosen]
        return np.stack(read) if read else np.empty((0, size, size, 3), np.uint8)


def prepare_data(
    recipe: Recipe,
    encoder: Encoder,
    vocabulary: Vocabulary | None,
    processes: Processes,
    *,
    extend: bool = False,
    device: str = "auto",
    say: Say = lambda text: None,
    progress: Progress = lambda what, done, total: None,
) -> TrainingData:
    """Read the data sets, fill what their region caches lack, and build a vocabulary where none is given.

    With `extend` one that is given gets the new words of these data sets. Where only blocks of the encoder are trained,
    what comes before them has caches too. Only the first process fills caches and says what it finds; the others wait
    for it.
    """
    _check_cache_roots(recipe.data)
    sets = _with_distinct_names([_load(data) for data in recipe.data])
    splits = [_splits(data, dataset) for data, dataset in zip(recipe.data, sets, strict=True)]
    encoders = [encoder, *([encoder.lower(recipe.tuning.blocks)] if recipe.tuning.is_partial else [])]
    # Where blocks are trained from the first epoch on, whole regions are only needed to validate the start.
    spared = recipe.tuning.is_partial and recipe.tuning.is_active(0)
    if processes.is_first:
        for data, dataset, (train, validation) in zip(recipe.data, sets, splits, strict=True):
            for note in dataset.notes:
                say(f"{dataset.name}: {note}")
            refused = []
            for each in encoders:
                split = ((), validation) if spared and each is encoder else (train, validation)
                refused += _fill(data, split, each, flips=recipe.batches.flips, device=device, progress=progress)
            for reason in dict.fromkeys(refused):  # the same for each encoder
                say(f"left out: {reason}")
    processes.wait()
    opened = [_open_caches(recipe, each) for each in encoders]
    read = opened[-1:] if spared else opened
    kept = [
        [image for image in train if all(image.file_name in cache for each in read for cache in each.of(index))]
        for index, (train, _) in enumerate(splits)
    ]
    images = [image for part in kept for image in part]
    if not images:
        raise ValueError("none of the training images could be read; there is nothing to train on")
    if vocabulary is None or extend:
        tell = say if processes.is_first else lambda text: None
        vocabulary = _find_words(images, recipe.vocabulary.minimum_count, vocabulary, tell)
    return TrainingData(
        Corpus.build(images, vocabulary),
        vocabulary,
        np.repeat(np.arange(len(kept)), [len(part) for part in kept]),
        opened[0],
        tuple(
            _validation_set(dataset, validation, [each.plain[index] for each in opened], recipe.validation.images)
            for index, (dataset, (_, validation)) in enumerate(zip(sets, splits, strict=True))
        ),
        opened[1] if len(opened) > 1 else None,
        _find_boxes(recipe, sets, kept, say if processes.is_first else lambda text: None),
    )


def _find_boxes(
    recipe: Recipe, sets: Sequence[CaptionDataset], images: Sequence[Sequence[CaptionedImage]], say: Say
) -> Boxes | None:
    """Return the boxes of objects in the training images, None where no loss asks for them."""
    asked = [f"loss.{name}" for name in ("guide", "objects") if getattr(recipe.loss, name)]
    asked += ["self_critical.absent"] if recipe.self_critical.epochs and recipe.self_critical.absent else []
    if not asked:
        return None
    boxes = read_boxes([(dataset.root, part) for dataset, part in zip(sets, images, strict=True)])
    if not boxes.known.any():
        expected = sets[0].root / "annotations" / f"instances_{recipe.data[0].train}.json"
        need = f"{' and '.join(asked)} {'need' if len(asked) > 1 else 'needs'} the boxes of objects"
        raise ValueError(f"{need}, and there are none; expected {expected}")
    ends = np.cumsum([len(part) for part in images])
    for dataset, known in zip(sets, np.split(boxes.known, ends[:-1]), strict=True):
        if not known.all():
            missing = f"{len(known) - known.sum():,} of {len(known):,} training images"
            say(f"{dataset.name}: {missing} have no boxes of objects")
    return boxes


def _find_words(images: Sequence[CaptionedImage], least: int, known: Vocabulary | None, say: Say) -> Vocabulary:
    """Return the words that captions have at least so often, after those that are `known` already."""
    found = Vocabulary.build((words for image in images for words in image.tokenized()), least)
    if known is None:
        if len(found) == len(SPECIALS):
            raise ValueError(f"no word occurs {least} times in the training captions; lower vocabulary.minimum_count")
        return found
    extended = known.extended(found)
    if len(extended) > len(known):
        say(f"{len(extended) - len(known):,} words are new to the model that this one starts from")
    return extended


def _fill(
    data: DataConfig, split: _Split, encoder: Encoder, *, flips: bool, device: str, progress: Progress
) -> list[str]:
    """Fill what the caches of one data set lack; return why images were refused."""
    train, validation = split
    if encoder.preprocessing.fit == BOXES:
        with RegionCache(cache_folder(cache_root(data), cache_identity(encoder))) as cache:
            absent = [image for image in (*train, *validation) if image.file_name not in cache]
        return [f"images of {data.root} without imported regions: {len(absent):,}"] if absent else []
    refused: list[str] = []
    for flip in (False, True) if flips else (False,):
        what = "mirrored" if flip else "regions"
        _, report = fill_cache(
            train if flip else [*train, *validation],
            cache_root(data),
            encoder,
            flip=flip,
            device=device,
            progress=lambda done, total, what=what: progress(what, done, total),  # type: ignore[misc]
        )
        refused += report.refused
    return refused


def _check_cache_roots(configs: Sequence[DataConfig]) -> None:
    """Raise ValueError where images of two data sets would be taken for each other's in one cache."""
    owners: dict[Path, tuple[int, Path]] = {}
    for index, data in enumerate(configs):
        root = Path(data.root).resolve()
        first, other = owners.setdefault(cache_root(data).resolve(), (index, root))
        if other != root:
            raise ValueError(
                f"data.{first} and data.{index} both keep their regions in {cache_root(data)}; "
                f"name another folder in data.{index}.features"
            )


def _with_distinct_names(sets: Sequence[CaptionDataset]) -> list[CaptionDataset]:
    """Number the data sets that have the name of an earlier one, so that their scores are told apart."""
    names = [dataset.name for dataset in sets]
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    return [
        replace(dataset, name=f"{dataset.name} {count + 1}") if count else dataset
        for dataset, count in zip(sets, earlier, strict=True)
    ]


def _load(data: DataConfig) -> CaptionDataset:
    if not Path(data.root).exists():
        raise ValueError(f"{data.root} is not there; name the folder of the data set with data.root=PATH")
    return load_dataset(data.root, data.format, restval_to_train=data.restval_to_train, tolerance=data.tolerance)


def _splits(data: DataConfig, dataset: CaptionDataset) -> _Split:
    try:
        return dataset.split(data.train), dataset.split(data.validation)
    except ValueError as error:
        raise ValueError(f"{error}; name others with data.train=NAME and data.validation=NAME") from None


def cache_root(data: DataConfig) -> Path:
    """Return the folder of the region caches of a data set."""
    return Path(data.features) if data.features else Path("features") / Path(data.root).resolve().name


def _open_caches(recipe: Recipe, encoder: Encoder) -> Caches:
    plain, mirrored = (
        tuple(
            RegionCache(cache_folder(cache_root(data), cache_identity(encoder, flip=flip)))
            for data in recipe.data
            if recipe.batches.flips or not flip
        )
        for flip in (False, True)
    )
    return Caches(plain, mirrored)


def _validation_set(
    dataset: CaptionDataset, images: Sequence[CaptionedImage], caches: Sequence[RegionCache], count: int
) -> ValidationSet:
    usable = [image for image in images if all(image.file_name in cache for cache in caches)]
    if not usable:
        raise ValueError(f"none of the validation images of {dataset.name} could be read")
    if count and count < len(usable):
        usable = [usable[index * len(usable) // count] for index in range(count)]  # spread over the split
    return ValidationSet(dataset.name, tuple(usable), *caches)


def read_batches(plan: EpochPlan, first: int, read: Callable[[Batch], Read]) -> Iterator[tuple[Batch, Read]]:
    """Yield the batches of a plan from number `first` on with what `read` makes of them, read a little ahead."""

    def load(index: int) -> tuple[Batch, Read]:
        batch = plan[index]
        return batch, read(batch)

    return map_ahead(load, range(first, len(plan)), workers=1, ahead=AHEAD, name="batches")
