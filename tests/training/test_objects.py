"""Boxes in training: what lies on which region, the guide of attention, the second task, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_learner import CORPUS, IMAGES, VOCABULARY, L, make_batch, make_learner, some_regions
from helpers.toy_training import run_toy, step_lines, tensors_of, toy_recipe, write_toy_boxes, write_toy_data
from torch import Tensor

from captioner.datasets.object_names import CATEGORIES
from captioner.datasets.vocabulary import PAD
from captioner.images.preprocessing import Preprocessing
from captioner.model.checkpoint import load_checkpoint
from captioner.model.export import export_model
from captioner.processes import Processes
from captioner.training.batches import Batch, EpochPlan
from captioner.training.objects import BatchObjects, Boxes, ObjectFinder, read_boxes
from captioner.training.rewards import Rewards
from captioner.training.settings import BatchConfig, LossConfig, SelfCriticalConfig

DOG, HORSE = CATEGORIES.index("dog"), CATEGORIES.index("horse")
# Of the four images of the toy learner: a dog twice, nothing known, a horse, a dog where captions see a bird.
BOXES = Boxes(
    np.array([[80, 40], [0, 0], [100, 100], [10, 10]], np.float32),
    np.array([0, 0, 2, 3]),
    np.array([2, 0, 1, 1]),
    np.array([[0, 0, 20, 20], [10, 0, 40, 20], [0, 50, 100, 100], [0, 0, 10, 10]], np.float32),
    np.array([DOG, DOG, HORSE, DOG], np.uint8),
)
FINDER = ObjectFinder(BOXES, VOCABULARY, Preprocessing(size=8), (2, 2))
# The shares of the four regions, by image: by hand.
COVERED = {0: [1.0, 0.0, 0.0, 0.0], 2: [0.0, 0.0, 1.0, 1.0], 3: [1.0, 1.0, 1.0, 1.0]}


def find(batch: Batch, rows: slice = slice(None)) -> BatchObjects:
    return FINDER.find(batch.images[rows], batch.mirrored[rows], batch.taught[rows])


def test_what_lies_where_by_hand() -> None:
    images = np.array([3, 2, 1, 0])
    captions = np.zeros((4, 1, 2), np.int64)
    found = FINDER.find(images, np.array([False, True, True, True]), captions)
    assert found.known.tolist() == [True, True, False, True]
    assert found.rows.tolist() == [0, 1, 3]
    assert found.categories.tolist() == [DOG, HORSE, DOG]
    assert found.coverage.tolist() == [COVERED[3], COVERED[2], [0.0, 1.0, 0.0, 0.0]]  # the last is mirrored
    targets = found.targets()
    assert targets.shape == (4, L, len(CATEGORIES))
    assert targets[3, :, DOG].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert targets.sum() == 4 + 2 + 1
    assert (found.named == -1).all()


def test_a_word_is_named_at_the_step_that_predicts_it() -> None:
    captions = [VOCABULARY.encode(text.split()) for text in ("a small dog runs", "the dog on a horse", "dog")]
    longest = max(map(len, captions))
    ids = np.array([[own + [0] * (longest - len(own)) for own in captions]])  # (1, 3, T + 1)
    named = FINDER.find(np.array([0]), np.array([False]), ids).named[0]
    for caption, row in zip(ids[0].tolist(), named.tolist(), strict=True):
        targets = [VOCABULARY.entries[number] for number in caption[1:]]
        assert row == [0 if word == "dog" else -1 for word in targets]  # there is no box of a horse here


def test_what_the_network_does_not_see_is_not_there() -> None:
    """The middle square of an image of 80 x 40 begins at 20, where the first dog ends."""
    boxes = replace(BOXES, corners=BOXES.corners[[0, 0, 2, 3]], counts=np.array([1, 0, 1, 1]))
    finder = ObjectFinder(boxes, VOCABULARY, Preprocessing(size=8, fit="crop"), (2, 2))
    found = finder.find(np.array([0]), np.array([False]), np.array([[VOCABULARY.encode(["dog"])]]))
    assert found.known.tolist() == [True]
    assert len(found.coverage) == 0
    assert found.named.max() == -1


def test_boxes_are_read_into_their_places(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_toy_boxes(data, 2)
    path = data / "annotations" / "instances_train.json"
    content = json.loads(path.read_text())
    content["images"] = [{**image, "id": number} for number, image in enumerate(content["images"], start=1)]
    content["categories"].append({"id": 9, "name": "unicorn"})
    content["annotations"] = [
        {"image_id": 2, "category_id": 9, "bbox": [0, 0, 1, 1]},
        {"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4], "iscrowd": 1},
        {"image_id": 1, "category_id": 3, "bbox": [0.5, 0, 64, 64]},
        {"image_id": 2, "category_id": 3, "bbox": [5, 6, 7, 8]},
    ]
    path.write_text(json.dumps(content))
    # The ids of two data sets have nothing to do with each other; the first set has no boxes at all.
    boxes = read_boxes([(tmp_path, IMAGES[:2]), (data, IMAGES)])
    assert boxes.known.tolist() == [False, False, False, True, True, False]
    assert boxes.counts.tolist() == [0, 0, 0, 1, 2, 0]
    own = slice(boxes.starts[4], boxes.starts[4] + 2)
    assert boxes.categories[own].tolist() == [DOG, HORSE]
    assert boxes.corners[own].tolist() == [[1, 2, 4, 6], [5, 6, 12, 14]]
    assert boxes.corners[boxes.starts[3]].tolist() == [0.5, 0, 64.5, 64]


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_guide_by_hand(mode: str, reduction: str) -> None:
    plain = LossConfig(reduction, penalty=0.0)
    batch, regions = make_batch(), some_regions()
    learner = make_learner(mode, loss=replace(plain, guide=0.7))
    without, _ = make_learner(mode, loss=plain).teacher_forcing_loss(batch, regions)
    alphas: list[Tensor] = []
    forward = learner.decoder.forward

    def keep(*arguments: Any, **options: Any) -> Any:
        outputs = forward(*arguments, **options)
        alphas.append(outputs.alpha.detach())
        return outputs

    learner.decoder.forward = keep  # type: ignore[method-assign]
    loss, numbers = learner.teacher_forcing_loss(batch, regions, find(batch))
    total, guided = 0.0, 0
    for row, image in enumerate(batch.images.tolist()):
        for column, ids in enumerate(batch.caption_ids[row].tolist()):
            for step, target in enumerate(ids[1:]):
                if (image, VOCABULARY.entries[target]) in ((0, "dog"), (2, "horse")):
                    weights = alphas[0][row, column, step].tolist()
                    total -= math.log(sum(a * c for a, c in zip(weights, COVERED[image], strict=True)))
                    guided += 1
    words = int(batch.mask.sum())
    assert guided == 6
    assert numbers["guide"] == pytest.approx(total / (12 if reduction == "sum" else words))
    assert numbers["guided"] == pytest.approx(guided / words)
    assert loss.item() == pytest.approx(without.item() + 0.7 * numbers["guide"])


def test_a_guide_pulls_nothing_where_no_word_names_an_object() -> None:
    batch, regions = make_batch(), some_regions()
    found = find(batch)
    gradients = []
    for guide, named in ((0.0, found.named), (5.0, torch.full_like(found.named, -1)), (5.0, found.named)):
        learner = make_learner(loss=LossConfig(guide=guide))
        loss, _ = learner.teacher_forcing_loss(batch, regions, replace(found, named=named))
        loss.backward()
        gradients.append(torch.cat([own.grad.flatten() for own in learner.decoder.parameters()]))  # type: ignore[union-attr]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.allclose(gradients[0], gradients[2])


def test_attention_is_drawn_into_the_boxes_and_regions_learn_what_they_show() -> None:
    learner = make_learner(kind=torch.float32, scale=1.0, loss=LossConfig(penalty=0.0, guide=5.0, objects=1.0))
    batch, regions = make_batch(), some_regions(kind=torch.float32)
    found = []
    for step in range(40):
        loss, numbers = learner.teacher_forcing_loss(batch, regions, find(batch))
        found.append(learner.optimise(loss, numbers, (0.03, 0.0), step, flag=False))
    assert found[-1]["guide"] < 0.2 * found[0]["guide"], found[-1]["guide"]
    assert found[-1]["objects"] < 0.5 * found[0]["objects"], found[-1]["objects"]


def test_the_second_task_by_hand() -> None:
    learner = make_learner(loss=LossConfig(penalty=0.0, objects=0.25))
    classifier = learner.criterion.classifier
    assert classifier is not None
    classifier.double()
    assert classifier.linear.weight.abs().max() == 0  # an encoder feels nothing at first
    with torch.no_grad():
        classifier.linear.weight.normal_(generator=torch.Generator().manual_seed(0))
    batch, regions = make_batch(), some_regions()
    loss, numbers = learner.teacher_forcing_loss(batch, regions, find(batch))
    total = 0.0
    for row, image in enumerate(batch.images.tolist()):
        if image == 1:  # not annotated: no one says that there is nothing on it
            continue
        present = HORSE if image == 2 else DOG
        for region in range(L):
            own = regions[row, region]
            normal = (own - own.mean()) / (own.var(correction=0) + 1e-5).sqrt()
            logits = classifier.linear(normal).tolist()
            for category, logit in enumerate(logits):
                covered = COVERED[image][region] if category == present else 0.0
                probability = 1 / (1 + math.exp(-logit))
                total -= covered * math.log(probability) + (1 - covered) * math.log(1 - probability)
    assert numbers["objects"] == pytest.approx(total / L / 4)
    assert loss.item() == pytest.approx(numbers["cross_entropy"] + 0.25 * numbers["objects"])


def test_objects_that_are_not_there_cost_what_they_are_told_to() -> None:
    plain = Rewards(CORPUS, VOCABULARY, 8)
    strict = Rewards(CORPUS, VOCABULARY, 8, SelfCriticalConfig(absent=0.25), BOXES)
    said = ("a dog on a horse", "the cat eats grass on the horse", "a small dog runs", "")
    encoded = [VOCABULARY.encode(text.split()) for text in said]
    ids = torch.tensor([[[*own, *[PAD] * (10 - len(own))] for own in encoded]] * 3)  # (3, 4, T + 1)
    images = [0, 1, 2]  # two dogs; nobody has looked; a horse
    absent = [[1, 2, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert strict.absent(ids, images).tolist() == absent
    costs = plain.score(ids, images) - strict.score(ids, images)
    assert costs.flatten().tolist() == pytest.approx([0.25 * count for row in absent for count in row])


def test_parts_of_a_batch_with_objects_add_up_to_the_whole() -> None:
    critic = SelfCriticalConfig(epochs=1, samples=3, cross_entropy=0.4, repeats=0.5, absent=0.3)
    rewards, regions = Rewards(CORPUS, VOCABULARY, 8, critic, BOXES), some_regions(kind=torch.float32)
    sampled = EpochPlan(CORPUS, BatchConfig(12, 3), 5, 0, captions=3, references=True)[0]
    for mode, reduction in (("soft", "sum"), ("soft", "mean"), ("hard", "mean")):
        settings = LossConfig(reduction, guide=0.7, objects=0.3)
        for batch in (make_batch(), sampled):
            # A new one each time: hard attention's baseline must not have seen the batch.
            sums: dict[str, float] = {}
            options: dict[str, Any] = {"dropout": 0.3, "loss": settings, "self_critical": critic, "kind": torch.float32}
            for processes in (Processes(), *(Processes(rank, 3) for rank in range(3))):
                learner = make_learner(mode, **options)
                learner.baseline, learner.processes = -20.0, processes
                learner._move_baseline = lambda mean: -20.0  # type: ignore[method-assign]
                rows = processes.rows()
                own, there = regions[batch.images][rows], find(batch, rows)
                if batch is sampled:
                    loss, numbers = learner.self_critical_loss(batch, own, rewards, there)
                else:
                    loss, numbers = learner.teacher_forcing_loss(batch, own, there)
                assert numbers["loss"] == pytest.approx(loss.item())
                if processes.count == 1:
                    whole = numbers
                else:
                    sums = {name: sums.get(name, 0.0) + value for name, value in numbers.items()}
            assert sums == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_rewards_mixed_with_given_captions_by_hand() -> None:
    batch = EpochPlan(CORPUS, BatchConfig(12, 3), 5, 0, captions=3, references=True)[0]
    plain = replace(batch, references=None)
    regions, rewards = some_regions()[batch.images], Rewards(CORPUS, VOCABULARY, 8)
    settings = LossConfig(guide=0.7)
    mixed, alone = (
        make_learner(loss=settings, self_critical=SelfCriticalConfig(epochs=1, samples=3, cross_entropy=weight))
        for weight in (0.4, 0.0)
    )
    loss, numbers = mixed.self_critical_loss(batch, regions, rewards, find(batch))
    rewarded, before = alone.self_critical_loss(plain, regions, rewards)
    assert batch.references is not None
    given = replace(batch, caption_ids=batch.references, mask=batch.references[:, :, 1:] != 0, references=None)
    taught, parts = alone.teacher_forcing_loss(given, regions, find(batch))
    assert loss.item() == pytest.approx(rewarded.item() + 0.4 * taught.item())
    assert numbers["self_critical"] == pytest.approx(before["loss"])
    for name in ("cross_entropy", "penalty", "guide", "guided"):
        assert numbers[name] == pytest.approx(parts[name])
    for name in ("reward", "baseline", "caption_entropy", "length", "residual"):
        assert numbers[name] == before[name]
    assert "self_critical" not in before


@pytest.fixture
def boxed(tmp_path: Path, quick: None) -> Path:
    data = write_toy_data(tmp_path / "data")
    write_toy_boxes(data)
    return data


def test_a_run_with_boxes_logs_each_part_and_its_model_keeps_no_second_task(boxed: Path, tmp_path: Path) -> None:
    critic = {"epochs": 1, "samples": 2, "rate": 0.01, "cross_entropy": 0.3, "repeats": 0.2, "absent": 0.3}
    recipe = toy_recipe(boxed, epochs=1, loss={"guide": 0.5, "objects": 0.5}, self_critical=critic)
    _, recorder = run_toy(recipe, tmp_path / "run")
    assert "data: 1 of 8 training images have no boxes of objects" in recorder.said
    lines = step_lines(tmp_path / "run")
    first, second = lines[0], lines[-1]
    assert {"cross_entropy", "guide", "guided", "objects"} < first.keys()
    rewarded = {"self_critical", "reward", "repeats", "absent"}
    assert rewarded | {"cross_entropy", "guide", "guided", "objects"} < second.keys()
    assert all(0 < line["guided"] < 1 for line in lines if line["epoch"] == 1)
    assert all(line["objects"] > 0 for line in lines)
    assert any("weight.objects" in name for name in tensors_of(tmp_path / "run" / "last"))
    export_model(load_checkpoint(tmp_path / "run" / "best"), tmp_path / "model")
    assert not any("objects" in name for name in tensors_of(tmp_path / "model"))


@pytest.mark.parametrize("weights", [{"guide": 0.5}, {"objects": 1.0}, {"guide": 0.5, "objects": 1.0}])
def test_without_boxes_there_is_nothing_to_learn_of_them(
    weights: dict[str, float], quick: None, tmp_path: Path
) -> None:
    recipe = toy_recipe(write_toy_data(tmp_path / "data"), loss=weights)
    names = " and ".join(f"loss.{name}" for name in weights)
    expected = rf"^{names} needs? the boxes of objects.*expected .*data/annotations/instances_train.json$"
    with pytest.raises(ValueError, match=expected):
        run_toy(recipe, tmp_path / "run")


def test_no_attention_cannot_be_guided() -> None:
    with pytest.raises(ValueError, match=r"loss.guide is 0.5; attention.mode none has no attention to guide"):
        make_learner("none", loss=LossConfig(guide=0.5))
