from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.awkward_images import COLOURS, tiff
from helpers.data_folders import change_json, karpathy
from helpers.holding import PATIENCE, wait_until
from helpers.photo_folders import EXAMPLES, write_photo_folder
from helpers.terminals import at_terminal
from helpers.toy_checkpoints import make_checkpoint
from PIL import Image

from captioner import __version__
from captioner.cli import main
from captioner.model.checkpoint import save_checkpoint

COMMANDS = ["describe", "features", "inspect", "encoders"]
LITE0 = ["--encoder", "efficientnet-lite0", "--size", "64"]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_lists_every_option_with_its_default(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"] if command else ["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: captioner" in text
    assert "None" not in text
    if command is None:
        assert all(name in text for name in COMMANDS)
    if command == "features":
        assert "(default: efficientnet-lite2)" in text
        assert text.count("(default:") >= 10


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"captioner {__version__}\n"


def test_describe_prints_a_report_json_and_a_histogram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(EXAMPLES)]) == 0
    assert "captions            14" in capsys.readouterr().out
    picture = tmp_path / "lengths.png"
    assert main(["describe", str(EXAMPLES), "--json", "--min-count", "2", "--histogram", str(picture)]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert (facts["images"], facts["captions"], facts["minimum_count"]) == (7, 14, 2)
    assert captured.err == f"wrote {picture}\n"
    assert Image.open(picture).format == "PNG"


def test_features_fills_both_caches_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_photo_folder(tmp_path / "photos", 5)
    command = ["features", str(photos), *LITE0, "--flips", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    first = capsys.readouterr()
    assert first.out.count("5 encoded") == 2
    assert first.err == ""  # no bar where there is no terminal
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert main(command) == 0
    assert capsys.readouterr().out.count("nothing to encode, 5 encoded before, 0 refused") == 2


def test_features_goes_beside_the_caller_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_photo_folder(tmp_path / "photos", 2)
    monkeypatch.chdir(tmp_path)
    assert main(["features", str(photos), *LITE0, "--split", "train"]) == 0
    assert len(list((tmp_path / "features" / "photos").iterdir())) == 1


def test_a_bad_image_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_photo_folder(tmp_path / "photos", 3)
    bad = photos / "0001.jpg"
    bad.write_bytes(bad.read_bytes()[:-40])
    assert main(["features", str(photos), *LITE0, "--out", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"captioner: {bad}: truncated: it ends before its end-of-image marker\n"
    assert "2 encoded" in captured.out
    assert main(["inspect", str(photos), *LITE0]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"captioner: {bad}: truncated: it ends before its end-of-image marker\n"
    assert len(captured.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "nowhere"], "nowhere is not there"),
        (["describe", str(EXAMPLES / "cat.jpg")], "cat.jpg is not a folder"),
        (["describe", str(EXAMPLES), "--histogram", "no/such/folder.png"], "no/such/folder.png"),
        (["features", str(EXAMPLES), "--encoder", "resnet5"], "did you mean resnet50"),
        (["features", str(EXAMPLES), "--split", "train"], "no split 'train', only test"),
        (["inspect", "nowhere.jpg"], "nowhere.jpg: no such file or directory"),
        (["inspect", str(EXAMPLES), "--encoder", "resnet18", "--weights", "random"], "has no classifier"),
    ],
)
def test_failures_are_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if arguments[0] == "features":
        arguments = [*arguments, "--out", str(tmp_path)]
    assert main(arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("captioner: ")
    assert message in errors
    assert errors.count("\n") == 1


CAT = str(EXAMPLES / "cat.jpg")
WRONG_USAGE = [
    ("", "COMMAND; see `captioner --help`"),
    ("paint", "invalid choice: 'paint'"),
    ("caption", "name images, folders or archives; see `captioner caption --help`"),
    (f"caption {CAT} --loud", "--loud; see `captioner caption --help`"),
    *(
        (f"caption {CAT} --{flag}", f"--{flag} needs --out DIR")
        for flag in ("overlays", "gallery", "embed", "prune", "attention")
    ),
    (f"caption {CAT} --format csv", "--format needs --out DIR"),
    (f"caption {CAT} --existing overwrite", "--existing needs --out DIR"),
    (f"caption {CAT} --format xml", "'xml' is not a format; choose from jsonl, txt, csv, coco"),
    (f"caption {CAT} --existing keep", "invalid choice: 'keep'"),
    (f"caption {CAT} --seed 3", "--seed needs --sample"),
    (f"caption {CAT} --temperature 0.5", "temperature applies to sampling only"),
    (f"caption {CAT} --sample --beam 3", "beam does not apply to sampling"),
    (f"caption {CAT} --sample --temperature 0", "--temperature: '0' is refused; it must be above 0"),
    (f"caption {CAT} --sample --top-p 1.5", "--top-p: '1.5' is refused; it must be above 0 and at most 1"),
    (f"caption {CAT} --beam 0", "--beam: '0' is refused; it must be at least 1"),
    (f"caption {CAT} --beam two", "--beam: 'two' is refused; it must be a whole number"),
    (f"caption {CAT} --diversity nan", "--diversity: 'nan' is refused; it must be a number"),
    (f"caption {CAT} --beam 2 --n-best 5", "n_best is 5; a beam of 2 gives at most 2"),
    (f"caption {CAT} --beam 5 --groups 2", "groups is 2; it must divide the beam of 5"),
    (f"caption {CAT} --minimum-length 9 --maximum-length 4", "maximum_length is 4"),
    (f"caption {CAT} --batch-size none", "--batch-size: 'none' is refused"),
    (f"caption {CAT} --device abacus", "device is 'abacus'; choose from auto, cpu"),
    ("overlay --out out", "name images"),
    (f"overlay {CAT}", "--out; see `captioner overlay --help`"),
    (f"overlay {CAT} --out out --from x.jsonl", "--from draws recorded captions; it does not go with images"),
    ("overlay --out out --from x.jsonl --diversity 0", "does not go with --diversity"),
    (f"overlay {CAT} --out out --kind grids", "kind is 'grids'; choose from grid"),
    (f"overlay {CAT} --out out --width 99", "width is 99.0"),
    (f"overlay {CAT} --out out --device abacus", "device is 'abacus'"),
    ("serve --port 70000", "70000 is not a port; choose from 0 to 65535"),
    ("serve --port 0 --device abacus", "device is 'abacus'"),
    ("describe", "DATA; see `captioner describe --help`"),
    (f"describe {EXAMPLES} --format voc", "unknown format 'voc'; choose from "),
    (f"describe {EXAMPLES} --min-count 0", "--min-count: 0 is refused; it must be at least 1"),
    (f"describe {EXAMPLES} --tolerance 2", "2 is not a share from 0 to 1"),
    ("features x --size -3", "-3"),
    (f"features {EXAMPLES} --layer top", "encoder layer is 'top'; choose from"),
    (f"features {EXAMPLES} --engine torch --device abacus --out out", "device is 'abacus'; choose from auto, cpu"),
    ("train", "RECIPE; see `captioner train --help`"),
    ("evaluate x", "--out; see `captioner evaluate --help`"),
    ("evaluate x --out out", "there is nothing to evaluate; name a model"),
    ("evaluate coco-fast x --out out --device abacus", "device is 'abacus'"),
    ("evaluate x --out out --length-power -1", "--length-power: '-1' is refused; it must be at least 0"),
    ("evaluate x y --out out --temperature 2", "temperature applies to sampling only"),
    ("export x", "DIR; see `captioner export --help`"),
    ("models --all", "--all; see `captioner models --help`"),
    ("inspect", "PATH; see `captioner inspect --help`"),
    ("encoders all", "all; see `captioner encoders --help`"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_USAGE, ids=[arguments for arguments, _ in WRONG_USAGE])
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    *_, last = captured.err.splitlines()
    assert last.startswith("captioner: ")
    assert message in last
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 or arguments.startswith("serve --port 0")  # which says that it loads
    assert not list(tmp_path.iterdir())


def test_inspect_draws_figures_with_names_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cat.jpg").write_bytes((EXAMPLES / "cat.jpg").read_bytes())
    out = tmp_path / "figures"
    assert main(["inspect", str(tmp_path), "--recursive", *LITE0, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["cat.jpg-2.png", "cat.jpg.png"]
    assert "451 x 300\t2 x 2 regions\t" in capsys.readouterr().out
    with Image.open(out / "cat.jpg.png") as figure:
        assert figure.width == 1200
        assert 380 < figure.height < 460  # two panels of 451 x 300 side by side, and a title


def test_warnings_of_pillow_are_not_passed_on(tmp_path: Path) -> None:
    tag_beyond_the_end = tiff([COLOURS.tobytes()], {305: ("byte", [0] * 9999)}, [8] * 3, 2)[:-9000]
    (tmp_path / "photo.tif").write_bytes(tag_beyond_the_end)
    command = [sys.executable, "-m", "captioner", "inspect", str(tmp_path), *LITE0]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_encoders_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encoders"]) == 0
    assert {"efficientnet-lite0", "vgg19", "resnet50", "convnext_tiny", "timm/NAME"} <= set(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_can_go_on(
    tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photo_folder(tmp_path / "photos", 120)
    out = tmp_path / "out"
    command = ["features", str(photos), *LITE0, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.holding", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLD": "captioner.model.encoders.fill_cache:Writer.write=2"},
    )
    wait_until(lambda: any(index.stat().st_size for index in out.glob("*/index.jsonl")), lambda: process.poll() is None)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "captioner: interrupted; finished work is kept, and the same command resumes\n"
    assert main(command) == 0
    done = int(capsys.readouterr().out.split(" encoded")[0].split()[-1].replace(",", ""))
    assert 0 < done < 120


def test_a_terminal_sees_a_progress_bar(tmp_path: Path) -> None:
    photos = write_photo_folder(tmp_path / "photos", 64)
    process, blocks = at_terminal("features", str(photos), *LITE0, "--out", str(tmp_path / "out"), columns=80)
    shown = b"".join(blocks)
    assert process.wait(timeout=PATIENCE) == 0
    assert b"regions: 100%" in shown
    assert b"64/64" in shown
    assert b" images/s" in shown


def test_escapes_and_line_ends_in_files_are_not_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, hostile = tmp_path / "model", "\x1b]0;title\x07\nrm -rf /\u202e"
    save_checkpoint(model, make_checkpoint())
    manifest = json.loads((model / "checkpoint.json").read_text())
    for changes in ({"format": 2, "captioner": hostile}, {"encoder": {"name": hostile}}, {"files": {hostile: hostile}}):
        (model / "checkpoint.json").write_text(json.dumps(manifest | changes))
        assert main(["export", str(model), str(tmp_path / "out")]) == 1
        error = capsys.readouterr().err
        assert error.startswith("captioner: ")
        assert error.endswith("\n")
        assert error[:-1].isprintable()
    (model / "checkpoint.json").write_text(json.dumps(manifest | {"attention": {"mode": hostile}}))
    assert main(["models", str(model)]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
    photos = karpathy(tmp_path / "photos")
    change_json(photos, lambda content: content.update(dataset=f"../../{hostile}"))
    assert main(["describe", str(photos.parent)]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
    assert main(["caption", f"{tmp_path}/{hostile}", "--model", str(model)]) == 1
    assert capsys.readouterr().err[:-1].isprintable()


@pytest.mark.parametrize("command", ["caption", "overlay", "serve", "evaluate"])
def test_commands_that_load_models_download_only_when_told(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--allow-download" in capsys.readouterr().out
