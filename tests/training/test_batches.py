from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.vocabulary import END, PAD, SPECIALS, START, Vocabulary
from captioner.model.encoders.region_cache import RegionCache
from captioner.training.batches import Batch, Corpus, EpochPlan
from captioner.training.data import Caches, TrainingData, read_batches
from captioner.training.settings import BatchConfig

VOCABULARY = Vocabulary((*SPECIALS, *(f"word{number}" for number in range(300))))


def make_image(number: int, lengths: list[int], chance: np.random.Generator) -> CaptionedImage:
    """An image whose captions differ from all others: their first two words name the image and the caption."""
    tokens = tuple(
        (f"word{number}", f"word{own}", *(f"word{word}" for word in chance.integers(0, 300, length)))
        for own, length in enumerate(lengths)
    )
    name = f"{number}.jpg"
    return CaptionedImage(name, Path(name), number, "train", tuple(" ".join(words) for words in tokens), tokens)


def make_corpus(counts: list[int], longest: int = 20, seed: int = 0) -> Corpus:
    """A corpus of images with so many captions each, of any lengths."""
    chance = np.random.default_rng(seed)
    images = [
        make_image(number, chance.integers(0, longest, count).tolist(), chance) for number, count in enumerate(counts)
    ]
    return Corpus.build(images, VOCABULARY)


UNEVEN = make_corpus([1 + number % 7 for number in range(140)])


def captions_in(batch: Batch) -> list[tuple[int, tuple[int, ...]]]:
    """Return the image and the ids up to the end of every caption of a batch."""
    found = []
    for image, captions in zip(batch.images.tolist(), batch.caption_ids.tolist(), strict=True):
        for ids in captions:
            found.append((image, tuple(ids[: ids.index(END) + 1])))
    return found


def all_captions(corpus: Corpus) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (index, tuple(VOCABULARY.encode(words)))
        for index, image in enumerate(corpus.images)
        for words in image.tokenized()
    ]


def waste(plan: EpochPlan) -> float:
    """Return the share of all places for words that is padding."""
    return 1 - sum(batch.mask.sum() for batch in plan) / sum(batch.mask.size for batch in plan)


def test_a_corpus_is_the_captions_end_to_end() -> None:
    chance = np.random.default_rng(0)
    corpus = Corpus.build([make_image(0, [3, 0], chance), make_image(1, [1], chance)], VOCABULARY)
    assert corpus.lengths().tolist() == [7, 4, 5]  # two words that name it, and two markers
    assert corpus.starts.tolist() == [0, 7, 11, 16]
    assert corpus.captions.tolist() == [0, 2, 3]
    assert corpus.ids[[0, 6, 7, 10, 11, 15]].tolist() == [START, END] * 3


@pytest.mark.parametrize("config", [BatchConfig(20, 5, 3), BatchConfig(7, 7, 1), BatchConfig(1, 1, 2)], ids=str)
@pytest.mark.parametrize("epoch", [0, 5])
def test_every_caption_of_every_image_comes_once_an_epoch(config: BatchConfig, epoch: int) -> None:
    plan = EpochPlan(UNEVEN, config, 3, epoch)
    found = [caption for batch in plan for caption in captions_in(batch)]
    assert sorted(found) == sorted(all_captions(UNEVEN))


def test_batches_are_image_major_without_empty_rows() -> None:
    config = BatchConfig(20, 5, 3)
    for batch in EpochPlan(UNEVEN, config, 0, 0):
        images, captions, length = batch.caption_ids.shape
        assert batch.images.shape == batch.mirrored.shape == (images,)
        assert batch.mask.shape == (images, captions, length - 1)
        assert batch.caption_count == images * captions
        assert captions <= 5
        assert images * captions <= 20
        assert (batch.caption_ids[:, :, 0] == START).all()
        lengths = batch.mask.sum(axis=2)
        assert (lengths >= 3).all()  # two words and the end, at least
        assert (np.diff(lengths, axis=1) <= 0).all()  # the longest first
        assert lengths.max() == length - 1  # no column is all padding


def test_padding_comes_only_after_the_end() -> None:
    for batch in EpochPlan(UNEVEN, BatchConfig(20, 5, 3), 0, 0):
        for ids, told in zip(batch.caption_ids.reshape(-1, batch.caption_ids.shape[2]),
                             batch.mask.reshape(-1, batch.mask.shape[2]), strict=True):  # fmt: skip
            end = ids.tolist().index(END)
            assert (ids[:end] != PAD).all()
            assert (ids[end + 1 :] == PAD).all()
            assert told.tolist() == [place < end for place in range(len(told))]


def test_many_captions_are_cut_into_even_parts_drawn_anew_each_epoch() -> None:
    corpus = make_corpus([7] * 30)
    partners: set[frozenset[tuple[int, ...]]] = set()
    for epoch in range(4):
        parts = Counter()
        for batch in EpochPlan(corpus, BatchConfig(20, 5, 3), 0, epoch):
            parts[batch.caption_ids.shape[1]] += len(batch.images)
            captions = captions_in(batch)
            partners |= {frozenset(ids for image, ids in captions if image == own) for own in batch.images.tolist()}
        assert parts == {4: 30, 3: 30}
    assert len(partners) > 4 * 30  # with the same parts each time there were two an image


def test_images_with_no_more_captions_than_fit_stay_together() -> None:
    corpus = make_corpus([5] * 12)
    for batch in EpochPlan(corpus, BatchConfig(15, 5, 2), 0, 0):
        assert batch.caption_ids.shape[1] == 5
        assert len(set(batch.images.tolist())) == len(batch.images) <= 3


def test_a_batch_has_at_least_one_image_even_if_it_may_hold_few_captions() -> None:
    plan = EpochPlan(make_corpus([3] * 4), BatchConfig(4, 3, 2), 0, 0)
    assert [batch.caption_ids.shape[:2] for batch in plan] == [(1, 3)] * 4


def contents(plan: EpochPlan) -> list[tuple[object, ...]]:
    return [(batch.images.tolist(), batch.caption_ids.tolist(), batch.mirrored.tolist(), batch.seed) for batch in plan]


@pytest.mark.parametrize("captions", [0, 2])
def test_a_limit_of_images_cuts_the_batches_of_images_with_few_captions_alone(captions: int) -> None:
    free = EpochPlan(UNEVEN, BatchConfig(20, 5), 3, 0, captions=captions)
    limited = EpochPlan(UNEVEN, BatchConfig(20, 5, images=6), 3, 0, captions=captions)
    assert max(len(batch.images) for batch in free) == (10 if captions else 20)
    assert max(len(batch.images) for batch in limited) == 6
    assert sum(len(batch.images) for batch in limited) == sum(len(batch.images) for batch in free)
    if not captions:
        assert max(batch.caption_count for batch in limited) == 20  # of those with five each
        found = [caption for batch in limited for caption in captions_in(batch)]
        assert sorted(found) == sorted(all_captions(UNEVEN))


def test_order_and_contents_follow_from_seed_and_epoch() -> None:
    config = BatchConfig(20, 5, 3, flips=True)
    plan = EpochPlan(UNEVEN, config, 1, 2)
    np.random.seed(99)  # which must not matter
    again = EpochPlan(UNEVEN, config, 1, 2)
    assert contents(plan) == contents(again)
    assert contents(again)[5] == contents(plan)[5]  # asked for twice, or out of turn
    others = [EpochPlan(UNEVEN, config, seed, epoch) for seed, epoch in ((1, 3), (2, 2), (2, 1))]
    for other in others:
        assert len(other) == len(plan)
        assert contents(other) != contents(plan)
    seeds = [batch.seed for each in (plan, *others) for batch in each]
    assert len(set(seeds)) == len(seeds)  # no two steps draw the same numbers


def test_pools_sort_by_length() -> None:
    corpus = make_corpus([5] * 400)
    unsorted, small, large = (EpochPlan(corpus, BatchConfig(20, 5, pool), 0, 0) for pool in (1, 4, 50))
    assert waste(large) < waste(small) < waste(unsorted)
    assert waste(large) < 0.9 * waste(unsorted)
    assert len(large) == len(unsorted) == 100
    # One caption an image: pools of this size make nearly every batch one of a single length, as the paper's are.
    plan = EpochPlan(corpus, BatchConfig(20, 1, 100), 0, 0)
    assert waste(plan) < 0.02
    lengths = [int(batch.mask.sum(axis=2).max()) for batch in plan]
    assert lengths != sorted(lengths)  # the batches themselves come in any order


def test_flips_are_about_half_of_the_images_and_others_each_epoch() -> None:
    corpus = make_corpus([2] * 1000, longest=2)
    seen = []
    for epoch in range(2):
        flipped = np.zeros(1000, bool)
        for batch in EpochPlan(corpus, BatchConfig(20, 1, 3, flips=True), 0, epoch):
            flipped[batch.images] = batch.mirrored
        seen.append(flipped)
        assert 430 < flipped.sum() < 570  # 500 and 4.4 standard deviations
    assert 430 < (seen[0] != seen[1]).sum() < 570
    assert not any(batch.mirrored.any() for batch in EpochPlan(corpus, BatchConfig(20, 1, 3), 0, 0))


def test_all_captions_of_an_image_see_it_the_same_way() -> None:
    ways: dict[int, set[bool]] = {}
    for batch in EpochPlan(make_corpus([4] * 50), BatchConfig(4, 1, 3, flips=True), 0, 0):
        for image, flipped in zip(batch.images.tolist(), batch.mirrored.tolist(), strict=True):
            ways.setdefault(image, set()).add(flipped)
    assert all(len(own) == 1 for own in ways.values())


def test_batches_to_be_sampled_have_each_image_once() -> None:
    plan = EpochPlan(UNEVEN, BatchConfig(21, 5, 3), 0, 0, captions=4)
    images = [image for batch in plan for image in batch.images.tolist()]
    assert sorted(images) == list(range(len(UNEVEN.images)))
    assert {len(batch.images) for batch in plan} == {5}
    assert {batch.caption_count for batch in plan} == {20}
    assert images != sorted(images)


def test_only_images_with_enough_captions_are_sampled_for() -> None:
    plan = EpochPlan(UNEVEN, BatchConfig(21, 5, 3), 0, 0, captions=4, least_captions=4, references=True)
    images = Counter(image for index in range(len(plan)) for image in plan[index].images.tolist())
    assert images == {image: 1 for image in range(140) if 1 + image % 7 >= 4}
    assert len(EpochPlan(UNEVEN, BatchConfig(21, 5, 3), 0, 0, least_captions=4)) == len(
        EpochPlan(UNEVEN, BatchConfig(21, 5, 3), 0, 0)
    )  # words are learned of all images
    with pytest.raises(ValueError, match=r"no training image has 8 captions.*self_critical\.least_captions"):
        EpochPlan(UNEVEN, BatchConfig(21, 5, 3), 0, 0, captions=4, least_captions=8)


def test_a_large_corpus_is_small() -> None:
    count = 20_000
    words = tuple(f"word{number}" for number in range(10))
    images = [
        CaptionedImage(f"{number}.jpg", Path("x.jpg"), number, "train", ("",) * 5, (words,) * 5)
        for number in range(count)
    ]
    corpus = Corpus.build(images, VOCABULARY)
    size = corpus.ids.nbytes + corpus.starts.nbytes + corpus.captions.nbytes
    assert size / (5 * count) < 60  # bytes a caption of twelve ids; as a list of Python's numbers it has over 150
    plan = EpochPlan(corpus, BatchConfig(), 0, 0)
    assert sum(len(batch) for batch in plan.batches) == count


def make_cache(folder: Path, names: list[str], shape: tuple[int, int]) -> RegionCache:
    """A cache as it lies on disk, whose rows are holes in a file: zeros that take no room."""
    folder.mkdir()
    identity = {"format": 1, "grid": [1, shape[0]], "dimensions": shape[1], "preprocessing": {}}
    (folder / "cache.json").write_text(json.dumps(identity))
    with (folder / "index.jsonl").open("w") as index:
        for row, name in enumerate(names):
            record = {"file_name": name, "row": row, "size": 1, "modified": 1, "digest": ""}
            index.write(json.dumps(record) + "\n")
    with (folder / "regions.f16").open("wb") as rows:
        rows.truncate(len(names) * shape[0] * shape[1] * 2)
    return RegionCache(folder)


def resident_bytes() -> int:
    """Return how much memory this process has, files that it has mapped and read among it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_regions_are_read_from_a_mapped_file_and_only_where_they_are_needed(tmp_path: Path) -> None:
    corpus = make_corpus([1] * 300)
    # All 20,000 rows would be 4 GB; those of the corpus lie far apart.
    names = [f"{number // 66}.jpg" if number % 66 == 0 else f"x{number}.jpg" for number in range(20_000)]
    straight, flipped = (make_cache(tmp_path / way, names, (196, 512)) for way in ("straight", "flipped"))
    for cache, sign in ((straight, 1), (flipped, -1)):
        writable = np.memmap(cache.folder / "regions.f16", np.float16, "r+", shape=cache.rows.shape)
        for image in corpus.images:
            writable[cache.records[image.file_name].row, 0, :2] = (sign, image.image_id)
        del writable
    sources = np.zeros(300, np.int64)
    data = TrainingData(corpus, VOCABULARY, sources, Caches((straight,), (flipped,)), ())
    before = resident_bytes()
    seen = 0
    for batch in EpochPlan(corpus, BatchConfig(20, 5, 3, flips=True), 0, 0):
        regions = data.regions(batch.images, batch.mirrored)
        assert regions.shape == (len(batch.images), 196, 512)
        assert regions[:, 0, 0].tolist() == np.where(batch.mirrored, -1, 1).tolist()
        assert regions[:, 0, 1].tolist() == batch.images.tolist()
        seen += len(batch.images)
    assert seen == 300
    assert isinstance(straight.rows, np.memmap)
    assert resident_bytes() - before < 500e6  # 300 rows are 60 MB


def test_batches_are_read_ahead_in_order_and_from_any_place() -> None:
    plan = EpochPlan(UNEVEN, BatchConfig(20, 5, 3), 0, 0)
    asked: list[tuple[int, ...]] = []

    def read(batch: Batch) -> int:
        asked.append(batch.seed)
        return int(batch.images[0])

    found = list(read_batches(plan, 0, read))
    assert [batch.seed for batch, _ in found] == [batch.seed for batch in plan] == asked
    assert [first for _, first in found] == [int(batch.images[0]) for batch in plan]
    later = [batch.seed for batch, _ in read_batches(plan, 5, read)]
    assert later == [batch.seed for batch in plan][5:]
    assert list(read_batches(plan, len(plan), read)) == []
    asked.clear()
    reader = read_batches(plan, 0, read)
    next(reader)
    reader.close()  # as when a run is stopped
    assert len(asked) < len(plan)


def test_what_goes_wrong_while_reading_ahead_is_raised() -> None:
    plan = EpochPlan(UNEVEN, BatchConfig(20, 5, 3), 0, 0)

    def read(batch: Batch) -> int:
        if batch.seed == plan[4].seed:
            raise OSError("gone")
        return 0

    reader = read_batches(plan, 0, read)
    assert [next(reader)[1] for _ in range(4)] == [0] * 4
    with pytest.raises(OSError, match="gone"):
        next(reader)


def test_references_are_drawn_anew_and_change_nothing_else() -> None:
    config = BatchConfig(20, 5, flips=True)
    drawn: dict[int, set[tuple[int, ...]]] = {}
    for epoch in range(40):
        plain = EpochPlan(UNEVEN, config, 3, epoch, captions=4)
        plan = EpochPlan(UNEVEN, config, 3, epoch, captions=4, references=True)
        for batch, without in zip(plan, plain, strict=True):
            for one, other in ((batch.images, without.images), (batch.mirrored, without.mirrored)):
                assert one.tolist() == other.tolist()
            assert batch.seed == without.seed
            assert without.references is None
            assert batch.references is not None
            assert batch.references.shape[:2] == (len(batch.images), 1)
            for image, (ids,) in zip(batch.images.tolist(), batch.references.tolist(), strict=True):
                drawn.setdefault(image, set()).add(tuple(ids[: ids.index(END) + 1]))
    everything = {(image, ids) for image, captions in drawn.items() for ids in captions}
    assert everything <= set(all_captions(UNEVEN))
    assert len(everything) > 0.95 * len(all_captions(UNEVEN))  # sooner or later each of them
