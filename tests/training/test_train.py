"""Training end to end: what it learns, and how it is steered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_training import (
    run_toy,
    script_scores,
    step_lines,
    tensors_of,
    toy_caption,
    toy_recipe,
    validation_lines,
    write_toy_data,
)
from numpy.typing import NDArray
from torch import Tensor

from captioner.model.checkpoint import Checkpoint, load_checkpoint
from captioner.model.encoders.encoder import Encoder
from captioner.model.kernels import precision as kernel
from captioner.model.search.beam import beam_search
from captioner.model.search_settings import SearchConfig
from captioner.training.data import TrainingData
from captioner.training.learner import Learner

SEARCH = SearchConfig(beam=2)
read_regions = TrainingData.regions


pytestmark = pytest.mark.usefixtures("quick")


def read_captions(checkpoint: Checkpoint, encoder: Encoder, data: Path, numbers: Sequence[int]) -> list[str]:
    """Return the captions that a model gives pictures."""
    pixels = [encoder.preprocessing.read(data / f"{number:03d}.png").pixels for number in numbers]
    with torch.no_grad():
        regions = encoder(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
    found = beam_search(checkpoint.build_decoder(), regions, SEARCH)
    return [" ".join(checkpoint.vocabulary.words(best.ids)) for (best,) in found]


@pytest.mark.parametrize(("mode", "epochs"), [("soft", 60), ("hard", 80), ("glimpse", 80)])
def test_eight_pictures_are_learned_by_heart(mode: str, epochs: int, tmp_path: Path) -> None:
    data = write_toy_data(tmp_path / "data", train=(1,) * 8, val=(1,))
    recipe = toy_recipe(
        data,
        epochs=epochs,
        attention={"mode": mode, "width": 16},
        decoder={"embedding": 16, "hidden": 32, "regions": 32, "dropout": 0.0},
        loss={"smoothing": 0.0, "penalty": 0.1},
        optimiser={"rate": 0.03, "weight_decay": 0.0},
        batches={"captions": 8, "captions_per_image": 1},
        validation={"every": epochs, "overlays": 0, "beam": 2},
    )
    recipe = replace(recipe, data=(replace(recipe.data[0], validation="train"),))
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    assert outcome.best == pytest.approx(100.0, abs=1e-3)
    checkpoint = load_checkpoint(outcome.folder)
    found = read_captions(checkpoint, checkpoint.build_encoder(), data, range(8))
    assert found == [toy_caption(number) for number in range(8)]
    losses = [line["cross_entropy"] for line in step_lines(tmp_path / "run")]
    assert losses[-1] < 0.2 < 2.5 < losses[0]


@pytest.mark.parametrize("mode", ["gumbel", "local", "none"])
def test_every_other_mode_learns_too(mode: str, data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"attention": {"mode": mode, "width": 8}, "epochs": 6}
    _, recorder = run_toy(toy_recipe(data, **settings, validation={"every": 6, "overlays": 0}), tmp_path / "run")
    losses = [numbers["cross_entropy"] for _, _, numbers in recorder.steps]
    assert np.mean(losses[-4:]) < 0.95 * np.mean(losses[:4])


def test_every_score_and_self_attention_can_be_trained(data: Path, tmp_path: Path) -> None:
    for score in ("dot", "general", "cosine"):
        settings = {"attention": {"score": score, "heads": 2, "width": 8}, "decoder": {"regions": 12}, "epochs": 1}
        outcome, _ = run_toy(toy_recipe(data, **settings), tmp_path / score)
        assert outcome is not None


def test_half_precision_trains_about_as_single_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "has_fast_bfloat16", lambda device: True)
    losses = {}
    for precision in ("float32", "bfloat16"):
        run_toy(toy_recipe(data, precision=precision), tmp_path / precision)
        losses[precision] = [line["loss"] for line in step_lines(tmp_path / precision)]
        weights = tensors_of(tmp_path / precision / "last")
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] != losses["float32"]
    monkeypatch.setattr(kernel, "has_fast_bfloat16", lambda device: False)
    run_toy(toy_recipe(data, precision="bfloat16"), tmp_path / "fallback")
    assert [line["loss"] for line in step_lines(tmp_path / "fallback")] == losses["float32"]


def test_float16_needs_a_gpu(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^precision float16 needs a CUDA device, not cpu; choose"):
        run_toy(toy_recipe(data, precision="float16"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_rate_is_the_schedule_s(data: Path, tmp_path: Path) -> None:
    run_toy(toy_recipe(data, schedule={"warmup": 3, "decay": "step", "every": 1}), tmp_path / "run")
    rates = [line["rate"] for line in step_lines(tmp_path / "run")]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.005, 0.005, 0.005, 0.005])


def test_the_temperature_falls_over_the_training(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    measure = Learner.teacher_forcing_loss

    def note(self: Learner, *arguments: Any) -> Any:
        seen.append(self.decoder.attention.temperature)
        return measure(self, *arguments)

    monkeypatch.setattr(Learner, "teacher_forcing_loss", note)
    attention = {"mode": "gumbel", "width": 8, "temperature": 2.0, "final_temperature": 0.5}
    run_toy(toy_recipe(data, attention=attention), tmp_path / "run")
    assert seen == pytest.approx([2.0 * 0.25 ** (step / 7) for step in range(8)])


def test_runs_of_another_seed_differ(data: Path, tmp_path: Path) -> None:
    losses = []
    for seed in (0, 1):
        run_toy(toy_recipe(data, seed=seed, epochs=1), tmp_path / str(seed))
        losses.append([line["loss"] for line in step_lines(tmp_path / str(seed))])
    assert losses[0] != losses[1]


def test_the_best_is_the_best_by_the_metric(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_scores(monkeypatch, 3.0, 7.0, 7.0, 5.0, metric="cider")
    recipe = toy_recipe(data, epochs=4, validation={"metric": "cider", "overlays": 0})
    outcome, _ = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    assert (outcome.metric, outcome.best, outcome.steps) == ("cider", 7.0, 16)
    assert outcome.folder == tmp_path / "run" / "best"
    best, last = (load_checkpoint(tmp_path / "run" / name) for name in ("best", "last"))
    assert best.progress == {"epoch": 1, "batch": 4, "step": 8}  # the first of two that are equal
    assert best.metrics["data cider"] == 7.0
    assert last.progress == {"epoch": 4, "batch": 0, "step": 16}
    assert best.digest != last.digest


def test_best_and_validation_use_the_averaged_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    averages: dict[str, Tensor] = {}
    steps = 0
    optimise = Learner.optimise

    def average(self: Learner, *arguments: Any) -> Any:
        nonlocal steps
        weights = self.decoder.state_dict()
        averages.update({name: own.clone() for name, own in weights.items() if name not in averages})
        found = optimise(self, *arguments)
        decay = min(0.3, (1 + steps) / (10 + steps))
        averages.update({name: decay * averages[name] + (1 - decay) * own for name, own in weights.items()})
        steps += 1
        return found

    monkeypatch.setattr(Learner, "optimise", average)
    recipe = toy_recipe(
        data, optimiser={"average": 0.3, "rate": 0.05}, validation={"every": 2, "overlays": 0, "beam": 2}
    )
    run_toy(recipe, tmp_path / "run")
    assert steps == 8
    best = load_checkpoint(tmp_path / "run" / "best")
    tensors = tensors_of(tmp_path / "run" / "last")
    for name, own in best.weights.items():
        torch.testing.assert_close(own, averages[name])
        if f"training.weight.decoder.{name}" in tensors:  # tied weights have but one
            assert not torch.equal(own, tensors[f"training.weight.decoder.{name}"])
    (line,) = validation_lines(tmp_path / "run")
    found = read_captions(best, best.build_encoder(), data, range(8, 13))
    assert line["words"] == pytest.approx(np.mean([len(text.split()) for text in found]))
    assert line["distinct"] == 100 * len(set(found)) / 5


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (2, 4), (3, 7), (0, 7)])
def test_early_stopping(
    patience: int, epochs: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_scores(monkeypatch, 1.0, 4.0, 3.0, 3.9, 4.1, 0.0, 0.0)
    recipe = toy_recipe(data, epochs=7, validation={"patience": patience, "overlays": 0})
    outcome, recorder = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    assert outcome.steps == 4 * epochs
    assert len(validation_lines(tmp_path / "run")) == epochs
    told = [text for text in recorder.said if "no better" in text]
    assert told == ([f"epoch {epochs}: no better bleu4 for {patience} validations"] if epochs < 7 else [])
    # A run that ended early has ended: going on changes nothing.
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True)
    assert recorder.steps == []


def test_validation_comes_every_few_epochs_and_at_the_end(data: Path, tmp_path: Path) -> None:
    _, recorder = run_toy(toy_recipe(data, epochs=5, validation={"every": 2, "overlays": 0}), tmp_path / "run")
    assert [(line["epoch"], line["step"]) for line in validation_lines(tmp_path / "run")] == [(2, 8), (4, 16), (5, 20)]
    assert [text.partition(":")[0] for text in recorder.said[1:]] == ["epoch 2", "epoch 4", "epoch 5"]


def test_a_part_of_the_images_is_validated(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, epochs=1, validation={"images": 3, "overlays": 0})
    _, recorder = run_toy(recipe, tmp_path / "run")
    assert [shown for shown in recorder.shown if shown[0] == "validation"][-1] == ("validation", 3, 3)


def test_attention_that_has_collapsed_is_warned_of_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_scores(monkeypatch, 0.5, 0.019, 0.0, 0.5, 0.0, metric="movement")
    _, recorder = run_toy(toy_recipe(data, epochs=5), tmp_path / "run")
    assert recorder.warned == [
        "epoch 2: attention has collapsed on data: from word to word only 1.9% of the weights move"
    ]
    script_scores(monkeypatch, 0.0, 0.0, metric="movement")
    _, recorder = run_toy(toy_recipe(data, attention={"mode": "none"}), tmp_path / "without")
    assert recorder.warned == []


def test_two_data_sets(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_toy_data(tmp_path / "other", train=(1,) * 4, val=(2,) * 3, first=20)
    script_scores(monkeypatch, 10.0, 20.0, 31.0, 1.0)
    recipe = toy_recipe([data, other], validation={"overlays": 2})
    outcome, recorder = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    assert outcome.best == 16.0  # the mean of both, the second time
    lines = validation_lines(tmp_path / "run")
    assert [(line["epoch"], line["set"], line["bleu4"]) for line in lines] == [
        (1, "data", 10.0), (1, "other", 20.0), (2, "data", 31.0), (2, "other", 1.0)
    ]  # fmt: skip
    assert [text.split()[2] for text in recorder.said[1:]] == ["data", "other"] * 2
    metrics = load_checkpoint(outcome.folder).metrics
    assert (metrics["data bleu4"], metrics["other bleu4"]) == (31.0, 1.0)
    # Eight images of two captions in batches of two, and four of one caption in a batch of four.
    assert outcome.steps == 2 * (4 + 1)
    pictures = sorted(path.relative_to(tmp_path / "run" / "overlays") for path in (tmp_path / "run").rglob("*/*.png"))
    assert len(pictures) == 8
    assert {str(path.parent) for path in pictures} == {
        f"epoch-{epoch:03d}/{name}" for epoch in (1, 2) for name in ("data", "other")
    }
    vocabulary = load_checkpoint(outcome.folder).vocabulary
    assert all(word in vocabulary for word in (*toy_caption(0).split(), *toy_caption(20).split()))


def test_data_sets_of_one_name_are_kept_apart(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = write_toy_data(tmp_path / "other" / "data")
    for number in range(13):  # other pictures of the same names
        (other / f"{number:03d}.png").write_bytes((data / f"{(number + 1) % 13:03d}.png").read_bytes())
    apart = toy_recipe([data, other], epochs=1)
    together = replace(apart, data=tuple(replace(own, features=None) for own in apart.data))
    with pytest.raises(ValueError, match=r"^data\.0 and data\.1 both keep their regions in features/data; name"):
        run_toy(together, tmp_path / "run")
    seen: dict[tuple[int, str], NDArray[np.float16]] = {}

    def regions(self: TrainingData, images: NDArray[np.int64], *arguments: Any, **options: Any) -> NDArray[np.float16]:
        found = read_regions(self, images, *arguments, **options)
        for image, own in zip(images.tolist(), found, strict=True):
            seen[int(self.sources[image]), self.corpus.images[image].file_name] = own
        return found

    monkeypatch.setattr(TrainingData, "regions", regions)
    run_toy(apart, tmp_path / "run")
    assert len(seen) == 16
    assert not any(np.array_equal(own, seen[1, name]) for (place, name), own in seen.items() if place == 0)
    assert [line["set"] for line in validation_lines(tmp_path / "run")] == ["data", "data 2"]


def test_a_vocabulary_without_words_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no word occurs 1000 times in the training captions; lower"):
        run_toy(toy_recipe(data, vocabulary={"minimum_count": 1000}), tmp_path / "run")


def test_a_bad_image_is_left_out_with_a_message(tmp_path: Path) -> None:
    data = write_toy_data(tmp_path / "data")
    for number in (3, 9):  # one of each split
        (data / f"{number:03d}.png").write_bytes((data / f"{number:03d}.png").read_bytes()[:300])
    outcome, recorder = run_toy(toy_recipe(data, epochs=1), tmp_path / "run")
    assert outcome is not None
    told = [text for text in recorder.said if text.startswith("left out")]
    assert len(told) == 2
    assert all(any(f"{number:03d}.png" in text for text in told) for number in (3, 9))
    assert outcome.steps == 4  # seven images of two captions, in batches of two images
    assert [shown for shown in recorder.shown if shown[0] == "validation"][-1] == ("validation", 4, 4)


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    data = write_toy_data(tmp_path / "data", train=(1, 1), val=(1,))
    for path in data.glob("00[01].png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^none of the training images could be read; there is nothing to train on$"):
        run_toy(toy_recipe(data), tmp_path / "run")


def break_regions(monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bool]) -> None:
    """Let the regions of some batches, counted from 1 in the order of reading, be no numbers."""
    count = 0

    def regions(self: TrainingData, *arguments: Any, **options: Any) -> NDArray[np.float16]:
        nonlocal count
        count += 1
        found = read_regions(self, *arguments, **options)
        return np.full_like(found, math.nan) if broken(count) else found

    monkeypatch.setattr(TrainingData, "regions", regions)


def test_a_batch_that_is_not_finite_is_left_out(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_regions(monkeypatch, lambda count: count in (3, 4, 7))
    outcome, recorder = run_toy(toy_recipe(data, attention={"mode": "hard", "width": 8}), tmp_path / "run")
    assert outcome is not None
    lines = step_lines(tmp_path / "run")
    assert [line["step"] for line in lines if line["loss"] == "nan"] == [3, 4, 7]
    left_out = [text for text in recorder.warned if "left out" in text]
    assert left_out == [f"step {step}: the loss is nan, not a finite number; left out" for step in (3, 7)]
    assert all(tensor.isfinite().all() for tensor in tensors_of(tmp_path / "run" / "last").values())


def test_twenty_steps_in_a_row_that_come_to_nothing_end_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_regions(monkeypatch, lambda count: count > 2)
    with pytest.raises(ValueError, match=r"^the loss was not finite 20 steps in a row; try a smaller optimiser\.rate"):
        run_toy(toy_recipe(data, epochs=9, validation={"every": 9, "overlays": 0}), tmp_path / "run")
    break_regions(monkeypatch, lambda count: count > 2 and count % 20 != 0)
    outcome, _ = run_toy(toy_recipe(data, epochs=9, validation={"every": 9, "overlays": 0}), tmp_path / "other")
    assert outcome is not None
