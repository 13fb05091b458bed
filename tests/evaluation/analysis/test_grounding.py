from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from helpers.toy_captions import FITTINGS, GRID, SIDE, SIZES, caption_of, one_cell, seen_box

from captioner.captioning.caption import Caption
from captioner.datasets.annotations import Problems
from captioner.datasets.instances import AnnotatedImage, Instance, Instances
from captioner.datasets.object_names import CATEGORIES
from captioner.evaluation.analysis.grounding import METHODS, Grounding, measure_grounding
from captioner.images.geometry import Box, Geometry
from captioner.images.preprocessing import Preprocessing

UNIFORM = np.full((1, *GRID), 1 / (GRID[0] * GRID[1]))


def annotate(size: tuple[int, int], *objects: tuple[str, Box]) -> Instances:
    instances = tuple(Instance(category, box, False) for category, box in objects)
    return Instances({1: AnnotatedImage(*size, instances)}, CATEGORIES, Problems())


def ground(caption: Caption, instances: Instances) -> Grounding:
    return measure_grounding([caption], [1], instances, resamples=0)


def values(scores: dict[str, Any]) -> list[float]:
    return [scores[name].value for name in METHODS]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fitting", FITTINGS.values(), ids=FITTINGS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_one_cell_inside_and_outside_a_box(size: tuple[int, int], fitting: dict[str, Any], flip: bool) -> None:
    geometry = Preprocessing(SIDE, flip=flip, **fitting).geometry(*size)
    left, top, width, height = seen_box(size, fitting)
    cell = 5, 2  # row, column on the grid, which the network may have seen mirrored
    column = GRID[1] - 1 - cell[1] if flip else cell[1]
    # The box is the left half of that cell and a little more, so that its centre is inside.
    box_left, box_top = left + width * column / GRID[1], top + height * cell[0] / GRID[0]
    box = (box_left, box_top, box_left + 0.6 * width / GRID[1], box_top + height / GRID[0])
    instances = annotate(size, ("dog", box))
    inside = ground(caption_of(one_cell(*cell), geometry, ("dog",)), instances).overall
    assert inside.pointing["attention"].value == 1.0
    assert inside.mass["attention"].value == pytest.approx(0.6)
    outside = ground(caption_of(one_cell(cell[0], 7), geometry, ("dog",)), instances).overall
    assert outside.pointing["attention"].value == 0.0
    assert outside.mass["attention"].value == pytest.approx(0.0)
    assert inside.pointing["uniform"].value == pytest.approx(1 / (GRID[0] * GRID[1]))
    assert inside.mass["uniform"].value == pytest.approx(0.6 / (GRID[0] * GRID[1]))


def test_boxes_of_a_detector_are_regions_of_their_own() -> None:
    """A region's share is that of its own box, wherever it lies and whatever it overlaps."""
    regions = ((0.0, 0.0, 40.0, 40.0), (20.0, 0.0, 100.0, 40.0), (60.0, 50.0, 100.0, 80.0))
    geometry = Geometry(100, 80, (0.0, 0.0, 100.0, 80.0), boxes=regions)
    instances = annotate((100, 80), ("dog", (0.0, 0.0, 40.0, 80.0)))
    attention = np.array([[[0.5, 0.2, 0.3]]])
    row = ground(caption_of(attention, geometry, ("dog",)), instances).overall
    assert row.mass["attention"].value == pytest.approx(0.5 + 0.2 * 0.25)
    assert row.mass["uniform"].value == pytest.approx((1 + 0.25) / 3)
    assert row.pointing["attention"].value == 1.0
    assert row.pointing["uniform"].value == pytest.approx(1 / 3)
    assert row.mass["centre"].value < row.mass["uniform"].value  # the second lies nearer to the middle


def test_uniform_attention_scores_as_the_uniform_baseline_does() -> None:
    size = SIZES["landscape"]
    geometry = Preprocessing(SIDE).geometry(*size)
    box = (0.0, 0.0, size[0] / 2, float(size[1]))
    row = ground(caption_of(UNIFORM, geometry, ("dog",)), annotate(size, ("dog", box))).overall
    assert row.mass["attention"].value == pytest.approx(0.5)
    assert row.mass["uniform"].value == pytest.approx(0.5)
    assert row.mass["caption"].value == pytest.approx(0.5)
    assert row.mass["centre"].value == pytest.approx(0.5)  # half of what is symmetric
    # Of nine columns five have their centres in the left half, the edge included.
    assert row.pointing["attention"].value == pytest.approx(5 / 9)
    assert row.pointing["uniform"].value == pytest.approx(5 / 9)
    assert row.pointing["centre"].value == 1.0


def test_overlapping_boxes_count_once_and_the_whole_image_is_all() -> None:
    size = SIZES["portrait"]
    geometry = Preprocessing(SIDE, "crop").geometry(*size)
    whole = (0.0, 0.0, float(size[0]), float(size[1]))
    row = ground(caption_of(UNIFORM, geometry, ("dog",)), annotate(size, ("dog", whole), ("dog", whole))).overall
    assert values(row.mass) == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert values(row.pointing) == [1.0, 1.0, 1.0, 1.0]


def test_the_centre_prefers_what_is_in_the_middle() -> None:
    size = (90, 70)
    geometry = Preprocessing(SIDE).geometry(*size)
    middle, corner = (30.0, 20.0, 60.0, 50.0), (0.0, 0.0, 30.0, 30.0)
    words = ("dog", "cat")
    caption = caption_of(np.concatenate([UNIFORM, UNIFORM]), geometry, words)
    found = ground(caption, annotate(size, ("dog", middle), ("cat", corner))).categories
    assert found["dog"].mass["centre"].value > 2 * found["dog"].mass["uniform"].value
    assert found["cat"].mass["centre"].value < found["cat"].mass["uniform"].value
    assert (found["dog"].pointing["centre"].value, found["cat"].pointing["centre"].value) == (1.0, 0.0)


def test_a_name_of_two_words_has_the_mean_of_their_weights() -> None:
    size = (90, 70)  # cells of ten pixels
    geometry = Preprocessing(SIDE).geometry(*size)
    attention = np.concatenate([one_cell(0, 0), one_cell(0, 0), one_cell(6, 8)])
    caption = caption_of(attention, geometry, ("a", "tennis", "racket"))
    row = ground(caption, annotate(size, ("tennis racket", (0.0, 0.0, 10.0, 10.0)))).overall
    assert row.words == 1
    assert row.mass["attention"].value == pytest.approx(0.5)
    assert row.pointing["attention"].value == 0.5  # two regions share the highest weight
    assert row.mass["caption"].value == pytest.approx(2 / 3)


def test_objects_that_are_not_there_are_counted_apart() -> None:
    size = SIZES["panorama"]
    geometry = Preprocessing(SIDE, "crop").geometry(*size)  # the middle 60 of 500 pixels
    words = ("a", "dog", "on", "a", "skateboard", "near", "people")
    caption = caption_of(np.repeat(UNIFORM, len(words), axis=0), geometry, words)
    unseen = (0.0, 0.0, 200.0, 60.0)
    found = ground(caption, annotate(size, ("person", unseen), ("dog", (240.0, 0.0, 260.0, 60.0)), ("cat", unseen)))
    assert found.absent == {"person": 1, "skateboard": 1}
    assert list(found.categories) == ["dog"]
    assert found.absent_share == pytest.approx(2 / 3)
    assert "not there: 2 (66.7%)" in found.to_text()


@pytest.mark.parametrize("words", [(), ("the",), ("two", "red", "umbrellas")])
def test_captions_that_name_nothing_to_be_found(words: tuple[str, ...]) -> None:
    geometry = Preprocessing(SIDE).geometry(90, 70)
    none = np.zeros(len(words), dtype=np.float32)
    attention = np.repeat(UNIFORM, len(words), axis=0).astype(np.float32)
    caption = Caption(" ".join(words), words, none, -1.0, attention, none, geometry)
    found = measure_grounding([caption], [1], annotate((90, 70)))
    assert (found.overall.words, found.overall.images, found.categories) == (0, 0, {})
    assert all(math.isnan(score.value) for score in found.overall.pointing.values())
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["overall"]["mass"]["attention"]["value"] is None
    assert "all names" in found.to_text()
    assert measure_grounding([], [], annotate((90, 70))).captions == 0


def test_boxes_fit_a_smaller_copy_and_not_an_image_that_was_turned() -> None:
    instances = annotate((640, 427), ("dog", (0.0, 0.0, 320.0, 427.0)))
    smaller = caption_of(UNIFORM, Preprocessing(SIDE).geometry(256, 171), ("dog",))
    found = ground(smaller, instances)
    assert (found.misfits, found.overall.words) == (0, 1)
    assert found.overall.mass["uniform"].value == pytest.approx(0.5)
    turned = ground(caption_of(UNIFORM, Preprocessing(SIDE).geometry(427, 640), ("dog",)), instances)
    assert (turned.misfits, turned.overall.words) == (1, 0)
    assert "left out 1 images" in turned.to_text()


def test_categories_that_the_annotators_did_not_look_for_are_not_judged() -> None:
    geometry = Preprocessing(SIDE).geometry(90, 70)
    caption = caption_of(np.concatenate([UNIFORM, UNIFORM]), geometry, ("dog", "cat"))
    only_cats = Instances({1: AnnotatedImage(90, 70, ())}, ("cat",), Problems())
    assert ground(caption, only_cats).absent == {"cat": 1}


def test_intervals_are_over_images_and_advantages_on_the_same_draws() -> None:
    geometry = Preprocessing(SIDE).geometry(90, 70)
    box = (0.0, 0.0, 10.0, 10.0)
    captions = [caption_of(one_cell(0, 0), geometry, ("dog",))] * 6 + [
        caption_of(one_cell(6, 6), geometry, ("dog",))
    ] * 2
    image = AnnotatedImage(90, 70, (Instance("dog", box, False),))
    instances = Instances(dict.fromkeys(range(8), image), CATEGORIES, Problems())
    found = measure_grounding(captions, range(8), instances, resamples=400)
    score = found.overall.pointing["attention"]
    assert score.value == 0.75
    assert score.interval is not None
    assert score.interval.low < 0.75 < score.interval.high <= 1.0
    assert score.advantage is None
    centre = found.overall.pointing["centre"]
    assert centre.value == 0.0
    assert centre.advantage is not None
    assert centre.advantage.value == 0.75
    assert centre.advantage.interval == score.interval
    assert found.categories["dog"].images == 8
    assert measure_grounding(captions, range(8), instances, resamples=400) == found
    json.dumps(found.to_dict(), allow_nan=False)


def test_images_without_annotations_and_uneven_lists_are_refused() -> None:
    caption = caption_of(UNIFORM, Preprocessing(SIDE).geometry(90, 70), ("dog",))
    with pytest.raises(ValueError, match="2 of 3 images have no object annotations, the first are 5, 6"):
        measure_grounding([caption] * 3, [1, 5, 6], annotate((90, 70)))
    with pytest.raises(ValueError, match="1 captions for 2 image ids"):
        measure_grounding([caption], [1, 1], annotate((90, 70)))
