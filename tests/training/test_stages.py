"""Training beyond one stage on a frozen encoder: flips, a start from a checkpoint, tuning, training on rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toy_training import (
    ENCODER,
    Recorder,
    after_epoch,
    assert_same_runs,
    at_step,
    in_validation,
    load_once,
    run_toy,
    script_scores,
    step_lines,
    tensors_of,
    toy_recipe,
    validation_lines,
    write_toy_data,
)
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from captioner.datasets.vocabulary import SPECIALS
from captioner.model.checkpoint import load_checkpoint
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import load_encoder
from captioner.model.encoders.region_cache import RegionCache
from captioner.model.search.beam import beam_search
from captioner.model.search_settings import SearchConfig
from captioner.training.data import TrainingData
from captioner.training.recipe import Recipe

read_regions = TrainingData.regions


pytestmark = pytest.mark.usefixtures("quick")


def test_flipped_images_are_read_from_a_cache_of_their_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool, NDArray[np.float16]]] = []

    def regions(
        self: TrainingData, images: NDArray[np.int64], mirrored: NDArray[np.bool_], **options: Any
    ) -> NDArray[np.float16]:
        found = read_regions(self, images, mirrored, **options)
        seen.extend(zip(images.tolist(), mirrored.tolist(), found, strict=True))
        return found

    monkeypatch.setattr(TrainingData, "regions", regions)
    values = toy_recipe(data, batches={"flips": True, "captions": 4, "captions_per_image": 2})
    recipe = replace(values, data=(replace(values.data[0], features=str(tmp_path / "regions")),))
    run_toy(recipe, tmp_path / "run")
    counts = {folder.name.count("flipped"): len(RegionCache(folder)) for folder in (tmp_path / "regions").iterdir()}
    assert counts == {0: 13, 1: 8}  # what is only validated is never flipped
    encoder = load_once(EncoderConfig(**ENCODER))
    assert {flipped for _, flipped, _ in seen} == {False, True}
    assert len(seen) == 16
    for image, flipped, found in seen:
        pixels = encoder.preprocessing.read(data / f"{image:03d}.png").pixels
        pixels = np.ascontiguousarray(pixels[:, ::-1]) if flipped else pixels
        with torch.no_grad():
            expected = encoder(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]
        np.testing.assert_allclose(found.astype(np.float32), expected.numpy(), atol=0.02)


def test_training_starts_from_a_checkpoint(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data), tmp_path / "first")
    assert first is not None
    other = write_toy_data(tmp_path / "other", train=(1, 1), first=40)  # which would make a smaller vocabulary
    still = {"optimiser": {"rate": 1e-12}, "epochs": 1, "start": str(first.folder)}
    outcome, _ = run_toy(toy_recipe(other, **still), tmp_path / "second")
    assert outcome is not None
    before, after = load_checkpoint(first.folder), load_checkpoint(outcome.folder)
    assert after.vocabulary == before.vocabulary
    for name, weight in before.weights.items():
        torch.testing.assert_close(after.weights[name], weight, rtol=0, atol=1e-9)


def test_words_that_are_new_to_the_start_are_added_after_its_own(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data), tmp_path / "first")
    assert first is not None
    other = write_toy_data(tmp_path / "other", train=(1, 1), first=40)
    lines = (other / "metadata.jsonl").read_text()
    (other / "metadata.jsonl").write_text(lines.replace("dog", "terrier").replace("runs", "chases a ball"))
    still = {"optimiser": {"rate": 1e-12}, "epochs": 1, "start": str(first.folder)}
    outcome, recorder = run_toy(toy_recipe(other, **still), tmp_path / "second")
    assert outcome is not None
    before, after = load_checkpoint(first.folder), load_checkpoint(outcome.folder)
    known = len(before.vocabulary)
    assert after.vocabulary.entries[:known] == before.vocabulary.entries
    new = set(after.vocabulary.entries[known:])
    assert {"terrier", "chases"} <= new <= {"terrier", "chases", "ball"}
    assert recorder.said[0] == f"{len(new)} words are new to the model that this one starts from"
    grown = 0
    for name, weight in before.weights.items():
        found = after.weights[name]
        torch.testing.assert_close(found[: len(weight)], weight, rtol=0, atol=1e-9)
        for row in found[len(weight) :]:
            grown += 1
            torch.testing.assert_close(row, weight[len(SPECIALS) :].mean(0), rtol=0, atol=1e-6)
    assert grown in (
        2 * len(new),
        3 * len(new),
    )  # of the embedding, the output and its bias, the former two tied or not
    kept, _ = run_toy(toy_recipe(other, **still, vocabulary={"extend": False}), tmp_path / "third")
    assert kept is not None
    assert load_checkpoint(kept.folder).vocabulary == before.vocabulary
    stopped, _ = run_toy(toy_recipe(other, **still), tmp_path / "fourth", stop=lambda recorder: bool(recorder.steps))
    assert stopped is None
    run_toy(toy_recipe(other, **still), tmp_path / "fourth", resume=True)
    assert load_checkpoint(tmp_path / "fourth" / "best").vocabulary == after.vocabulary


@pytest.mark.parametrize(("mode", "own"), [("glimpse", {"policy"}), ("local", {"centre"}), ("hard", set())])
def test_another_mode_of_attention_keeps_what_both_have(mode: str, own: set[str], data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1), tmp_path / "first")
    assert first is not None
    still = {"optimiser": {"rate": 1e-12}, "epochs": 1, "start": str(first.folder), "attention": {"mode": mode}}
    outcome, recorder = run_toy(toy_recipe(data, **still), tmp_path / "second")
    assert outcome is not None
    before, after = load_checkpoint(first.folder), load_checkpoint(outcome.folder)
    kept = before.weights.keys() & after.weights.keys()
    assert {name for name in before.weights.keys() ^ kept if not name.startswith("attention.")} == set()
    for name in kept:
        torch.testing.assert_close(after.weights[name], before.weights[name], rtol=0, atol=1e-9)
    assert {name.split(".")[1] for name in after.weights.keys() - kept} == own
    said = f"the model that this one starts from has attention.mode soft: what only {mode} has starts anew"
    assert (said in recorder.said) == bool(own)


def test_a_start_that_does_not_fit_is_an_error(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1), tmp_path / "first")
    assert first is not None
    with pytest.raises(ValueError, match=r"^the weights of \S+best do not fit the decoder of these settings: .*$"):
        run_toy(toy_recipe(data, decoder={"hidden": 13}, start=str(first.folder)), tmp_path / "second")
    with pytest.raises(ValueError, match=r"^start is '\S+nowhere'; .*name "):
        run_toy(toy_recipe(data, start=str(tmp_path / "nowhere")), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def trunk_of(folder: Path) -> dict[str, Tensor] | None:
    return load_checkpoint(folder).encoder_weights


def test_the_encoder_is_tuned_from_its_epoch_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_scores(monkeypatch, 3.0, 2.0, 1.0)
    recipe = toy_recipe(data, epochs=3, tuning={"from_epoch": 2, "rate": 1e-3})
    original = load_once(recipe.encoder).trunk.state_dict()
    outcome, recorder = run_toy(recipe, tmp_path / "run", stop=after_epoch(1))
    assert outcome is None
    assert len(recorder.steps) == 5
    assert trunk_of(tmp_path / "run" / "best") is None
    tensors = tensors_of(tmp_path / "run" / "last")
    weights = {name.removeprefix("training.weight.encoder."): own for name, own in tensors.items()
               if name.startswith("training.weight.encoder.")}  # fmt: skip
    changed = [name for name, own in weights.items() if not torch.equal(own, original[name])]
    # One step has changed it, by its rate at most; those of the first epoch have not.
    assert len(changed) > 0.9 * len(weights) > 50
    for name in changed:
        assert (weights[name] - original[name]).abs().max() < 1.1e-3
    outcome, _ = run_toy(recipe, tmp_path / "run", resume=True)
    assert outcome is not None
    assert outcome.best == 3.0
    assert trunk_of(tmp_path / "run" / "best") is None  # it is that of the first epoch


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_tuned_encoder_is_saved_validated_and_loads_again(data: Path, tmp_path: Path, blocks: int) -> None:
    tuning = {"from_epoch": 1, "rate": 3e-3, "blocks": blocks}
    settings: dict[str, Any] = {"tuning": tuning, "optimiser": {"average": 0.5, "rate": 0.02}}
    outcome, _ = run_toy(toy_recipe(data, epochs=1, **settings), tmp_path / "run")
    assert outcome is not None
    checkpoint = load_checkpoint(outcome.folder)
    encoder, original = checkpoint.build_encoder(), load_once(checkpoint.encoder)
    assert encoder.fingerprint() == checkpoint.encoder_identity["weights"] != original.fingerprint()
    weights = original.trunk.state_dict()
    same = {name for name, own in encoder.trunk.state_dict().items() if torch.equal(own, weights[name])}
    assert same >= {name for name in weights if "running" in name}
    last = [str(place) for place in range(len(encoder.trunk))][-blocks:]
    assert {name.split(".")[0] for name in weights if name not in same} == set(last)
    assert {name.split(".")[0] for name in checkpoint.encoder_weights or {}} == set(last)
    # Its scores are those of captions of its own regions, not of the original encoder's.
    (line,) = validation_lines(tmp_path / "run")
    decoder = checkpoint.build_decoder()
    movements = []
    for own in (encoder, original):
        pixels = [own.preprocessing.read(data / f"{number:03d}.png").pixels for number in range(8, 13)]
        with torch.no_grad():
            regions = own(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
        found = [best for (best,) in beam_search(decoder, regions, SearchConfig(beam=2))]
        moves = [(best.alpha[1:] - best.alpha[:-1]).abs().sum(dim=-1).mean().item() / 2 for best in found]
        movements.append(np.mean(moves))
    assert line["movement"] == pytest.approx(movements[0], rel=1e-3)
    assert line["movement"] != pytest.approx(movements[1], rel=1e-2)


@pytest.mark.parametrize(("from_epoch", "whole"), [(1, 5), (2, 13)])
def test_whole_regions_are_encoded_where_they_are_used(data: Path, tmp_path: Path, from_epoch: int, whole: int) -> None:
    tuning = {"from_epoch": from_epoch, "rate": 3e-3, "blocks": 3}
    recipe = toy_recipe([data], epochs=2, tuning=tuning)
    recipe = replace(recipe, data=(replace(recipe.data[0], features=str(tmp_path / "regions")),))
    outcome, recorder = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    # Those of the whole encoder, of validation images alone where no epoch reads others; then those of its lower part.
    begun = [total for what, done, total in recorder.shown if what == "regions" and done == 0]
    assert begun == [whole, 13]


def test_training_goes_on_from_a_tuned_encoder(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1, tuning={"from_epoch": 1, "rate": 3e-3}), tmp_path / "first")
    assert first is not None
    outcome, recorder = run_toy(toy_recipe(data, epochs=1, start=str(first.folder)), tmp_path / "second")
    assert outcome is not None
    assert ("regions", 0, 13) in recorder.shown  # a cache of its own regions
    tuned, kept = trunk_of(first.folder), trunk_of(outcome.folder)
    assert tuned is not None
    assert kept is not None
    assert all(torch.equal(kept[name], own) for name, own in tuned.items())
    other = toy_recipe(data, encoder={"layer": "stride8"}, start=str(first.folder))
    with pytest.raises(ValueError, match=r"^the checkpoint's encoder is .*layer=None.*layer='stride8'"):
        run_toy(other, tmp_path / "third")


def test_training_goes_on_from_a_tuned_encoder_at_another_size(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1, tuning={"from_epoch": 1, "rate": 3e-3}), tmp_path / "first")
    assert first is not None
    larger = toy_recipe(data, epochs=1, encoder={"size": 96}, start=str(first.folder))
    outcome, _ = run_toy(larger, tmp_path / "second")
    assert outcome is not None
    before, after = load_checkpoint(first.folder), load_checkpoint(outcome.folder)
    assert (before.encoder_identity["grid"], after.encoder_identity["grid"]) == ([2, 2], [3, 3])
    assert before.encoder_identity["weights"] == after.encoder_identity["weights"]
    assert after.build_encoder().preprocessing.size == 96


def test_blocks_that_were_tuned_and_others_after_them_are_all_kept(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(
        toy_recipe(data, epochs=1, tuning={"from_epoch": 1, "rate": 3e-3, "blocks": 2}), tmp_path / "first"
    )
    assert first is not None
    for blocks in (1, 4):
        tuning = {"from_epoch": 1, "rate": 3e-3, "blocks": blocks}
        outcome, _ = run_toy(toy_recipe(data, epochs=1, tuning=tuning, start=str(first.folder)), tmp_path / str(blocks))
        assert outcome is not None
        before, after = trunk_of(first.folder), trunk_of(outcome.folder)
        assert before is not None
        assert after is not None
        assert after.keys() >= before.keys()
        assert len({name.split(".")[0] for name in after}) == max(2, blocks)
        checkpoint = load_checkpoint(outcome.folder)
        assert checkpoint.build_encoder().fingerprint() == checkpoint.encoder_identity["weights"]


@pytest.mark.parametrize(
    ("name", "size", "layer"), [("tinyvit-5m", 64, "stride16+32"), ("dinov2-small", 56, "stride28+class")]
)
def test_an_encoder_of_a_file_is_kept_whole_and_tuned(
    data: Path, tmp_path: Path, name: str, size: int, layer: str
) -> None:
    file = tmp_path / "weights.safetensors"
    encoder = {"name": name, "size": size, "layer": layer}
    save_file(load_encoder(EncoderConfig(**encoder, weights="random")).trunk.state_dict(), file)
    outcome, _ = run_toy(toy_recipe(data, epochs=1, encoder={**encoder, "weights": str(file)}), tmp_path / "frozen")
    assert outcome is not None
    frozen = trunk_of(outcome.folder)
    assert frozen is not None
    file.unlink()  # the checkpoint has all of it
    settings: dict[str, Any] = {"encoder": encoder, "start": str(outcome.folder)}
    recipe = toy_recipe(data, epochs=1, tuning={"from_epoch": 1, "rate": 3e-3, "blocks": 2}, **settings)
    outcome, _ = run_toy(recipe, tmp_path / "tuned")
    assert outcome is not None
    checkpoint = load_checkpoint(outcome.folder)
    assert checkpoint.build_encoder().fingerprint() == checkpoint.encoder_identity["weights"]
    tuned = checkpoint.encoder_weights
    assert tuned is not None
    assert tuned.keys() == frozen.keys()
    changed = {own.split(".")[0] for own in tuned if not torch.equal(tuned[own], frozen[own])}
    assert changed == {str(place) for place in ((14, 15) if name == "tinyvit-5m" else (12, 13))}


def test_more_blocks_than_there_are(data: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(data, tuning={"from_epoch": 1, "blocks": 18})
    with pytest.raises(ValueError, match=r"^tuning.blocks is 18; efficientnet-lite0 at stride32 has up to 17, or 0"):
        run_toy(recipe, tmp_path / "run")


def test_an_image_that_is_lost_while_the_encoder_is_tuned_is_an_error(tmp_path: Path) -> None:
    data = write_toy_data(tmp_path / "data", val=(1, 1, 1))
    recipe = toy_recipe(data, epochs=1, tuning={"from_epoch": 1})

    def lose(recorder: Recorder) -> bool:
        if len(recorder.steps) == 3:
            (data / "009.png").unlink()
        return False

    with pytest.raises(ValueError, match=r"009\.png"):
        run_toy(recipe, tmp_path / "run", stop=lose)


class Interrupted(Exception):
    pass


def interrupt(reached: Callable[[Recorder], bool]) -> Callable[[Recorder], bool]:
    """Return what ends a run at once when it gets there, with nothing saved any more."""

    def stop(recorder: Recorder) -> bool:
        if reached(recorder):
            raise Interrupted
        return False

    return stop


@pytest.mark.parametrize("best", ["before tuning", "while tuning"])
def test_the_second_stage_starts_from_the_best(
    best: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_scores(monkeypatch, *{"before tuning": (5.0, 4.0, 3.0), "while tuning": (3.0, 5.0, 4.0)}[best])
    recipe = toy_recipe(
        data, epochs=3, tuning={"from_epoch": 2, "rate": 1e-3}, self_critical={"epochs": 1, "samples": 2}
    )
    with pytest.raises(Interrupted):
        run_toy(recipe, tmp_path / "run", stop=interrupt(after_epoch(3)))
    model, tensors = load_checkpoint(tmp_path / "run" / "best"), tensors_of(tmp_path / "run" / "last")
    trunk = model.encoder_weights or load_once(recipe.encoder).trunk.state_dict()
    assert (model.encoder_weights is None) == (best == "before tuning")
    expected = {f"decoder.{name}": own for name, own in model.weights.items()}
    expected |= {f"encoder.{name}": own for name, own in trunk.items()}
    weights = {name.removeprefix("training.weight."): own for name, own in tensors.items() if "training.weight" in name}
    assert len(weights) > 50
    for name, own in weights.items():
        assert torch.equal(own, expected[name]), name


def test_the_second_stage_trains_on_rewards(data: Path, tmp_path: Path) -> None:
    settings = {"epochs": 1, "self_critical": {"epochs": 2, "samples": 3, "rate": 0.004}}
    outcome, _ = run_toy(toy_recipe(data, **settings), tmp_path / "run")
    assert outcome is not None
    lines = step_lines(tmp_path / "run")
    assert [("reward" in line, "cross_entropy" in line) for line in lines] == [(False, True)] * 4 + [(True, False)] * 16
    assert {line["rate"] for line in lines[4:]} == {0.004}
    assert [line["epoch"] for line in validation_lines(tmp_path / "run")] == [1, 2, 3]


def test_early_stopping_leads_to_the_second_stage(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_scores(monkeypatch, 5.0, 4.0, 4.0, 3.0, 2.0)
    settings: dict[str, Any] = {"epochs": 6, "self_critical": {"epochs": 3, "samples": 4}}
    recipe = toy_recipe(data, **settings, validation={"patience": 1, "overlays": 0})
    outcome, recorder = run_toy(recipe, tmp_path / "run")
    assert outcome is not None
    # After the second epoch to the seventh, the first of the second stage; no better than ever before, that ends too.
    assert [line["epoch"] for line in validation_lines(tmp_path / "run")] == [1, 2, 7]
    assert [text for text in recorder.said if "no better" in text] == [
        f"epoch {epoch}: no better bleu4 for 1 validations" for epoch in (2, 7)
    ]


def test_a_second_stage_alone(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1), tmp_path / "first")
    assert first is not None
    settings: dict[str, Any] = {"epochs": 0, "self_critical": {"epochs": 1, "samples": 1, "baseline": "greedy"}}
    outcome, _ = run_toy(toy_recipe(data, **settings, start=str(first.folder)), tmp_path / "second")
    assert outcome is not None
    assert all("reward" in line for line in step_lines(tmp_path / "second"))


def test_the_model_of_the_start_is_scored_as_epoch_0(data: Path, tmp_path: Path) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=2), tmp_path / "first")
    assert first is not None
    assert [line["epoch"] for line in validation_lines(tmp_path / "first")] == [1, 2]  # there was no model to score
    recipe = toy_recipe(data, epochs=1, start=str(first.folder))
    _, recorder = run_toy(recipe, tmp_path / "second")
    lines = validation_lines(tmp_path / "second")
    assert [(line["step"], line["epoch"]) for line in lines] == [(0, 0), (4, 1)]
    best = max(validation_lines(tmp_path / "first"), key=lambda line: float(line["bleu4"]))
    assert [lines[0][name] for name in ("bleu1", "bleu4", "cider")] == [
        best[name] for name in ("bleu1", "bleu4", "cider")
    ]
    assert any(text.startswith("epoch 0: data bleu1 ") for text in recorder.said)
    # Stopped within that very validation, or after it: it is done once.
    for name, stop in {"in it": in_validation(1), "after it": at_step(2)}.items():
        folder = tmp_path / name
        outcome, _ = run_toy(recipe, folder, stop=stop)
        assert outcome is None
        run_toy(recipe, folder, resume=True)
        assert_same_runs(tmp_path / "second", folder)


def test_a_run_that_makes_a_model_worse_is_warned_of(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = run_toy(toy_recipe(data, epochs=1), tmp_path / "first")
    assert first is not None
    script_scores(monkeypatch, 5.0, 4.0, 3.0)
    outcome, recorder = run_toy(toy_recipe(data, epochs=2, start=str(first.folder)), tmp_path / "second")
    assert outcome is not None
    assert outcome.best == 4.0  # the model of the start is no model of this run
    assert recorder.warned[-1] == "no epoch is better than the start: bleu4 4.0 against 5.0"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, []),
        ({"schedule": {"warmup": 8}, "optimiser": {"average": 0.8}}, []),
        ({"schedule": {"warmup": 0.5}}, []),
        (
            {"schedule": {"warmup": 9}},
            [
                "schedule.warmup is 9 steps, and there are only 8: the learning rate never reaches optimiser.rate; "
                "a value below 1 is a share of the steps"
            ],
        ),
        (
            {"optimiser": {"average": 0.999}},
            [
                "optimiser.average 0.999 goes back over about 1,000 steps, and there are only 8: it goes back over a "
                "ninth of them"
            ],
        ),
    ],
)
def test_what_is_longer_than_the_run_is_warned_of(
    settings: dict[str, Any], warned: list[str], data: Path, tmp_path: Path
) -> None:
    recipe = toy_recipe(data, **settings)
    _, recorder = run_toy(recipe, tmp_path / "run", stop=at_step(3))
    assert recorder.warned == warned
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True)
    assert not any("there are only" in text for text in recorder.warned)  # it is known by now


@pytest.mark.parametrize("blocks", [None, 0, 3])
def test_weights_may_lie_elsewhere_when_a_run_resumes(data: Path, tmp_path: Path, blocks: int | None) -> None:
    encoder: dict[str, Any] = {"name": "tinyvit-5m", "size": 64, "layer": "stride16+32"}
    trunk = load_encoder(EncoderConfig(**encoder, weights="random")).trunk.state_dict()
    save_file(trunk, tmp_path / "old.safetensors")
    settings: dict[str, Any] = {"epochs": 1}
    if blocks is not None:
        settings["tuning"] = {"from_epoch": 1, "rate": 1e-3, "blocks": blocks}

    def recipe(name: str) -> Recipe:
        return toy_recipe(data, **settings, encoder={**encoder, "weights": str(tmp_path / name)})

    run_toy(recipe("old.safetensors"), tmp_path / "whole")
    run_toy(recipe("old.safetensors"), tmp_path / "run", stop=at_step(2))
    (tmp_path / "old.safetensors").rename(tmp_path / "new.safetensors")
    first = next(iter(trunk))
    save_file({**trunk, first: trunk[first] + 1}, tmp_path / "other.safetensors")
    if blocks is not None:  # a checkpoint has the weights of a frozen encoder, and the file is not read
        with pytest.raises(
            ValueError, match=r"^encoder.weights \S+other.safetensors are not those that \S+run was begun"
        ):
            run_toy(recipe("other.safetensors"), tmp_path / "run", resume=True)
    outcome, _ = run_toy(recipe("new.safetensors"), tmp_path / "run", resume=True)
    assert outcome is not None
    assert_same_runs(tmp_path / "whole", tmp_path / "run")
