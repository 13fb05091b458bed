"""What a run leaves in its folder."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.toy_training import (
    Recorder,
    read_log,
    run_toy,
    step_lines,
    toy_caption,
    toy_recipe,
    validation_lines,
    write_toy_data,
)
from PIL import Image

from captioner.model.checkpoint import load_checkpoint, load_training_state
from captioner.model.search.beam import beam_search
from captioner.model.search_settings import SearchConfig
from captioner.training.recipe import Recipe, load_recipe
from captioner.training.run_folder import RunFolder

PARTS = {"loss", "cross_entropy", "penalty"}
MEASURES = {"step", "epoch", "rate", "gradient", "attention_entropy", "residual", "captions_per_second", "memory_mb"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path, Recorder]:
    """A run of two epochs with all that a run can leave."""
    root = tmp_path_factory.mktemp("toy")
    recipe = toy_recipe(write_toy_data(root / "data"), tensorboard=True, validation={"overlays": 2, "beam": 2})
    outcome, recorder = run_toy(recipe, root / "run")
    assert outcome is not None
    return recipe, root / "run", recorder


def test_the_settings_load_again(finished: tuple[Recipe, Path, Recorder]) -> None:
    recipe, run, _ = finished
    assert load_recipe(run / "settings.yaml") == recipe


def test_the_log_has_a_line_a_step_and_one_a_validation(finished: tuple[Recipe, Path, Recorder]) -> None:
    _, run, recorder = finished
    steps = step_lines(run)
    assert [(line["step"], line["epoch"]) for line in steps] == [(step, 1 + (step - 1) // 4) for step in range(1, 9)]
    for line, (position, batches, numbers) in zip(steps, recorder.steps, strict=True):
        assert line.keys() == PARTS | MEASURES
        assert all(type(line[name]) in (int, float) and math.isfinite(line[name]) for name in line)
        assert line["loss"] == pytest.approx(line["cross_entropy"] + line["penalty"])
        assert 0 < line["attention_entropy"] <= math.log(4) + 1e-6  # of 2 x 2 regions
        assert line["captions_per_second"] > 0
        assert line["memory_mb"] > 50
        assert batches == 4
        assert (position.step, numbers["loss"]) == (line["step"], pytest.approx(line["loss"]))
    validations = validation_lines(run)
    assert [(line["step"], line["epoch"]) for line in validations] == [(4, 1), (8, 2)]
    names = {f"bleu{length}" for length in range(1, 5)} | {"cider", "words", "distinct", "movement", "seconds"}
    names |= {"step", "epoch", "validation_loss", "perplexity", "images", "samples"}
    assert all(line.keys() == names for line in validations)
    for line in validations:
        assert line["images"] == 5
        assert 0 < line["validation_loss"] < math.inf
        assert 1 < line["perplexity"] < 100
        assert [sample["image"] for sample in line["samples"]] == ["008.png", "010.png"]
        for sample in line["samples"]:
            assert (run / sample["overlay"]).is_file()
            assert sample["references"] == [toy_caption(int(sample["image"][:3]))]
            assert sample["caption"]
    assert len(read_log(run)) == 10


def test_best_and_last_load_and_caption(finished: tuple[Recipe, Path, Recorder]) -> None:
    recipe, run, _ = finished
    for folder in (run / "best", run / "last"):
        checkpoint = load_checkpoint(folder)
        assert checkpoint.settings["epochs"] == recipe.epochs
        assert checkpoint.encoder_weights is None
        encoder, decoder = checkpoint.build_encoder(), checkpoint.build_decoder()
        pixels = encoder.preprocessing.read(Path(recipe.data[0].root) / "000.png").pixels
        with torch.no_grad():
            regions = encoder(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        ((found,),) = beam_search(decoder, regions, SearchConfig(beam=2))
        assert checkpoint.vocabulary.words(found.ids)
    assert load_training_state(run / "best") is None
    assert load_training_state(run / "last") is not None
    metrics = load_checkpoint(run / "best").metrics
    assert {"data bleu4", "data cider"} <= metrics.keys()


def test_curves_and_word_grids_are_pictures(finished: tuple[Recipe, Path, Recorder]) -> None:
    _, run, _ = finished
    grids = sorted((run / "overlays").rglob("*.png"))
    names = [str(path.relative_to(run / "overlays")) for path in grids]
    assert names == [f"epoch-00{epoch}/0{number}.png" for epoch in (1, 2) for number in (0, 1)]
    for path in (run / "curves.png", *grids):
        with Image.open(path) as picture:
            picture.load()
            assert picture.width > 300
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10  # not a blank page


def test_tensorboard_is_written_on_request(finished: tuple[Recipe, Path, Recorder]) -> None:
    _, run, _ = finished
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(run / "tensorboard")).Reload()
    trained = {f"train/{name}" for name in (*PARTS, "rate")}
    assert trained | {"validation/bleu4", "validation/loss"} <= set(found.Tags()["scalars"])
    losses = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in step_lines(run)]
    assert found.Tags()["images"] == ["validation/overlays/00", "validation/overlays/01"]
    grids = found.Images("validation/overlays/00")
    assert [event.step for event in grids] == [4, 8]
    with Image.open(run / "overlays/epoch-002/00.png") as picture:
        assert (grids[1].width, grids[1].height) == picture.size
    [settings] = found.Tensors("settings/text_summary")
    assert "    epochs: 2\n" in settings.tensor_proto.string_val[0].decode()


def test_nothing_else_is_there(finished: tuple[Recipe, Path, Recorder]) -> None:
    _, run, _ = finished
    expected = ["best", "curves.png", "last", "log.jsonl", "overlays", "run.html", "settings.yaml", "tensorboard"]
    assert sorted(path.name for path in run.iterdir()) == expected


# ---------------------------------------------------------------------------------------------------- the folder alone


def begin(folder: Path, log_bytes: int = 0, **changes: object) -> tuple[RunFolder, Recipe]:
    run, recipe = RunFolder(folder), replace(toy_recipe(folder / "data"), **changes)
    run.begin(recipe, log_bytes)
    return run, recipe


def test_a_folder_has_a_run_once_it_began_and_can_go_on_once_it_was_saved(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "new")
    assert not run.has_run()
    begin(tmp_path / "runs" / "new")
    assert run.has_run()
    assert not run.can_resume()
    assert not (tmp_path / "runs" / "new" / "tensorboard").exists()


def test_the_log_is_cut_back_to_what_was_saved(tmp_path: Path) -> None:
    run, recipe = begin(tmp_path)
    run.log({"step": 1, "loss": 2.0})
    kept = run.log_bytes()
    run.log({"step": 2, "loss": 1.0})
    with run.log_path.open("a") as file:
        file.write('{"step": 3, "lo')  # torn by a kill
    run.begin(recipe, kept)
    run.log({"step": 2, "loss": 1.5})
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]
    run.begin(recipe, 10**6)  # more than there is: nothing is made up
    assert len(read_log(tmp_path)) == 2


def test_numbers_that_json_does_not_have_become_text(tmp_path: Path) -> None:
    run, _ = begin(tmp_path)
    run.log({"step": 1, "loss": math.nan, "gradient": math.inf, "rate": 0.1 + 0.2})
    text = run.log_path.read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "step": 1, "loss": "nan", "gradient": "inf", "rate": 0.3
    }  # fmt: skip


def test_tensorboard_that_is_not_installed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"^tensorboard is true, but TensorBoard is not installed: pip install"):
        begin(tmp_path, tensorboard=True)


def test_several_data_sets_have_scores_of_their_own_in_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, _ = begin(tmp_path, tensorboard=True)
    for name, score in (("one", 10.0), ("two", 20.0)):
        run.log({"step": 3, "set": name, "bleu4": score})
    found = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [found.Scalars(f"validation/{name}/bleu4")[0].value for name in ("one", "two")] == [10.0, 20.0]


def test_a_line_is_told_to_whoever_asked(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    run = RunFolder(tmp_path, told.append)
    run.begin(toy_recipe(tmp_path / "data"), 0)
    run.log({"step": 1, "loss": math.nan, "rate": 0.5})
    assert told == read_log(tmp_path) == [{"step": 1, "loss": "nan", "rate": 0.5}]
