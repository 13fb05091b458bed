"""`captioner evaluate` from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.holding import wait_until
from helpers.meeting import Meeting
from helpers.toy_evaluation import COUNT, make_home, write_some
from helpers.toy_judge import ToyJudge

import captioner.evaluation.metrics.judge
from captioner.cli import main
from captioner.datasets.dataset import load_dataset
from captioner.evaluation.analysis.diagnostics import diagnose
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.fill_cache import fill_cache

COMMAND = """
import sys
from helpers import holding, toy_judge
import captioner.evaluation.metrics.judge

captioner.evaluation.metrics.judge.Judge = toy_judge.ToyJudge
sys.exit(holding.main())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, lite0: Encoder) -> Path:
    """Two models, and a data set with a test split of 16 images."""
    return make_home(tmp_path_factory.mktemp("evaluate"), lite0)


@pytest.fixture
def place(home: Path, lite0: Encoder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to stand in, with a judge that needs no Java and an encoder that is loaded already."""
    monkeypatch.setattr("captioner.model.checkpoint.load_encoder", lambda config, **_: lite0)
    monkeypatch.setattr(captioner.evaluation.metrics.judge, "Judge", ToyJudge)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests run in this process too
    monkeypatch.chdir(home)
    return home


def evaluate(*arguments: str) -> int:
    return main(["evaluate", *arguments, "--resamples", "60"])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_one_model(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert evaluate("one", "data", "--out", str(out)) == 0
    captured = capsys.readouterr()
    assert captured.out == (out / "comparison.txt").read_text()
    assert captured.out.splitlines()[0].startswith("data, test")
    assert captured.out.splitlines()[1].startswith("one ")
    assert captured.err.splitlines()[0].startswith("one: 16 captioned (")
    metrics = read(out / "metrics.json")
    assert (metrics["name"], metrics["kind"], metrics["missing"], metrics["paper"]) == ("one", "model", None, None)
    assert len(metrics["checksum"]) == 16
    assert metrics["encoder"].startswith("efficientnet-lite0 stride32 at 64 (")
    protocol = metrics["protocol"]
    assert (protocol["images"], protocol["split_images"], protocol["references"]) == (16, 16, [2, 3])
    assert (protocol["search"]["beam"], protocol["search"]["length_power"]) == (5, 0.9)
    assert (protocol["training_captions"], protocol["tokenizer"], protocol["resamples"]) == (5, "toy", 60)
    low, high = metrics["intervals"]["cider"]
    assert low <= metrics["scores"]["cider"] <= high
    results = read(out / "captions.json")
    assert [each["image_id"] for each in results] == [f"{number:04d}.jpg" for number in range(COUNT)]
    images = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
    assert [each["caption"] for each in images] == [each["caption"] for each in results]
    assert images[1]["references"][0] == "A man's dog runs"
    assert sum(each["scores"]["cider"] for each in images) / COUNT == pytest.approx(
        metrics["scores"]["cider"], abs=1e-3
    )
    record = json.loads((out / "captions.jsonl").read_text().splitlines()[0])
    assert len(record["attention"]) == len(record["words"])
    assert read(out / "diagnostics.json")["captions"] == COUNT
    assert list(read(out / "lengths.json")["models"]) == ["one"]
    assert not (out / "grounding.json").exists()
    # What was found is there; another search, model or split is not taken for it.
    assert evaluate("one", "data", "--out", str(out), "--quiet") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ((out / "comparison.txt").read_text(), "")
    assert read(out / "metrics.json") == metrics
    for more, message in (
        (
            ["one", "data", "--beam", "2"],
            "captions.jsonl has captions with beam 5, not 2; choose another folder",
        ),
        (["one", "data", "--length-power", "1"], "has captions with length_power 0.9, not 1.0"),
        (["two", "data"], "captions.jsonl has captions by one, not two; choose another folder"),
        (["one", "data", "--split", "train"], "has captions of other images (data data, split test, digest "),
    ):
        assert evaluate(*more, "--out", str(out)) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert read(out / "metrics.json") == metrics
    assert evaluate("one", "data", "--out", str(out), "--beam", "2", "--existing", "overwrite") == 0
    assert read(out / "metrics.json")["protocol"]["search"]["beam"] == 2


def test_a_cache_a_batch_size_and_a_limit(place: Path, tmp_path: Path, lite0: Encoder) -> None:
    fill_cache(load_dataset("data").images, tmp_path / "features", lite0, device="cpu")
    runs = {
        "1": ["--batch-size", "1"],
        "7": ["--batch-size", "7"],
        "cache": ["--features", str(tmp_path / "features")],
        "limit": ["--limit", "4"],
    }
    for name, more in runs.items():
        assert evaluate("one", "data", "--out", str(tmp_path / name), "--quiet", *more) == 0
    whole = read(tmp_path / "1" / "metrics.json")
    assert read(tmp_path / "7" / "metrics.json") == whole
    assert read(tmp_path / "cache" / "metrics.json") == whole
    assert read(tmp_path / "7" / "captions.json") == read(tmp_path / "1" / "captions.json")
    protocol = read(tmp_path / "limit" / "metrics.json")["protocol"]
    assert (protocol["images"], protocol["split_images"]) == (4, 16)
    assert read(tmp_path / "limit" / "captions.json") == read(tmp_path / "1" / "captions.json")[::4]
    assert evaluate("one", "data", "--out", str(tmp_path / "limit"), "--quiet") == 0  # goes on to the rest
    assert read(tmp_path / "limit" / "metrics.json") == whole


def test_a_folder_without_a_cache_that_fits(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("one", "data", "--limit", "2", "--out", str(tmp_path / "out"), "--features", "nowhere") == 0
    assert "one: no regions of its encoder in nowhere; images are encoded\n" in capsys.readouterr().err


def test_several_models_results_and_people(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    theirs = write_some(tmp_path / "theirs.json")
    arguments = ["one", "two", "one/best", "data", "--results", str(theirs), "--human", "--out", str(out)]
    assert evaluate(*arguments) == 0
    table = capsys.readouterr().out
    names = ["one", "two", "one-2", "theirs", "humans, one left out"]
    lines = table.splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == names
    assert "against one " in table
    comparison = read(out / "comparison.json")
    rows = {row["name"]: row for row in comparison["rows"]}
    assert list(rows) == names
    assert [row["kind"] for row in rows.values()] == ["model", "model", "model", "results", "humans"]
    assert rows["one-2"]["scores"] == rows["one"]["scores"]
    assert {each["p"] for each in rows["one-2"]["against"]["differences"].values()} == {1.0}
    assert rows["theirs"]["diversity"]["distinct"] == 1
    assert rows["theirs"]["file"] == "theirs.json"
    assert rows["two"]["checksum"] != rows["one"]["checksum"]
    assert rows["humans, one left out"]["turns"] == 2
    for name in names[:4]:
        assert read(out / name / "metrics.json")["scores"] == rows[name]["scores"]
    assert read(out / "theirs" / "captions.json") == json.loads(theirs.read_text())
    assert (out / "comparison.md").read_text().count("| theirs |") == 4  # scores, differences, diversity, origin
    assert not (out / "metrics.json").exists()


def test_a_report_to_send(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(
        "captioner.evaluation.analysis.analysis.diagnose",
        lambda captions: measured.append(len(captions)) or diagnose(captions),
    )
    results = write_some(tmp_path / "theirs.json")
    out, folder = tmp_path / "out", tmp_path / "deep" / "report"
    arguments = ["one", "data", "--results", str(results), "--human", "--out", str(out), "--report", str(folder)]
    assert evaluate(*arguments) == 0
    assert f"report: {folder / 'report.html'}\n" in capsys.readouterr().err
    page = (folder / "report.html").read_text()
    assert all(name in page for name in ("one", "theirs", "humans, one left out", "CIDEr-D"))
    assert (folder / "figures" / "best-1.png").exists()
    assert not (out / "report.html").exists()
    assert measured == [COUNT]  # once, for the page and for the files
    collapsed = read(out / "one" / "diagnostics.json")["collapsed"]
    assert f"{collapsed:.1%}" in page
    assert evaluate("one", "data", "--out", str(out), "--report", str(results)) == 1
    assert "theirs.json is not a folder" in capsys.readouterr().err


def test_captions_of_others_with_all_that_text_can_hold(place: Path, tmp_path: Path) -> None:
    awkward = {"0000.jpg": 'a "dog"\nruns\r\n\u2028here', "0001.jpg": "犬 🐕 naïve", "0002.jpg": "", "0003.jpg": "dog"}
    theirs = write_some(tmp_path / "r.json", **awkward)
    assert evaluate("data", "--results", str(theirs), "--out", str(tmp_path / "out"), "--quiet") == 0
    images = [json.loads(line) for line in (tmp_path / "out" / "images.jsonl").read_text().splitlines()]
    assert [each["caption"] for each in images[:4]] == list(awkward.values())
    again = tmp_path / "out" / "captions.json"
    assert evaluate("data", "--results", str(again), "--out", str(tmp_path / "again"), "--quiet") == 0
    first, second = (read(tmp_path / name / "metrics.json") for name in ("out", "again"))
    assert (first["name"], second["name"]) == ("r", "out")  # of a captions.json, its folder's
    assert not (tmp_path / "out" / "diagnostics.json").exists()
    assert first["scores"] == second["scores"]
    assert first["protocol"]["search"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda entries: entries.pop(), "r.json: images without a caption: 1 of 16 (0015.jpg)"),
        (lambda entries: entries.append(entries[3]), "r.json: images with several captions: 1 (0003.jpg)"),
        (
            lambda entries: entries.append({"image_id": 77, "caption": ""}),
            "r.json: captions of images that are not in the split: 1 (77)",
        ),
        (
            lambda entries: entries[2].update(caption=["a"]),
            "r.json: entries that cannot be used: 1 of 16 (entry 2 has the caption ['a'], which is no text)",
        ),
    ],
)
def test_wrong_results_are_one_line(
    place: Path, tmp_path: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_some(tmp_path / "r.json")
    entries = read(path)
    change(entries)
    path.write_text(json.dumps(entries))
    assert evaluate("data", "--results", str(path), "--out", str(tmp_path / "out")) == 1
    assert capsys.readouterr().err == f"captioner: {tmp_path}/{message}\n"
    assert not (tmp_path / "out").exists()


def test_images_that_cannot_be_read_are_left_out_and_told(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = place / "data" / "0005.jpg"
    good = bad.read_bytes()
    bad.write_bytes(good[:-30])
    theirs = write_some(tmp_path / "theirs.json")
    try:
        assert evaluate("one", "data", "--results", str(theirs), "--out", str(tmp_path / "out"), "--quiet") == 1
    finally:
        bad.write_bytes(good)
    captured = capsys.readouterr()
    assert captured.err == "captioner: 0005.jpg: truncated: it ends before its end-of-image marker\n"
    assert "unreadable images, left out: 1 (0005.jpg)" in captured.out
    for name in ("one", "theirs"):
        metrics = read(tmp_path / "out" / name / "metrics.json")
        assert (metrics["protocol"]["images"], metrics["protocol"]["left_out"]) == (15, ["0005.jpg"])
        assert metrics["diversity"]["captions"] == 15


def test_what_is_missing_without_java_is_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ToyJudge, "missing", "no METEOR, since there is no Java")
    theirs = write_some(tmp_path / "r.json")
    assert evaluate("data", "--results", str(theirs), "--out", str(tmp_path / "out"), "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.err == "captioner: no METEOR, since there is no Java\n"
    assert "missing: no METEOR, since there is no Java\n" in captured.out
    assert read(tmp_path / "out" / "metrics.json")["missing"] == "no METEOR, since there is no Java"


def test_the_real_judge(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    theirs = write_some(tmp_path / "r.json", **{"0000.jpg": 'a "dog"\nruns\u2028here', "0001.jpg": ""})
    assert evaluate("data", "--results", str(theirs), "--out", str(tmp_path / "out"), "--quiet") == 0
    metrics = read(tmp_path / "out" / "metrics.json")
    assert ("meteor" in metrics["scores"]) == (metrics["missing"] is None)
    assert set(metrics["scores"]) >= {"bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider"}
    for name, (low, high) in metrics["intervals"].items():
        assert low <= metrics["scores"][name] <= high
    assert len((tmp_path / "out" / "images.jsonl").read_text().splitlines()) == COUNT


def start(home: Path, out: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own."""
    command = ["evaluate", "one", "data", "--out", str(out), "--resamples", "60", "--batch-size", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command],
        cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_it_goes_on_and_ends_as_if_nothing_had_happened(place: Path, tmp_path: Path) -> None:
    assert evaluate("one", "data", "--out", str(tmp_path / "whole"), "--quiet") == 0
    out = tmp_path / "killed"
    process = start(place, out, HOLD="captioner.captioning.output.folder:OutputFolder.add_caption=3")
    record = out / "captions.jsonl"
    wait_until(lambda: record.exists() and record.stat().st_size > 0, lambda: process.poll() is None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "metrics.json").exists()
    done = record.read_bytes().count(b"\n")
    assert 0 < done < COUNT
    before = record.read_bytes()[: record.read_bytes().rfind(b"\n") + 1]
    assert evaluate("one", "data", "--out", str(out), "--quiet") == 0
    assert record.read_bytes().startswith(before)
    for name in ("metrics.json", "captions.json", "images.jsonl", "images.csv", "comparison.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_processes_give_what_one_gives(place: Path, tmp_path: Path) -> None:
    assert evaluate("one", "data", "--out", str(tmp_path / "alone"), "--quiet") == 0
    meeting = Meeting(2)
    processes = [start(place, tmp_path / "both", **environment) for environment in meeting.environments()]
    (table, told), (nothing, silence) = (process.communicate() for process in processes)
    assert [process.returncode for process in processes] == [0, 0], told + silence
    assert table == (tmp_path / "alone" / "comparison.txt").read_text()
    assert nothing == ""
    for name in ("metrics.json", "captions.json", "images.jsonl"):
        assert (tmp_path / "both" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "data"], "model is 'nowhere'; "),
        (["one", "nowhere"], "nowhere is not there, expected a folder with a data set"),
        (["one", "data", "--split", "val"], "data has no split 'val', only train, test"),
        (["data", "--results", "nowhere.json"], "nowhere.json"),
        (["one", "data", "--out", "data/0000.jpg"], "data/0000.jpg"),
    ],
)
def test_failures_are_one_line_and_exit_code_1(
    place: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    assert evaluate(*arguments, *out) == 1
    error = capsys.readouterr().err
    assert error.startswith("captioner: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["one", "data"], ["--out", "x"], ["a", "b", "--out", "x", "--limit", "0"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments]) == 2
    assert "see `captioner evaluate --help`" in capsys.readouterr().err


def test_help_tells_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "None" not in text
    assert "[]" not in text
    for default in ("(default: test)", "(default: 1000)", "(default: 5)", "(default: 0.9)", "(default: skip)"):
        assert default in text
