"""`captioner caption` on what people have: replaced and missing photographs, other formats, pipes and archives."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers.tar_files import write_tar
from helpers.toy_captioner import make_toy, use_toys, write_images
from PIL import Image

from captioner.captioning.captioner import Captioner
from captioner.captioning.output import xmp
from captioner.captioning.schema import record_schema
from captioner.cli import main
from captioner.figures import overlay_files
from captioner.images import kinds
from captioner.images.finding import find_sources
from captioner.model.encoders.encoder import Encoder


@pytest.fixture(scope="module")
def models(lite0: Encoder) -> dict[str, Captioner]:
    return {"0": Captioner(make_toy(lite0), device="cpu", name="toy")}


@pytest.fixture
def place(tmp_path: Path, models: dict[str, Captioner], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with four photographs; the model is loaded already."""
    write_images(tmp_path / "photos", 4)
    use_toys(models, monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def caption(*arguments: str) -> int:
    return main(["caption", *arguments, "--model", "0"])


def read(path: Path) -> dict[str, dict[str, Any]]:
    records = map(json.loads, path.read_text().splitlines())
    return {record["file_name"]: record for record in records}


def embedded(name: str) -> str | None:
    """Return the caption that an image file says itself."""
    with Image.open(name) as image:
        return xmp.description(image.info["xmp"])


def test_a_replaced_photograph_is_captioned_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "-o", "out", "--format", "csv", "--beside") == 0
    before = read(place / "out" / "captions.jsonl")
    assert before["photos/0000.jpg"]["model_name"] == "toy"
    os.utime(place / "photos" / "0001.jpg")  # the same contents at another time are the same photograph
    shutil.copy(place / "photos" / "0003.jpg", place / "photos" / "0002.jpg")
    capsys.readouterr()
    assert caption("photos", "-o", "out") == 0  # what is derived is brought up to date unasked
    assert "1 captioned" in capsys.readouterr().out
    after = read(place / "out" / "captions.jsonl")
    assert after["photos/0002.jpg"]["text"] == before["photos/0003.jpg"]["text"]
    assert {name: after[name] for name in after if name != "photos/0002.jpg"} == {
        name: before[name] for name in before if name != "photos/0002.jpg"
    }
    with (place / "out" / "captions.csv").open(newline="", encoding="utf-8-sig") as file:
        assert {row["file_name"]: row["text"] for row in csv.DictReader(file)} == {
            name: record["text"] for name, record in after.items()
        }
    assert (place / "photos" / "0002.jpg.txt").read_text() == after["photos/0002.jpg"]["text"] + "\n"
    (place / "photos" / "0000.jpg.txt").unlink()
    assert caption("photos", "-o", "out") == 0
    assert not (place / "photos" / "0000.jpg.txt").exists()  # nor is one made unasked


def test_pruning_forgets_what_is_gone_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(place / "others", 2)
    assert caption("photos", "others", "-o", "out", "--format", "csv,txt,xmp", "--beside") == 0
    (place / "photos" / "0001.jpg").unlink()
    (place / "others" / "0001.jpg").unlink()
    (place / "photos" / "0001.jpg.xmp").write_text("mine")
    assert caption("photos", "-o", "out") == 0
    assert len(read(place / "out" / "captions.jsonl")) == 6
    capsys.readouterr()
    assert caption("photos", "-o", "out", "--prune") == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("0 captioned, 3 skipped, 0 failed, 1 gone\n")
    assert "photos/0001.jpg.xmp" in captured.err
    assert "photos/0001.jpg" not in read(place / "out" / "captions.jsonl")
    assert "others/0001.jpg" in read(place / "out" / "captions.jsonl")
    assert "photos/0001.jpg" not in (place / "out" / "captions.csv").read_text()
    assert not (place / "photos" / "0001.jpg.txt").exists()
    assert not (place / "out" / "txt" / "photos" / "0001.jpg.txt").exists()
    assert (place / "photos" / "0001.jpg.xmp").read_text() == "mine"


def test_pruning_the_current_folder_leaves_what_lies_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(place / "elsewhere", 1)
    assert caption(str(place / "elsewhere"), "-r", "-o", "photos/out") == 0
    shutil.rmtree(place / "elsewhere")
    monkeypatch.chdir(place / "photos")
    assert caption(".", "-r", "-o", "out", "--prune") == 0
    assert f"{place}/elsewhere/0000.jpg" in read(place / "photos" / "out" / "captions.jsonl")


def test_an_empty_disk_prunes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "-o", "out") == 0
    for path in (place / "photos").iterdir():
        path.unlink()
    assert caption("photos", "-o", "out", "--prune") == 1
    assert "no images in photos" in capsys.readouterr().err
    assert len(read(place / "out" / "captions.jsonl")) == 4


def test_the_same_file_by_another_spelling(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "-o", "out") == 0
    before = (place / "out" / "captions.jsonl").read_bytes()
    (place / "link").symlink_to("photos")
    capsys.readouterr()
    for spelling in ("./photos", str(place / "photos"), "photos/../photos/", "link", "photos/0000.jpg"):
        assert caption(spelling, "-o", "out") == 0
        assert capsys.readouterr().out.startswith("out/captions.jsonl: 0 captioned")
    assert (place / "out" / "captions.jsonl").read_bytes() == before


def test_what_is_left_out_is_named_by_kind(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.images.finding.EXTENSIONS", frozenset({".jpg"}))
    monkeypatch.setattr(kinds, "EXTENSIONS", frozenset({".jpg"}))
    for name in ("a.heic", "b.HEIC", "c.nef", "d.psd", "notes.txt", "e.mp4", "f.tar.zst"):
        (place / "photos" / name).touch()
    assert caption("photos", "-o", "out") == 0
    assert capsys.readouterr().err == (
        "left out: 2 HEIC (pip install 'captioner[heif]' to read them); "
        "1 NEF, 1 PSD (not read; export as JPEG); 1 compressed archive (unpack it first); 1 film (not a photograph)\n"
    )


def test_what_is_left_out_of_archives_and_subfolders_is_named_too(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(place / "a.zip", "w") as archive:
        archive.write(place / "photos" / "0000.jpg", "one.jpg")
        for name in ("layers.psd", "holiday.mp4", "more.mp4", ".hidden.psd"):
            archive.writestr(name, b"")
    for folder in ("b", "c"):
        write_images(place / "photos" / folder, 1)
    (place / "photos" / "notes").mkdir()
    assert caption("photos", "a.zip", "-o", "out") == 0
    assert capsys.readouterr().err == (
        "left out: 1 PSD (not read; export as JPEG); 2 films (not a photograph); "
        "2 subfolders with images (--recursive searches them too)\n"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("https://example.org/a.jpg", "https://example.org/a.jpg: a URL; download it first, or pipe it: curl -sL"),
        ("missing", "missing: no such file or folder"),
        ("photos/*.heif", "photos/*.heif: nothing matches this pattern"),
        ("photos.7z", "photos.7z: an archive of a kind that is not read; unpack it first and name the folder"),
        ("empty.tar.gz", "empty.tar.gz: empty file"),
        ("empty", "no images in empty\n"),
        ("nested", "no images in nested; --recursive searches subfolders too\n"),
        ("drawing.psd", "drawing.psd: PSD: not read; export as JPEG\n"),
    ],
)
def test_what_cannot_be_captioned_is_told_before_a_model_loads(
    path: str, message: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("photos.7z", "empty.tar.gz", "drawing.psd"):
        (place / name).touch()
    (place / "empty").mkdir()
    write_images(place / "nested" / "deep", 1)
    monkeypatch.setattr("captioner.captioning.captioner.load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert caption(path) == 1
    assert capsys.readouterr().err.startswith(f"captioner: {message}")


def test_an_image_from_a_pipe(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert caption("photos/0001.jpg", "--quiet") == 0
    text = capsys.readouterr().out.split("\t")[1]
    data = (place / "photos" / "0001.jpg").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert caption("-", "--quiet") == 0
    name, found = capsys.readouterr().out.split("\t")
    assert name.startswith("stdin-")
    assert found == text


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "standard input is empty; pipe an image into it, or a list of paths"),
        (b"8BPS\0\1", "standard input is no image that is read, and no list of paths (-0 reads one with NULs)"),
        (b"PK\x03\x04\x14\0", "standard input is an archive; save it, and name the file: captioner caption FILE"),
        (b"\x1f\x8b\x08", "standard input is an archive; save it, and name the file: captioner caption FILE"),
        (
            b"a.jpg".ljust(257, b"\0") + b"ustar",
            "standard input is an archive; save it, and name the file: captioner caption FILE",
        ),
        (b"\n<!DOCTYPE html>", "standard input is a web page, not an image; check the address it came from"),
    ],
)
def test_a_pipe_without_an_image(
    contents: bytes, message: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(contents)))
    assert caption("-") == 1
    assert capsys.readouterr().err == f"captioner: {message}\n"


def test_a_name_does_not_tell_what_a_named_file_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos" / "0000.jpg").rename(place / "photo.psd")
    assert caption("photo.psd") == 0
    assert capsys.readouterr().out.startswith("photo.psd\t")


def test_zip_archives_are_folders_of_their_members(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = sorted((place / "photos").iterdir())
    with zipfile.ZipFile(place / "a.zip", "w") as archive:
        archive.write(photos[0], "one.jpg", zipfile.ZIP_STORED)
        archive.write(photos[1], "sub/zwei é.jpg", zipfile.ZIP_DEFLATED)
        archive.write(photos[2], "three.jpg", zipfile.ZIP_LZMA)
        archive.writestr("notes.txt", "no image")
        archive.writestr("__MACOSX/._one.jpg", "no image")
    assert caption("a.zip", "photos/0001.jpg", "--quiet") == 1
    captured = capsys.readouterr()
    lines = dict(line.split("\t") for line in captured.out.splitlines())
    assert list(lines) == ["a.zip/one.jpg", "a.zip/sub/zwei é.jpg", "photos/0001.jpg"]
    assert lines["a.zip/sub/zwei é.jpg"] == lines["photos/0001.jpg"]
    assert "a.zip/three.jpg: packed by method 14, which is not read" in captured.err
    whole = (place / "a.zip").read_bytes()
    for length in range(0, len(whole), 97):
        (place / "a.zip").write_bytes(whole[:length])
        (source,) = find_sources(["a.zip"])
        assert source.problem is not None


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"])
def test_compressed_archives_are_captioned_as_plain_ones(
    ending: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = {f"sub/{path.name}": path.read_bytes() for path in sorted((place / "photos").iterdir())}
    write_tar(place / "plain.tar", photos | {"sub/notes.txt": b"no image"})
    archive = place / f"packed{ending}"

    def pack(members: dict[str, bytes]) -> None:
        with tarfile.open(archive, f"w:{ending.removeprefix('.tar').lstrip('.t')}") as opened:
            for name, contents in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(contents)
                opened.addfile(member, io.BytesIO(contents))

    pack(photos | {"sub/notes.txt": b"no image"})
    assert caption("plain.tar", "-o", "plain") == 0
    assert caption(archive.name, "-o", "out", "--overlays", "--format", "txt", "--attention") == 0
    plain, packed = (read(place / folder / "captions.jsonl") for folder in ("plain", "out"))
    assert {name.replace("plain.tar", archive.name): plain[name]["text"] for name in plain} == {
        name: packed[name]["text"] for name in packed
    }
    assert (place / "out" / "overlays" / archive.name / "sub" / "0003.jpg.png").exists()
    assert (place / "out" / "txt" / archive.name / "sub" / "0003.jpg.txt").exists()
    capsys.readouterr()
    os.utime(archive, (1, 1))  # the same contents at another time
    assert caption(archive.name, "-o", "out", "--overlays", "--attention") == 0
    assert "0 captioned, 4 skipped" in capsys.readouterr().out
    names = list(photos)
    pack({name: photos[name] for name in names[:2]} | {names[2]: photos[names[3]]})
    assert caption(archive.name, "-o", "out", "--attention", "--prune") == 0
    out = capsys.readouterr().out
    assert ": 1 captioned" in out
    assert "2 skipped, 0 failed, 1 gone" in out
    after = read(place / "out" / "captions.jsonl")
    assert list(after) == [f"{archive.name}/{name}" for name in names[:3]]
    assert after[f"{archive.name}/{names[2]}"]["text"] == packed[f"{archive.name}/{names[3]}"]["text"]
    assert main(["overlay", "--from", "out/captions.jsonl", "--out", "drawn"]) == 0
    assert len(list((place / "drawn").rglob("*.png"))) == 3


def test_sidecars_without_a_folder_resume(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos" / "0001.txt").write_text("by hand\n")
    assert caption("photos", "--beside", "--txt-name", "stem", "--sentence", "--prefix", "photo: ") == 0
    captured = capsys.readouterr()
    assert "3 captioned" in captured.err
    assert "1 skipped" in captured.err
    for line in captured.out.splitlines():
        name, text = line.split("\t")
        assert text.startswith("photo: ")
        assert text.endswith(".")
        assert Path(name).with_suffix(".txt").read_text() == f"{text}\n"
    assert (place / "photos" / "0001.txt").read_text() == "by hand\n"
    assert caption("photos", "--beside", "--txt-name", "stem") == 0
    assert "0 captioned, 4 skipped" in capsys.readouterr().err


def test_json_lines_follow_the_schema(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    assert caption("photos", "--json", "--n-best", "2", "--attention", "--sentence") == 1
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == 5
    good, bad = record_schema()["oneOf"]
    for record in records:
        schema = bad if "error" in record else good
        assert set(schema["required"]) <= set(record) <= set(schema["properties"])
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == record_schema()


def test_captions_in_the_images_themselves(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Image.open(place / "photos" / "0003.jpg") as image:
        image.save(place / "photos" / "0003.gif")
    (place / "photos" / "0003.jpg").unlink()
    assert caption("photos", "-o", "out", "--embed") == 0
    reason = "captions cannot be put into GIF; use --format xmp"
    assert capsys.readouterr().err == f"no caption put into photos/0003.gif: {reason}\n"
    records = read(place / "out" / "captions.jsonl")
    for number in range(3):
        name = f"photos/{number:04d}.jpg"
        assert embedded(name) == records[name]["text"]
    assert caption("photos", "-o", "out", "--embed") == 0
    assert "0 captioned, 4 skipped" in capsys.readouterr().out  # a caption put in makes no other photograph of it
    shutil.copy(place / "photos" / "0001.jpg", place / "photos" / "0000.jpg")
    write_images(place / "new", 3)
    shutil.copy(place / "new" / "0002.jpg", place / "photos" / "0001.jpg")
    assert caption("photos", "-o", "out") == 0  # which changes no image
    assert (place / "photos" / "0001.jpg").read_bytes() == (place / "new" / "0002.jpg").read_bytes()
    assert caption("photos", "-o", "out", "--embed") == 0
    assert embedded("photos/0001.jpg") == read(place / "out" / "captions.jsonl")["photos/0001.jpg"]["text"]


def test_corrections_reach_images_and_what_lies_beside_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert caption("photos", "-o", "out", "--embed", "--beside", "--format", "txt,xmp") == 0
    before = (place / "photos" / "0000.jpg").read_bytes()
    model_text = read(place / "out" / "captions.jsonl")["photos/0000.jpg"]["text"]
    (place / "photos" / "0001.jpg.txt").write_text("by hand\n")
    lines = [{"image": f"000{number}.jpg", "caption": "Our dog."} for number in range(2)]
    Path("mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    assert main(["caption", "-o", "out", "--corrections", "mine.jsonl"]) == 0
    said = capsys.readouterr().err
    assert said.endswith("1 file left as before, because others wrote or changed what is there: photos/0001.jpg.txt\n")
    assert (place / "photos" / "0000.jpg.txt").read_text() == "Our dog.\n"
    assert xmp.description((place / "photos" / "0000.jpg.xmp").read_bytes()) == "Our dog."
    assert (place / "photos" / "0000.jpg").read_bytes() == before  # it takes --embed to change an image
    assert caption("photos", "-o", "out", "--embed") == 0
    assert embedded("photos/0000.jpg") == "Our dog."
    pixels = before.replace(model_text.encode(), b"Our dog.")
    assert (place / "photos" / "0000.jpg").read_bytes()[-len(pixels) + 100 :] == pixels[100:]
    capsys.readouterr()
    assert caption("photos", "-o", "out", "--embed") == 0
    assert "0 captioned, 4 skipped" in capsys.readouterr().out


def test_an_image_replaced_while_overlays_are_drawn_is_one_failed_image(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = overlay_files.write_overlays

    def replaced(out: Path, name: str, *rest: Any) -> list[Path]:
        if name == "photos/0001.jpg":
            raise ZeroDivisionError("division by zero")  # as a picture of one pixel would have it
        return draw(out, name, *rest)

    monkeypatch.setattr(overlay_files, "write_overlays", replaced)
    assert caption("photos", "-o", "out", "--overlays") == 1
    captured = capsys.readouterr()
    assert captured.err == "captioner: photos/0001.jpg: division by zero\n"
    assert "3 captioned" in captured.out
