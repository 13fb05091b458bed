"""`captioner caption` from end to end, but for what happens to it when it is killed."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.holding import PATIENCE
from helpers.tar_files import write_tar
from helpers.terminals import at_terminal
from helpers.toy_captioner import TRANSFORMER, make_toy, save_toy, use_toys, write_images
from PIL import Image

from captioner.captioning.captioner import Captioner
from captioner.captioning.output.folder import OutputFolder
from captioner.cli import main
from captioner.figures import overlay_files
from captioner.images.opening import ImageError
from captioner.model.bundled import DEFAULT
from captioner.model.encoders.encoder import Encoder

NOT_SEARCHED = "left out: 1 subfolder with images (--recursive searches them too)\n"


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> dict[str, Captioner]:
    models = {str(seed): Captioner(make_toy(lite0, seed), device="cpu") for seed in range(2)}
    return {**models, "transformer": Captioner(make_toy(lite0, 2, TRANSFORMER), device="cpu")}


@pytest.fixture
def place(tmp_path: Path, models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with eight photographs in two folders; models are named 0 and 1, and loaded already."""
    write_images(tmp_path / "photos", 5)
    write_images(tmp_path / "photos" / "more", 3)
    use_toys(models, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caption(*arguments: str, model: str = "0") -> int:
    return main(["caption", *arguments, "--model", model])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_table_on_standard_output(
    place: Path, models: dict[str, Captioner], capsys: pytest.CaptureFixture[str]
) -> None:
    assert caption("photos", "--recursive") == 0
    captured = capsys.readouterr()
    rows = [line.split("\t") for line in captured.out.splitlines()]
    assert [name for name, _ in rows] == [
        *(f"photos/000{number}.jpg" for number in range(5)),
        *(f"photos/more/000{number}.jpg" for number in range(3)),
    ]
    assert rows[1][1] == models["0"].caption("photos/0001.jpg").text
    assert captured.err.startswith("8 captioned (")
    assert captured.err.endswith(" per second), 0 skipped, 0 failed\n")
    assert caption("photos/0001.jpg", "--quiet", "--n-best", "2") == 0
    captured = capsys.readouterr()
    assert [line.split("\t")[0] for line in captured.out.splitlines()] == ["photos/0001.jpg"] * 2
    assert captured.err == ""


def test_a_folder_with_every_format(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(place / "photos")
    assert (
        caption("photos", "--recursive", "--out", "out", "--format", "txt,csv,coco", "--attention", "--overlays") == 0
    )
    captured = capsys.readouterr()
    assert captured.out.startswith("out/captions.jsonl: 8 captioned (")
    assert captured.err == ""
    records = read(place / "out" / "captions.jsonl")
    names = [record["file_name"] for record in records]
    assert len(set(names)) == 8
    assert np.array(records[0]["attention"]).shape == (len(records[0]["words"]), 2, 2)
    for record in records:
        assert (place / "out" / "txt" / f"{record['file_name']}.txt").read_text() == record["text"] + "\n"
        with Image.open(place / "out" / "overlays" / f"{record['file_name']}.png") as figure:
            assert figure.format == "PNG"
    with (place / "out" / "captions.csv").open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == [record["text"] for record in records]
    results = json.loads((place / "out" / "captions-coco.json").read_text())
    assert [(result["image_id"], result["caption"]) for result in results] == [
        (number, record["text"])
        for number, record in enumerate(records, start=1)  # 0000.jpg is there twice
    ]
    assert tree(place / "photos") == before
    assert sorted(path.name for path in place.iterdir()) == ["out", "photos"]
    written = tree(place / "out")
    assert (
        caption("photos", "--recursive", "--out", "out", "--format", "txt,csv,coco", "--attention", "--overlays") == 0
    )
    assert capsys.readouterr().out == "out/captions.jsonl: 0 captioned, 8 skipped, 0 failed\n"
    assert tree(place / "out") == written


def test_the_record_loads_as_others_would(place: Path) -> None:
    assert caption("photos", "--out", "out") == 0
    rows = [json.loads(line) for line in (place / "out" / "captions.jsonl").open(encoding="utf-8")]
    assert len({tuple(row) for row in rows}) == 1  # one set of columns
    for row in rows:
        assert list(row)[:2] == ["file_name", "text"]
        assert (place / row["file_name"]).is_file()
        assert len(row["words"]) == len(row["probabilities"])
        assert row["log_prob"] < 0
        assert row["search"]["beam"] == 5


def test_overlays_are_no_images_to_caption_and_are_made_up_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = ["photos", "--recursive", "--out", "photos"]
    assert caption(*into) == 0
    before = read(place / "photos" / "captions.jsonl")
    assert caption(*into, "--overlays") == 0
    assert "8 captioned" in capsys.readouterr().out.splitlines()[-1]
    assert read(place / "photos" / "captions.jsonl") == before
    (place / "photos" / "overlays" / "photos" / "0003.jpg.png").unlink()
    assert caption(*into, "--overlays") == 0
    output = capsys.readouterr().out
    assert "1 captioned" in output
    assert "7 skipped" in output
    assert caption(*into) == 0
    assert "0 captioned, 8 skipped" in capsys.readouterr().out
    assert read(place / "photos" / "captions.jsonl") == before


def test_an_overlay_is_there_before_its_record_and_one_that_fails_is_a_failed_image(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add, write = OutputFolder.add_caption, overlay_files.write_overlays

    def add_after_drawing(folder: OutputFolder, record: dict[str, Any]) -> None:
        assert (place / "out" / "overlays" / f"{record['file_name']}.png").is_file()
        add(folder, record)

    def write_all_but_one(out: Path, name: str, *more: Any) -> list[Path]:
        if name == "photos/0001.jpg":
            raise ImageError(name, "it has gone")
        return write(out, name, *more)

    monkeypatch.setattr(OutputFolder, "add_caption", add_after_drawing)
    with monkeypatch.context() as patch:
        patch.setattr(overlay_files, "write_overlays", write_all_but_one)
        assert caption("photos", "--out", "out", "--overlays") == 1
    captured = capsys.readouterr()
    assert captured.err == f"captioner: photos/0001.jpg: it has gone\n{NOT_SEARCHED}"
    assert captured.out.endswith("0 skipped, 1 failed\n")
    assert read(place / "out" / "errors.jsonl") == [{"file_name": "photos/0001.jpg", "error": "it has gone"}]
    assert len(read(place / "out" / "captions.jsonl")) == 4
    assert caption("photos", "--out", "out", "--overlays") == 0
    assert "1 captioned" in (output := capsys.readouterr().out)
    assert "4 skipped, 0 failed" in output
    assert len(list((place / "out" / "overlays" / "photos").iterdir())) == 5


def test_a_gallery_holds_all_images_of_the_record(place: Path) -> None:
    assert caption("photos", "--out", "out", "--gallery") == 0
    assert caption("photos/more", "--out", "out", "--gallery") == 0  # what was there already is in it too
    page = (place / "out" / "gallery.html").read_text()
    names = [record["file_name"] for record in read(place / "out" / "captions.jsonl")]
    assert len(names) == 8
    assert all(name in page for name in names)
    assert caption("photos/more", "--out", "out", "--existing", "overwrite") == 0
    assert (place / "out" / "gallery.html").read_text() == page  # not asked for, not touched


def test_bad_images_are_named_and_the_rest_is_done(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = place / "photos" / "0002.jpg"
    good = bad.read_bytes()
    bad.write_bytes(good[:-20])
    for _ in range(2):  # it is tried again each time, and stands there once
        assert caption("photos", "nowhere.jpg", "--out", "out") == 1
        captured = capsys.readouterr()
        assert captured.err == (
            "captioner: photos/0002.jpg: truncated: it ends before its end-of-image marker\n"
            f"captioner: nowhere.jpg: no such file or directory\n{NOT_SEARCHED}"
        )
        assert captured.out.endswith(" skipped, 2 failed\n")
        assert read(place / "out" / "errors.jsonl") == [
            {"file_name": "photos/0002.jpg", "error": "truncated: it ends before its end-of-image marker"},
            {"file_name": "nowhere.jpg", "error": "no such file or directory"},
        ]
        assert len(read(place / "out" / "captions.jsonl")) == 4
    bad.write_bytes(good)
    assert caption("photos", "--out", "out") == 0
    assert [record["file_name"] for record in read(place / "out" / "errors.jsonl")] == ["nowhere.jpg"]
    # What was captioned and has gone bad is an error, and no caption any more.
    bad.write_bytes(b"")
    assert caption("photos", "--out", "out", "--existing", "overwrite") == 1
    assert len(read(place / "out" / "captions.jsonl")) == 4
    assert [record["file_name"] for record in read(place / "out" / "errors.jsonl")] == [
        "nowhere.jpg",
        "photos/0002.jpg",
    ]
    (place / "nowhere.jpg").write_bytes(good)
    bad.write_bytes(good)
    assert caption("photos", "nowhere.jpg", "--out", "out") == 0
    assert not (place / "out" / "errors.jsonl").exists()
    capsys.readouterr()
    assert caption("photos", "lost.jpg") == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert captured.err.startswith("captioner: lost.jpg: no such file or directory\n5 captioned")


def test_captions_of_another_making_are_never_taken_for_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "--out", "out") == 0
    written = tree(place / "out")
    capsys.readouterr()
    for message, options in (
        ("has captions by another model; choose", {"model": "1"}),
        ("has captions with beam 5, not 3; choose another folder, or replace them", {"more": ["--beam", "3"]}),
        ("has captions with n_best 1, not 2", {"more": ["--n-best", "2"]}),
        ("has captions with method beam, not sample", {"more": ["--sample"]}),
        ("has captions without attention", {"more": ["--attention"]}),
        ("has captions without sentence, not with it; choose", {"more": ["--sentence"]}),
    ):
        arguments: dict[str, Any] = options
        assert caption("photos", "--out", "out", *arguments.get("more", []), model=arguments.get("model", "0")) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"captioner: out/captions.jsonl {message}")
        assert error.count("\n") == 1
        assert tree(place / "out") == written
    assert caption("photos", "--out", "out", "--existing", "error") == 1
    assert capsys.readouterr().err.startswith("captioner: out/captions.jsonl has captions already; ")
    assert caption("photos", "--out", "worded", "--sentence", "--prefix", "a photo: ") == 0
    assert caption("photos", "--out", "worded", "--prefix", "a photo: ") == 1
    assert "has captions with sentence, not without; choose another folder" in capsys.readouterr().err
    assert caption("photos", "--out", "worded", "--sentence", "--prefix", "art: ") == 1
    assert "has captions with prefix 'a photo: ', not 'art: '; choose" in capsys.readouterr().err
    assert caption("photos/more", "--out", "out", "--existing", "overwrite", model="1") == 0
    records = read(place / "out" / "captions.jsonl")
    assert len({record["model"] for record in records[:5]}) == 1
    assert records[5]["model"] != records[0]["model"]
    assert caption("photos", "photos/more", "--out", "out", "--existing", "overwrite", model="1") == 0
    records = read(place / "out" / "captions.jsonl")
    assert len({record["file_name"] for record in records}) == len(records) == 8
    assert len({record["model"] for record in records}) == 1
    assert "8 captioned" in capsys.readouterr().out.splitlines()[-1]


def test_samples_are_the_same_whatever_was_done_before(place: Path) -> None:
    sampled = ["--sample", "--seed", "3", "--temperature", "0.9", "--top-k", "9", "--top-p", "0.95"]
    assert caption("photos", "--recursive", "--out", "whole", *sampled) == 0
    assert caption("photos/0003.jpg", "--out", "parts", *sampled) == 0
    assert caption("photos", "--recursive", "--out", "parts", *sampled) == 0
    whole, parts = (
        {r["file_name"]: r["text"] for r in read(place / out / "captions.jsonl")} for out in ("whole", "parts")
    )
    assert whole == parts
    assert len(parts) == 8


def test_lists_patterns_and_archives(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(*arguments: str, given: bytes = b"") -> list[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert caption(*arguments, "--quiet") == 0
        return [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert names("photos/*3.jpg", "photos/m*") == ["photos/0003.jpg", *(f"photos/more/000{n}.jpg" for n in range(3))]
    assert names("-", given=b"photos/0004.jpg\nphotos/more\n") == ["photos/0004.jpg", *names("photos/more")]
    assert names("photos/0001.jpg", "-", given=b"photos/0000.jpg") == ["photos/0001.jpg", "photos/0000.jpg"]
    (place / "new\nline.jpg").write_bytes((place / "photos" / "0000.jpg").read_bytes())
    assert names("-", "-0", given=b"new\nline.jpg\0") == [r"'new\nline.jpg'"]
    members = {f"{n}.jpg": (place / "photos" / f"000{n}.jpg").read_bytes() for n in range(5)} | {"0.json": b"{}"}
    write_tar(place / "shards.tar", members)
    assert names("shards.tar") == [f"shards.tar/{n}.jpg" for n in range(5)]
    assert caption("shards.tar", "--out", "out", "--format", "txt", "--overlays", "--beside") == 0
    assert caption("photos", "--out", "plain") == 0
    archived, plain = (read(place / out / "captions.jsonl") for out in ("out", "plain"))
    assert [record["text"] for record in archived] == [record["text"] for record in plain]
    assert (place / "out" / "txt" / "shards.tar" / "3.jpg.txt").read_text() == plain[3]["text"] + "\n"
    assert (place / "out" / "overlays" / "shards.tar" / "3.jpg.png").exists()


def test_text_files_beside_images_on_request(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos" / "0001.jpg.txt").write_text("by hand\n")
    assert caption("photos", "--out", "out") == 0
    assert len(list(place.glob("photos/*.txt"))) == 1
    assert caption("photos", "--out", "out", "--beside") == 0  # nothing to caption
    texts = {path.name: path.read_text() for path in place.glob("photos/*.txt")}
    records = {Path(record["file_name"]).name: record["text"] for record in read(place / "out" / "captions.jsonl")}
    assert texts == {f"{name}.txt": f"{text}\n" for name, text in records.items()} | {"0001.jpg.txt": "by hand\n"}
    capsys.readouterr()
    assert caption("photos", "--out", "out", "--beside", "--existing", "overwrite") == 0
    assert (place / "photos" / "0001.jpg.txt").read_text() == "by hand\n"
    left = f"{NOT_SEARCHED}1 file left as before, because others wrote or changed what is there: photos/0001.jpg.txt\n"
    assert capsys.readouterr().err == left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty"], "no images in empty"),
        (["empty", "--recursive", "--out", "out"], "no images in empty"),
        (["photos", "--out", "photos/0000.jpg"], "photos/0000.jpg"),
    ],
)
def test_failures_are_one_line_and_exit_code_1(
    place: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "empty").mkdir()
    assert caption(*arguments) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("captioner: ")
    assert message in errors
    assert errors.count("\n") == 1


def test_help_tells_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["caption", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "None" not in text
    for default in (
        "(default: auto)",
        f"(default: {DEFAULT})",
        "(default: jsonl)",
        "(default: skip)",
        "(default: 5)",
        "(default: one per core)",
    ):
        assert default in text


def test_several_processes_need_a_folder_and_no_list(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert caption("photos") == 2
    assert "several processes need --out DIR" in capsys.readouterr().err
    assert caption("-", "--out", "out") == 2
    assert "only one process can read standard input" in capsys.readouterr().err


def test_two_runs_at_once_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "out").mkdir()
    with (place / "out" / "captions.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert caption("photos", "--out", "out") == 1
        assert capsys.readouterr().err == "captioner: out is being written by another process; wait for it to end\n"
    assert caption("photos", "--out", "out") == 0


def test_without_a_model_the_message_comes_before_torch(tmp_path: Path) -> None:
    script = """
import sys
from captioner import cli
from captioner.model import bundled
bundled.PRETRAINED = bundled.PRETRAINED / "nowhere"
code = cli.main(["caption", "photos"])
assert "torch" not in sys.modules
sys.exit(code)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("captioner: no model comes with this version; train one with")
    assert result.stderr.count("\n") == 1


def test_a_terminal_sees_a_progress_bar_and_complaints_above_it(tmp_path: Path, lite0: Encoder) -> None:
    save_toy(tmp_path / "model", lite0)
    paths = write_images(tmp_path / "photos", 40)
    paths[30].write_bytes(b"")
    process, blocks = at_terminal("caption", "photos", "--model", "model", "--out", "out", folder=tmp_path)
    shown = b"".join(blocks)
    assert process.wait(timeout=PATIENCE) == 1
    assert b"captions: 100%" in shown
    assert b"40/40" in shown
    assert b"\rcaptioner: photos/0030.jpg: empty file\r\n" in shown
    assert process.stdout is not None
    assert process.stdout.read().startswith("out/captions.jsonl: 39 captioned (")


def test_corrections_are_taken_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "--out", "out", "--format", "csv", "--gallery", "--n-best", "2") == 0
    other = read(place / "out" / "captions.jsonl")[1]["alternatives"][0]["text"]
    lines = [
        {"image": "photos/0000.jpg", "caption": "Our dog."},
        {"image": "0001.jpg", "caption": other},
        {"image": "photos/gone.jpg", "caption": "Nobody."},
    ]
    Path("mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    assert main(["caption", "--out", "out", "--corrections", "mine.jsonl"]) == 1  # one is of no image
    said = capsys.readouterr().err
    assert "out/captions.jsonl: 2 captions corrected" in said
    assert said.endswith("or of several of one name: photos/gone.jpg\n")
    records = read(place / "out" / "captions.jsonl")
    assert [record["text"] for record in records[:2]] == ["Our dog.", other]
    assert records[1]["words"] == other.split() or " ".join(records[1]["words"]) != other
    assert "Our dog." in (place / "out" / "captions.csv").read_text()
    assert '"correction":"Our dog."' in (place / "out" / "gallery.html").read_text()
    # A later run, even one that captions everything anew, keeps what people wrote.
    again = ("photos", "--out", "out", "--format", "csv", "--gallery", "--n-best", "2", "--existing", "overwrite")
    assert caption(*again) == 0
    assert read(place / "out" / "captions.jsonl") == records
    # Corrections and images in one command.
    assert caption("photos", "--recursive", "--out", "new", "--corrections", "mine.jsonl") == 1
    assert read(place / "new" / "captions.jsonl")[0]["text"] == "Our dog."
    Path("mine.jsonl").write_text(json.dumps(lines[0]) + "\n")
    capsys.readouterr()
    assert caption("photos/0000.jpg", "--out", "one", "--corrections", "mine.jsonl") == 0
    assert "one/captions.jsonl: 1 caption corrected\n" in capsys.readouterr().err
    assert main(["caption", "--corrections", "mine.jsonl"]) == 2
    assert "--corrections needs --out DIR" in capsys.readouterr().err
    assert main(["caption"]) == 2
    assert "nothing to caption" in capsys.readouterr().err


def test_attention_of_all_heads_is_recorded_on_request(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "--out", "out", "--attention", "all", "--quiet", model="transformer") == 0
    for record in read(place / "out" / "captions.jsonl"):
        assert np.array(record["heads"]).shape == (len(record["words"]), 2, 3, 2, 2)
        mean = np.array(record["heads"])[:, -1].mean(axis=1)
        assert mean == pytest.approx(np.array(record["attention"]), abs=1e-4)
    capsys.readouterr()
    assert caption("photos", "--out", "plain", "--attention", "--quiet", model="transformer") == 0
    assert all("heads" not in record for record in read(place / "plain" / "captions.jsonl"))
    assert caption("photos", "--out", "plain", "--attention", "all", "--quiet", model="transformer") == 1
    assert "has captions without heads" in capsys.readouterr().err


def test_attention_leaves_the_folder_after_it_to_be_captioned(place: Path) -> None:
    assert caption("--quiet", "--out", "out", "--attention", "photos") == 0
    assert len(read(place / "out" / "captions.jsonl")) == 5
    assert caption("photos", "--quiet", "--out", "other", "--attention", "--existing", "error") == 0
