from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.holding import PATIENCE
from helpers.terminals import at_terminal
from helpers.toy_training import (
    assert_same_runs,
    read_log,
    run_toy,
    step_lines,
    toy_recipe,
    write_toy_data,
)

from captioner.cli import main
from captioner.training.recipe import load_recipe, to_yaml
from captioner.training.run_folder import RunFolder

STOPPING = "stopping after this step; interrupt again to stop at once, at the last checkpoint\n"


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Give signals back to pytest, which a command has handled."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def config(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(to_yaml(toy_recipe(data)))
    return "toy.yaml"


def errors_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["train", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_help_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(part in text for part in ("RECIPE", "KEY=VALUE", "(default: runs/NAME)", "(default: auto)"))
    assert "None" not in text


def test_show_prints_all_settings_and_trains_nothing(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config, "decoder.hidden=99", "epochs=7", "--show"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    Path("shown.yaml").write_text(captured.out)
    shown, plain = load_recipe("shown.yaml"), load_recipe(config)
    assert shown == replace(plain, epochs=7, decoder=replace(plain.decoder, hidden=99))
    assert not Path("runs").exists()


def test_settings_may_come_before_and_after_options(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config, "epochs=5", "--show", "decoder.hidden=99"]) == 0
    Path("shown.yaml").write_text(capsys.readouterr().out)
    shown = load_recipe("shown.yaml")
    assert (shown.epochs, shown.decoder.hidden) == (5, 99)


def test_a_run_goes_where_it_is_told_and_says_how_it_ended(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(
        r"runs/toy/best: the best model of epoch [12], bleu4 \d+\.\d; trained for 8 steps\n", captured.out
    )
    assert "epoch 1: data bleu1 " in captured.err
    assert "%" not in captured.err.replace("% of the weights", "")  # no bar where there is no terminal
    assert not Path("features").exists()
    assert main(["train", config, "epochs=1", "data.features=null", "--run", "elsewhere", "--quiet"]) == 0
    assert "elsewhere/best" in capsys.readouterr().out
    assert len(step_lines(Path("elsewhere"))) == 4
    assert len(list(Path("features/data").iterdir())) == 1  # beside the caller, by default


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml is not there"),
        (["toy.yaml", "data.root=nowhere"], "nowhere is not there"),
        (["toy.yaml", "data.validation=dev"], "data has no split 'dev', only train, val"),
        (["toy.yaml", "encoder.name=efficientnet-lite9"], "no encoder is called 'efficientnet-lite9'"),
        (["toy.yaml", "start=nowhere"], "start is 'nowhere'; choose from coco-best, "),
        (["toy.yaml", "precision=float16", "--device", "cpu"], "precision float16 needs a CUDA device"),
    ],
)
def test_failures_are_one_line_and_exit_code_1(
    arguments: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = errors_of(arguments, capsys)
    assert errors.startswith("captioner: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy.yaml", "decoder.hiden=3"], "unknown key decoder.hiden (did you mean hidden?)"),
        (["toy.yaml", "epochs"], "'epochs' has no '='"),
        (["toy.yaml", "optimiser.rate=fast"], "optimiser.rate is 'fast' (text); expected a number"),
        (["toy.yaml", "--device", "abacus"], "device is 'abacus'; choose from auto, cpu"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not Path("runs").exists()


def test_a_run_that_is_there_is_not_begun_again(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", config, "epochs=1"]) == 0
    capsys.readouterr()
    told = errors_of([config, "epochs=1"], capsys)
    assert all(part in told for part in ("captioner: runs/toy has a run", "--resume", "--run"))
    told = errors_of([config, "--resume", "decoder.hidden=9"], capsys)
    assert "captioner: runs/toy was begun with decoder.hidden 12, not 9" in told
    assert all(part in told for part in ("--run", "may change epochs"))


def test_a_run_that_resumes_keeps_its_settings_and_epochs_extends_it(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", config, "epochs=1", "decoder.hidden=9"]) == 0
    capsys.readouterr()
    assert main(["train", config, "--resume"]) == 0  # finished: nothing is left to do
    captured = capsys.readouterr()
    kept = "runs/toy keeps the settings that it was begun with: epochs 1, not 2; decoder.hidden 9, not 12\n"
    assert captured.err.startswith(kept)
    assert "the best model of epoch 1" in captured.out
    assert main(["train", config, "--resume", "epochs=3"]) == 0
    captured = capsys.readouterr()
    assert "epochs: 3 instead of 1, and the learning rate follows the schedule of that many\n" in captured.err
    assert captured.out.endswith("trained for 12 steps\n")
    assert load_recipe("runs/toy/settings.yaml").decoder.hidden == 9


def test_recipes_are_listed_and_an_unknown_one_lists_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^flickr8k-soft +Flickr8k with soft attention", listed, re.MULTILINE)
    assert all(len(line) <= 100 for line in listed.splitlines())
    assert "unknown recipe 'x'; choose from coco-best, " in errors_of(["x"], capsys)
    assert main(["train", "flickr8k-soft", "data.root=elsewhere", "--show"]) == 0
    assert "root: elsewhere" in capsys.readouterr().out


def test_two_runs_are_compared_on_a_page(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, hidden in (("one", 12), ("two", 9)):
        arguments = [config, "epochs=1", f"decoder.hidden={hidden}", "--run", name]
        assert main(["train", *arguments]) == 0
    capsys.readouterr()
    assert main(["compare", "one", "two", "--out", "pages/both.html"]) == 0
    assert capsys.readouterr().out == "pages/both.html\n"
    assert "decoder.hidden" in Path("pages/both.html").read_text(encoding="utf-8")
    assert main(["compare", "one"]) == 2
    assert "name two or more" in capsys.readouterr().err
    assert main(["compare", "one", "nowhere"]) == 1
    assert "nowhere is not there; expected a folder with settings.yaml" in capsys.readouterr().err


def test_a_bad_image_and_collapsed_attention_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_toy_data(tmp_path / "photos")
    (data / "002.png").write_bytes(b"no image")
    (tmp_path / "toy.yaml").write_text(to_yaml(toy_recipe(data)))
    assert main(["train", str(tmp_path / "toy.yaml"), "--run", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("left out: ") and "002.png" in line for line in lines) == 1
    assert sum(line.startswith("captioner: warning: epoch 1: attention has collapsed") for line in lines) == 1


# ---------------------------------------------------------------------------------------------------- signals


@pytest.fixture
def send_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let signals come to this process while a run logs a line of that number, counted over all runs."""

    def install(line: int, *numbers: signal.Signals) -> None:
        log, count = RunFolder.log, 0

        def send(self: RunFolder, values: dict[str, Any]) -> None:
            nonlocal count
            log(self, values)
            count += 1
            if count == line:
                for number in numbers:
                    os.kill(os.getpid(), number)

        monkeypatch.setattr(RunFolder, "log", send)

    return install


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_and_the_run_goes_on(
    number: signal.Signals,
    config: str,
    send_at: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    send_at(3, number)
    assert main(["train", config]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    told = "stopped; everything is in runs/toy/last, and --resume continues from there\n"
    assert captured.err == "runs/toy/run.html shows how it goes\n" + STOPPING + told
    assert "stopped; --resume continues it" in Path("runs/toy/run.html").read_text(encoding="utf-8")
    assert 3 <= len(read_log(Path("runs/toy"))) < 8
    assert main(["train", config, "--resume"]) == 0
    assert "trained for 8 steps" in capsys.readouterr().out
    run_toy(load_recipe(config), tmp_path / "whole")
    assert_same_runs(Path("runs/toy"), tmp_path / "whole")


def test_a_second_signal_stops_at_once(
    config: str, send_at: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send_at(7, signal.SIGTERM, signal.SIGTERM)  # the second step of the second epoch; the first was saved
    assert main(["train", config]) == 130
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert lines[-2:] == [
        STOPPING, "captioner: interrupted; finished work is kept, and the same command resumes\n"
    ]  # fmt: skip
    assert main(["train", config, "--resume"]) == 0
    run_toy(load_recipe(config), tmp_path / "whole")
    assert_same_runs(Path("runs/toy"), tmp_path / "whole")


def test_a_terminal_sees_a_bar_and_ctrl_c_leaves_a_run_that_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: a process of its own at a terminal, stopped in the middle."""
    recipe = toy_recipe(data, epochs=500, validation={"every": 500, "overlays": 0})
    (tmp_path / "toy.yaml").write_text(to_yaml(recipe))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process, blocks = at_terminal("train", str(tmp_path / "toy.yaml"), "--run", str(tmp_path / "run"))
    shown = b""
    log = tmp_path / "run" / "log.jsonl"
    asked = False
    for block in blocks:  # each step shows something, and none is done before what the last one showed is read
        shown += block
        if not asked and log.exists() and log.read_bytes().count(b"\n") > 9 and b"captions/s" in shown:
            process.send_signal(signal.SIGINT)
            asked = True
    assert process.wait(timeout=PATIENCE) == 130
    text = shown.decode()
    assert re.search(r"epoch 1\b.*\| \d/4 \[", text)
    assert re.search(r"loss \d\.\d{3}, \d+ captions/s", text)
    assert "stopping after this step" in text
    assert "--resume continues from there" in text
    assert "Traceback" not in text
    steps = len(step_lines(tmp_path / "run"))
    assert 9 < steps < 2000
    _, recorder = run_toy(recipe, tmp_path / "run", resume=True, stop=lambda recorder: bool(recorder.steps))
    assert recorder.steps[0][0].step == steps + 1
