"""What the scripts in experiments/ keep of runs: a thinned log, settings without paths, scores, the study's table."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toy_checkpoints import make_checkpoint
from helpers.toy_training import read_log, run_toy, toy_recipe, write_toy_data
from PIL import Image

from captioner.datasets.dataset import load_dataset
from captioner.datasets.vocabulary import SPECIALS
from captioner.datasets.word_classes import is_content
from captioner.model.checkpoint import load_checkpoint, save_checkpoint
from captioner.model.decoder import make_decoder
from captioner.training.recipe import load_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
import glimpse_variance
import keep_results
import match_words
import mix_weights
import shared_images
import study
import variations

SCORES = {"bleu1": 66.123, "bleu4": 22.5, "meteor": 20.0, "cider": 55.0}


def write_evaluation(folder: Path, **scores: float) -> Path:
    """Write as much of an evaluation as the scripts read."""
    folder.mkdir(parents=True)
    values = {**SCORES, **scores}
    metrics = {
        "scores": values,
        "intervals": {name: [value - 1.5, value + 1.5] for name, value in values.items()},
        "diversity": {"distinct": 891},
        "protocol": {"split": "val"},
        "checksum": "0123",
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    overall = {"entropy_share": 0.95, "movement": 0.16, "peak": 0.04, "beta": 0.38, "entropy": 4.1}
    (folder / "diagnostics.json").write_text(json.dumps({"overall": overall, "collapsed": 0.01}))
    return folder


def test_a_thinned_log_has_means_over_epochs_and_all_validations() -> None:
    steps = [{"step": step, "epoch": 1 + step // 3, "loss": float(step), "rate": 0.5} for step in range(1, 6)]
    checks = [{"step": 2, "epoch": 1, "bleu4": 3.0}, {"step": 5, "epoch": 2, "bleu4": 4.0}]
    assert keep_results.thin([*steps[:2], checks[0], *steps[2:], checks[1]]) == [
        {"step": 2, "epoch": 1, "loss": 1.5, "rate": 0.5},
        checks[0],
        {"step": 5, "epoch": 2, "loss": 4.0, "rate": 0.5},
        checks[1],
    ]


def test_what_is_kept_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_toy_data(tmp_path / "data")
    run_toy(toy_recipe(data), tmp_path / "run")
    evaluation = write_evaluation(tmp_path / "evaluation")
    arguments = [str(tmp_path / "run"), str(evaluation), str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", ["keep_results.py", *arguments])
    keep_results.main()
    kept = tmp_path / "kept"
    assert {path.name for path in kept.iterdir()} == {"settings.yaml", "log.jsonl", "metrics.json", "curves.png"}
    assert load_recipe(kept / "settings.yaml").data[0].root == "data"
    assert not any(str(tmp_path) in path.read_text() for path in kept.iterdir() if path.suffix != ".png")
    lines = read_log(kept)
    assert [("loss" in line, line["epoch"]) for line in lines] == [(True, 1), (False, 1), (True, 2), (False, 2)]
    metrics = json.loads((kept / "metrics.json").read_text())
    assert metrics["scores"] == SCORES
    assert metrics["attention"] == {
        "entropy_share": 0.95,
        "movement": 0.16,
        "peak": 0.04,
        "beta": 0.38,
        "collapsed": 0.01,
    }


@pytest.mark.parametrize("name", variations.STUDIES)
def test_every_training_of_a_study_is_an_experiment_of_its_own(name: str) -> None:
    one = variations.STUDIES[name]
    trainings = study.make_trainings(one, list(one.trainings), [0, 1, 2])
    assert len(set(map(study.folder_name, trainings))) == len(trainings) == len(one.trainings) + 2 * len(one.seeded)
    settings: list[Any] = [load_recipe(one.recipe, [*one.settings, *changes]) for changes in trainings.values()]
    assert all(each != other for place, each in enumerate(settings) for other in settings[:place])
    epochs = {training: each.epochs for training, each in zip(trainings, settings, strict=True)}
    assert {training: count for training, count in epochs.items() if count != 2} == (
        {"hard for long": 8} if name == "lectures" else {}
    )


def test_the_transformer_of_the_study_has_as_many_weights_as_the_lstm() -> None:
    one = variations.STUDIES["lectures"]
    weights = []
    for training in ("soft", "transformer"):
        recipe = load_recipe(one.recipe, [*one.settings, *one.trainings[training]])
        decoder = make_decoder(recipe.decoder, recipe.attention, 2540, 1280, (7, 7))
        weights.append(sum(each.numel() for each in decoder.parameters()))
    assert weights[1] == pytest.approx(weights[0], rel=0.1)


def test_trainings_that_start_from_another_are_trained_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = variations.STUDIES["lectures"]
    trainings = study.make_trainings(one, ["glimpse after soft", "none", "soft"], [0])
    done: list[str] = []
    monkeypatch.setattr(study, "train", lambda _study, name, _changes, _options: done.append(name))
    study.train_all(one, trainings, argparse.Namespace(jobs=1, runs=tmp_path))
    assert done == ["none", "soft", "glimpse after soft"]


def test_the_study_s_table(tmp_path: Path) -> None:
    one = variations.STUDIES["parts"]
    names = [one.first, "dot", "no gate"]
    for name in [*names, "dot seed 7"]:
        write_evaluation(tmp_path / "evaluation" / study.folder_name(name), cider=50.0 + len(name))
    options = argparse.Namespace(runs=tmp_path)
    rows = study.collect(one, names, [0], options)
    table = study.write(one, rows, tmp_path)
    assert table == (tmp_path / "study.md").read_text()
    assert "| dot | 66.1 ±1.5 | 22.5 ±1.5 | 20.0 ±1.5 | 53.0 ±1.5 | 891 | 95.0% | 16.0% | 1.0% |" in table
    places = [table.index(text) for text in (one.first, "*score function*", "| dot", "*gate*", "| no gate")]
    assert places == sorted(places)
    assert json.loads((tmp_path / "study.json").read_text())[1]["scores"]["cider"] == 53.0
    rows = study.collect(one, [*names, "dot seed 7"], [0, 7], options)
    assert "| 53.0 ±1.5 | 53.0, 60.0 | 891 |" in study.write(one, rows, tmp_path)
    study.draw(rows, tmp_path / "scores.svg")
    assert all(f"<!-- {name} -->" in (tmp_path / "scores.svg").read_text() for name in names)


def test_baselines_lower_the_variance_of_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_toy_data(tmp_path / "data")
    outcome, _ = run_toy(toy_recipe(data, epochs=1, attention={"mode": "glimpse"}), tmp_path / "run")
    assert outcome is not None
    arguments = [str(outcome.folder), str(data), "--features", str(tmp_path / "data-regions"), "--draws", "4"]
    monkeypatch.setattr(sys, "argv", ["glimpse_variance.py", *arguments])
    glimpse_variance.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "5 captions, 4 draws"
    variances = {row[:24].strip(): float(row.split("variance")[1].split(",")[0]) for row in rows}
    assert tuple(variances) == glimpse_variance.BASELINES
    assert 0 < variances["the mean of all words"] < 0.2 * variances["none"]


def test_copies_between_training_and_held_out_images_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_toy_data(tmp_path / "data")
    other = write_toy_data(tmp_path / "other", first=20)
    with Image.open(data / "003.png") as image:
        image.resize((90, 90), Image.Resampling.BICUBIC).save(other / "029.png")  # a validation image
    run_toy(toy_recipe([data, other], epochs=1), tmp_path / "run")
    caches = [str(next((tmp_path / f"{name}-regions").iterdir())) for name in ("data", "other")]
    sheet = tmp_path / "sheet.png"
    arguments = [*caches, str(data), str(other), "--count", "2", "--sheet", str(sheet)]
    monkeypatch.setattr(sys, "argv", ["shared_images.py", *arguments])
    shared_images.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == [
        "data val: 5 images against 8 of data train",
        "other val: 5 images against 8 of data train",
    ]
    likeness, known, held_out = lines[4].split()
    assert (known, held_out) == ("003.png", "029.png")
    assert float(likeness) > 0.97 > float(lines[5].split()[0])
    with Image.open(sheet) as drawn:
        assert drawn.size == (2 * (2 * shared_images.TILE + 16), 2 * (shared_images.TILE + 24))


def test_mixed_weights_lie_between_those_of_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = make_checkpoint(0), make_checkpoint(1)
    save_checkpoint(tmp_path / "before", before)
    save_checkpoint(tmp_path / "after", after)
    places = [str(tmp_path / name) for name in ("before", "after", "mixed")]
    monkeypatch.setattr(sys, "argv", ["mix_weights.py", *places[:2], "0.75", places[2]])
    mix_weights.main()
    mixed = load_checkpoint(tmp_path / "mixed")
    for name, weight in mixed.weights.items():
        torch.testing.assert_close(weight, 0.25 * before.weights[name] + 0.75 * after.weights[name])
    assert mixed.vocabulary == after.vocabulary


def test_models_that_are_not_of_one_training_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "soft", make_checkpoint())
    save_checkpoint(tmp_path / "hard", make_checkpoint(mode="hard"))
    arguments = [str(tmp_path / "soft"), str(tmp_path / "hard"), "0.5", str(tmp_path / "mixed")]
    monkeypatch.setattr(sys, "argv", ["mix_weights.py", *arguments])
    with pytest.raises(SystemExit, match="the two models differ in attention"):
        mix_weights.main()
    assert not (tmp_path / "mixed").exists()


def test_words_are_said_as_often_as_people_say_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_toy_data(tmp_path / "data")
    model = make_checkpoint()
    save_checkpoint(tmp_path / "model", model)
    words = model.vocabulary.entries
    references = [caption for image in load_dataset(data).split("train") for caption in image.tokenized()]
    rare = next(word for caption in references for word in caption if word in words and is_content(word))
    common = next(word for word in words[len(SPECIALS) :] if is_content(word) and word != rare)
    record = tmp_path / "captions.jsonl"
    lines = [{"file_name": f"{number}.png", "text": "", "words": ["a", *[common] * 3]} for number in range(4)]
    record.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    arguments = [str(tmp_path / "model"), str(data), str(record), "0.5", str(tmp_path / "matched")]
    monkeypatch.setattr(sys, "argv", ["match_words.py", *arguments])
    match_words.main()
    matched = load_checkpoint(tmp_path / "matched")
    shift = matched.weights["output.bias"] - model.weights["output.bias"]

    def expected(word: str, said: float) -> float:
        wanted = sum(caption.count(word) for caption in references) / len(references)
        return 0.5 * math.log((wanted + match_words.RARE) / (said + match_words.RARE))

    assert shift[words.index(rare)].item() == pytest.approx(expected(rare, 0.0), rel=1e-3)
    assert shift[words.index(common)].item() == pytest.approx(expected(common, 3.0), rel=1e-3)
    assert shift[words.index(rare)] > 0 > shift[words.index(common)]
    assert all(shift[number] == 0 for number, word in enumerate(words) if word in SPECIALS or not is_content(word))
    assert all(
        torch.equal(weight, model.weights[name]) for name, weight in matched.weights.items() if name != "output.bias"
    )
