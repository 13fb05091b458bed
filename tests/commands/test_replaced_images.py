"""Images that are replaced while a run is under way: each is one failed image, named, and the rest is done."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from helpers.tar_files import write_tar
from helpers.toy_captioner import make_toy, use_toys, write_images
from helpers.toy_evaluation import make_home
from helpers.toy_judge import ToyJudge
from PIL import Image

from captioner.captioning import collection, teacher_forcing
from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.evaluation.metrics import judge
from captioner.model.encoders.encoder import Encoder

VICTIM = "photos/0001.jpg"
SMALL = ["--width", "2", "--dpi", "60"]
OTHERS = [f"photos/{number:04d}.jpg" for number in (0, 2, 3)]


def _other_picture(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "JPEG")
    return file.getvalue()


# What takes the place of a photograph of 40 x 32 pixels.
WAYS: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: None,
    "text": lambda path: path.write_bytes(b"junk"),
    "half a header": lambda path: path.write_bytes(b"\xff\xd8\xff\xe0\x00"),
    "half a PNG": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\x14iTXtXML:com.adobe.xmp\0"),
    "an empty file": lambda path: path.write_bytes(b""),
    "another size": lambda path: path.write_bytes(_other_picture((20, 50))),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
FEW = ("nothing", "another size", "a pipe", "a link to itself")


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> dict[str, Captioner]:
    return {"0": Captioner(make_toy(lite0), device="cpu")}


@pytest.fixture
def place(tmp_path: Path, models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with four photographs."""
    write_images(tmp_path / "photos", 4)
    use_toys(models, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replace_by(way: str, path: Path) -> None:
    path.unlink()
    WAYS[way](path)


@pytest.fixture
def after_captioning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do something once, when images are captioned and nothing was made of the captions yet."""

    def arrange(act: Callable[[], None]) -> None:
        caption = collection.caption_items

        def caption_and_act(*arguments: Any) -> Iterator[Any]:
            found = list(caption(*arguments))
            act()
            yield from found

        monkeypatch.setattr(collection, "caption_items", caption_and_act)

    return arrange


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(path: Path) -> list[str]:
    return [record["file_name"] for record in read(path)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [["--overlays", "--gallery"], ["--embed"]], ids=" ".join)
def test_captioning_into_a_folder(
    way: str,
    options: list[str],
    place: Path,
    after_captioning: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    after_captioning(lambda: replace_by(way, place / VICTIM))
    assert main(["caption", "photos", "--out", "out", *options, "--model", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"captioner: {VICTIM}: ")
    assert captured.err.count("\n") == 1
    assert "3 captioned" in captured.out
    assert captured.out.endswith("0 skipped, 1 failed\n")
    assert names(place / "out" / "captions.jsonl") == OTHERS
    (error,) = read(place / "out" / "errors.jsonl")
    assert captured.err == f"captioner: {error['file_name']}: {error['error']}\n"


def test_another_picture_does_not_get_the_caption(
    place: Path, after_captioning: Callable[[Callable[[], None]], None]
) -> None:
    other = _other_picture((40, 32))
    after_captioning(lambda: (place / VICTIM).write_bytes(other))
    assert main(["caption", "photos", "--out", "out", "--embed", "--model", "0"]) == 1
    assert (place / VICTIM).read_bytes() == other
    (error,) = read(place / "out" / "errors.jsonl")
    assert error == {"file_name": VICTIM, "error": "it was replaced after it had been captioned"}


def test_what_can_be_read_and_not_be_written(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copymode

    def copy_all_but_one(source: Path, target: Path) -> None:
        if source.name == Path(VICTIM).name:
            source.unlink()
        copy(source, target)

    monkeypatch.setattr(shutil, "copymode", copy_all_but_one)
    assert main(["caption", "photos", "--out", "out", "--embed", "--model", "0"]) == 1
    reason = "the caption cannot be put into it: no such file or directory"
    assert capsys.readouterr().err == f"captioner: {VICTIM}: {reason}\n"
    assert names(place / "out" / "captions.jsonl") == OTHERS
    assert sorted(each.name for each in (place / "photos").iterdir()) == [Path(name).name for name in OTHERS]


@pytest.mark.parametrize("way", FEW)
def test_a_gallery_says_what_it_cannot_show(
    way: str, place: Path, after_captioning: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    after_captioning(lambda: replace_by(way, place / VICTIM))
    into = ["--out", "out", "--gallery", "--beside", "--format", "txt,xmp", "--model", "0"]
    assert main(["caption", "photos", *into]) == 0  # its caption is of the image that was there
    page = (place / "out" / "gallery.html").read_text()
    entries = [json.loads(part.split("</script>")[0]) for part in page.split('class="entry">')[1:]]
    assert [entry["name"] for entry in entries if "problem" in entry] == [VICTIM]
    assert len(entries) == 4
    assert len(list(place.glob("photos/*.txt"))) == len(list(place.glob("photos/*.xmp"))) == 4


@pytest.mark.parametrize("taken", [False, True])
def test_a_pipe_or_a_folder_where_a_sidecar_should_be(
    taken: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, make in (("txt", os.mkfifo), ("xmp", os.mkfifo if taken else os.mkdir)):
        make(place / f"{VICTIM}.{kind}")
    assert main(["caption", "photos", "--out", "out", "--beside", "--format", "txt,xmp", "--model", "0"]) == 0
    left = f"2 files left as before, because others wrote or changed what is there: {VICTIM}.txt and 1 more\n"
    assert capsys.readouterr().err == left
    assert sum(path.is_file() for path in place.glob("photos/*.txt")) == 3


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize("page", [[], ["--html", "--kind", "words"]], ids=["grid", "page"])
def test_overlays(
    way: str,
    page: list[str],
    place: Path,
    after_captioning: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    after_captioning(lambda: replace_by(way, place / VICTIM))
    assert main(["overlay", "photos", "--out", "out", "--model", "0", "--quiet", *SMALL, *page]) == 1
    check_overlays(capsys.readouterr(), place / "out")


@pytest.mark.parametrize("way", FEW)
def test_overlays_of_a_text(
    way: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    force = teacher_forcing.force_caption
    forced: list[None] = []

    def force_and_replace(*arguments: Any, **settings: Any) -> Any:
        forced.append(None)
        if len(forced) == 2:  # one image after the other is read and forced
            replace_by(way, place / VICTIM)
        return force(*arguments, **settings)

    monkeypatch.setattr(teacher_forcing, "force_caption", force_and_replace)
    assert main(["overlay", "photos", "--out", "out", "--caption", "a dog", "--model", "0", "--quiet", *SMALL]) == 1
    check_overlays(capsys.readouterr(), place / "out")


@pytest.mark.parametrize("way", FEW)
def test_overlays_of_a_record(way: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caption", "photos", "--out", "record", "--attention", "--quiet", "--model", "0"]) == 0
    capsys.readouterr()
    replace_by(way, place / VICTIM)
    assert main(["overlay", "--from", "record/captions.jsonl", "--out", "out", "--quiet", *SMALL]) == 1
    check_overlays(capsys.readouterr(), place / "out")


def check_overlays(captured: Any, out: Path) -> None:
    assert captured.err.startswith(f"captioner: {VICTIM}: ")
    assert captured.err.count("\n") == 1
    assert "of 3 images" in captured.out
    assert captured.out.endswith("1 failed\n")
    drawn = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert all(any(name in path for path in drawn) for name in OTHERS)
    assert not any(VICTIM in path for path in drawn)


@pytest.mark.parametrize("way", ["nothing", "text", "a pipe", "a folder"])
def test_an_archive(
    way: str, place: Path, after_captioning: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_tar(place / "a.tar", {"x.jpg": (place / VICTIM).read_bytes()})
    after_captioning(lambda: replace_by(way, place / "a.tar"))
    assert main(["caption", "photos", "a.tar", "--out", "out", "--overlays", "--gallery", "--model", "0"]) == 1
    assert capsys.readouterr().err.startswith("captioner: a.tar/x.jpg: ")
    assert len(read(place / "out" / "captions.jsonl")) == 4
    (error,) = read(place / "out" / "errors.jsonl")
    assert error["file_name"] == "a.tar/x.jpg"
    assert "a.tar" not in error["error"]


def test_an_image_of_a_record_whose_name_no_file_can_have(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = ["--out", "record", "--attention", "--model", "0", "--quiet"]
    assert main(["caption", "photos", *into]) == 0
    record = place / "record" / "captions.jsonl"
    name = "x" * 300
    record.write_text(record.read_text().replace(VICTIM, name))
    assert main(["overlay", "--from", str(record), "--out", "out", "--quiet", *SMALL]) == 1
    assert capsys.readouterr().err == f"captioner: {name}: file name too long\n"
    assert main(["caption", OTHERS[0], *into, "--gallery"]) == 0


def test_what_lies_in_the_way_of_one_overlay(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlays = place / "out" / "overlays" / "photos"
    (overlays / "0001.jpg.png").mkdir(parents=True)
    (overlays / "0002.jpg.png").symlink_to(place / "elsewhere.png")
    assert main(["caption", "photos", "--out", "out", "--overlays", "--model", "0"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "captioner: photos/0001.jpg: its figure cannot be written: is a directory",
        "captioner: photos/0002.jpg: its grid is a symlink in out/overlays/photos; nothing is written through it",
    ]
    assert names(place / "out" / "captions.jsonl") == [OTHERS[0], OTHERS[2]]


def test_a_full_disk_ends_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room", "disk")

    monkeypatch.setattr("captioner.figures.overlay_files.save_figure", fill)
    assert main(["caption", "photos", "--out", "out", "--overlays", "--model", "0"]) == 1
    assert capsys.readouterr().err == "captioner: [Errno 28] no room: 'disk'\n"
    assert not (place / "out" / "errors.jsonl").exists()


def test_a_report_names_the_images_that_it_cannot_show(
    tmp_path: Path,
    lite0: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    after_captioning: Callable[[Callable[[], None]], None],
) -> None:
    monkeypatch.setattr("captioner.model.checkpoint.load_encoder", lambda config, **_: lite0)
    monkeypatch.setattr(judge, "Judge", ToyJudge)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)  # other tests run in this process too
    monkeypatch.chdir(make_home(tmp_path, lite0))

    def replace_all() -> None:
        for path, way in zip(sorted(Path("data").glob("*.jpg")), cycle(WAYS)):
            replace_by(way, path)

    after_captioning(replace_all)
    assert main(["evaluate", "one", "data", "--out", "out", "--report", "report", "--resamples", "60"]) == 0
    problems = re.findall("[0-9]{4}.jpg cannot be shown: [^<]*", (tmp_path / "report" / "report.html").read_text())
    assert len(problems) == 12  # four of the best, the median and the worst
    assert all(problem.count(".jpg") == 1 for problem in problems)
