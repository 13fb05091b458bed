"""The gallery's file: what it holds, that nothing in it can act, and that it is written whole."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_gallery import HOSTILE, picture, random_caption
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.captioning.corrections import corrected
from captioner.captioning.records import CAPTIONS, Origin, caption_record, read_lines, to_line
from captioner.images.geometry import Geometry
from captioner.web.assets import VIEWER, VIEWER_STYLE, read_asset
from captioner.web.gallery import (
    GALLERY,
    GalleryEntry,
    gallery_from_record,
    packed_caption,
    write_gallery,
)

# How a camera's picture of each EXIF orientation lies, seen from the upright one.
STORED = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_90",
    7: "TRANSVERSE",
    8: "ROTATE_270",
}


def entry_of(number: int, size: tuple[int, int] = (80, 60)) -> GalleryEntry:
    return GalleryEntry(f"photos/{number}.jpg", [random_caption(size, seed=number)], picture(size, number))


class Scripts(HTMLParser):
    """The contents of a page's scripts, by their class, and every address in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts: dict[str, list[str]] = {}
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.current: list[str] | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append(tag)
        self.addresses += [str(found[name]) for name in ("src", "href", "action", "data", "srcset") if name in found]
        assert not any(name.startswith("on") for name in found)
        if tag == "script":
            self.current = self.scripts.setdefault(found.get("class") or "", [])
            self.current.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.current = None

    def handle_data(self, data: str) -> None:
        if self.current is not None:
            self.current[-1] += data


def entries_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in Scripts(path).scripts["entry"]]


def unpack(packed: dict[str, Any]) -> np.ndarray[Any, Any]:
    cells = np.frombuffer(base64.b64decode(packed["cells"]), dtype=np.uint8)
    grids = cells.reshape(len(packed["peaks"]), packed["rows"], packed["columns"])
    return grids / 255 * np.array(packed["peaks"])[:, None, None]


def test_holds_captions_and_attention(tmp_path: Path) -> None:
    captions = [random_caption((80, 60), words, seed=words, fit="crop") for words in (4, 2)]
    entry = GalleryEntry("dog.jpg", captions, picture((80, 60)))
    assert write_gallery([entry], tmp_path / "page.html", title="Dogs", model="soft", search={"beam": 5}) == 1
    (held,) = entries_in(tmp_path / "page.html")
    assert held["name"] == "dog.jpg"
    assert held["geometry"] == {"width": 80, "height": 60, "box": [10, 0, 70, 60], "flipped": False}
    assert "problem" not in held
    for caption, packed in zip(captions, held["captions"], strict=True):
        assert (packed["text"], packed["words"]) == (caption.text, list(caption.words))
        np.testing.assert_allclose(packed["probabilities"], caption.probabilities, rtol=1e-3)
        np.testing.assert_allclose(packed["beta"], caption.beta, rtol=1e-3)
        peaks = caption.attention.max(axis=(1, 2), keepdims=True)
        assert np.all(np.abs(unpack(packed["attention"]) - caption.attention) <= peaks * (1 / 510 + 1e-4))
    about = json.loads(Scripts(tmp_path / "page.html").scripts["about"][0])
    assert about == {"title": "Dogs", "model": "soft", "search": {"beam": 5}}


def test_caption_without_words_is_packed() -> None:
    empty = np.zeros(0, dtype=np.float32)
    caption = Caption("", (), empty, -1.0, np.zeros((0, 2, 3), dtype=np.float32), empty, Geometry(4, 4, (0, 0, 4, 4)))
    assert packed_caption(caption)["attention"] == {"rows": 2, "columns": 3, "peaks": [], "cells": ""}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_thumbnail_is_upright(orientation: int, tmp_path: Path) -> None:
    upright = Image.new("RGB", (120, 60), "blue")
    upright.paste("red", (0, 0, 40, 30))  # the upper left
    stored = upright.transpose(Image.Transpose[STORED[orientation]]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.jpg", quality=95, exif=exif)
    entry = GalleryEntry("photo.jpg", [random_caption((120, 60))], tmp_path / "photo.jpg")
    write_gallery([entry], tmp_path / "page.html", side=60)
    thumbnail = Image.open(io.BytesIO(base64.b64decode(Scripts(tmp_path / "page.html").scripts["picture"][0])))
    assert (thumbnail.format, thumbnail.size) == ("JPEG", (60, 30))
    red, green, blue = thumbnail.getpixel((5, 5))
    assert red > 200
    assert max(green, blue) < 60


def test_nothing_is_asked_of_a_network(tmp_path: Path) -> None:
    write_gallery([entry_of(1)], tmp_path / "page.html")
    page = Scripts(tmp_path / "page.html")
    assert page.addresses == ["data:,"]
    text = (tmp_path / "page.html").read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|sendBeacon|WebSocket|import\(", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert all(re.fullmatch(r"'sha256-[\w+/=]+'", rules[name]) for name in ("script-src", "style-src"))


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    caption = random_caption((80, 60), len(HOSTILE))
    caption = Caption(
        " ".join(HOSTILE),
        HOSTILE,
        caption.probabilities,
        caption.log_prob,
        caption.attention,
        caption.beta,
        caption.geometry,
    )
    for number, text in enumerate(HOSTILE):
        plain = tmp_path / f"plain-{number}.html"
        hostile = tmp_path / f"hostile-{number}.html"
        write_gallery([entry_of(1)], plain)
        write_gallery([GalleryEntry(text, [caption], picture((80, 60)))], hostile, title=text, model=text)
        assert Scripts(hostile).tags == Scripts(plain).tags
        (held,) = entries_in(hostile)
        assert held["name"] == text
        assert held["captions"][0]["words"] == list(HOSTILE)
        assert json.loads(Scripts(hostile).scripts["about"][0])["title"] == text


def test_undecodable_name_is_written(tmp_path: Path) -> None:
    entry = GalleryEntry("caf\udce9.jpg", [random_caption((80, 60))], picture((80, 60)))
    write_gallery([entry], tmp_path / "page.html", title="caf\udce9")
    assert entries_in(tmp_path / "page.html")[0]["name"] == "caf\udce9.jpg"


def test_memory_does_not_grow_with_entries(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            written = write_gallery((entry_of(number) for number in range(count)), tmp_path / "page.html", workers=1)
            assert written == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(5)  # what is imported or kept once
    few, many = peak(20), peak(200)
    assert many < few + 200_000
    assert len(entries_in(tmp_path / "page.html")) == 200


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def failing() -> Iterator[GalleryEntry]:
        yield entry_of(1)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_gallery(failing(), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_image_that_cannot_be_opened_is_grey(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (30, 60)).save(tmp_path / "turned.png")
    entries = [
        GalleryEntry("gone.jpg", [random_caption((80, 60))], tmp_path / "gone.jpg"),
        GalleryEntry("broken.jpg", [random_caption((80, 60))], tmp_path / "broken.jpg"),
        GalleryEntry("turned.png", [random_caption((60, 30))], tmp_path / "turned.png"),
    ]
    write_gallery(entries, tmp_path / "page.html")
    problems = [entry["problem"] for entry in entries_in(tmp_path / "page.html")]
    assert "no such file" in problems[0]
    assert "not one of" in problems[1]
    assert problems[2] == "the image has changed since: it has 30 x 60 pixels"
    for entry, text in zip(entries, Scripts(tmp_path / "page.html").scripts["picture"], strict=True):
        thumbnail = Image.open(io.BytesIO(base64.b64decode(text)))
        geometry = entry.captions[0].geometry
        assert abs(thumbnail.width / thumbnail.height - geometry.width / geometry.height) < 0.01


def write_record(out: Path, named: dict[str, list[Caption]], *, attention: bool = True) -> None:
    out.mkdir(exist_ok=True)
    origin = Origin("0123456789abcdef", {"method": "beam", "beam": 5, "n_best": 2}, attention)
    lines = [to_line(caption_record(name, captions, origin)) for name, captions in named.items()]
    (out / CAPTIONS).write_bytes(b"".join(lines))


def test_made_from_a_record_of_files_and_archives(tmp_path: Path) -> None:
    picture((80, 60), 1).save(tmp_path / "one.png")
    picture((60, 90), 2).save(tmp_path / "two.png")
    with tarfile.open(tmp_path / "many.tar", "w") as archive:
        archive.add(tmp_path / "two.png", "inner/two.png")
    (tmp_path / "two.png").unlink()
    one = [random_caption((80, 60), seed=1), random_caption((80, 60), 2, seed=2)]
    two = [random_caption((60, 90), seed=3)]
    out = tmp_path / "out"
    write_record(
        out,
        {
            str(tmp_path / "one.png"): one,
            f"{tmp_path}/many.tar/inner/two.png": two,
            f"{tmp_path}/many.tar/inner/gone.png": two,
        },
    )
    assert gallery_from_record(out, model="soft") == 3
    held = entries_in(out / GALLERY)
    assert [entry["name"].rpartition("/")[2] for entry in held] == ["one.png", "two.png", "gone.png"]
    assert ["problem" in entry for entry in held] == [False, False, True]
    assert [len(entry["captions"]) for entry in held] == [2, 1, 1]
    kept = unpack(held[0]["captions"][1]["attention"])
    np.testing.assert_allclose(kept, one[1].attention, atol=1e-5 + float(one[1].attention.max()) / 500)
    about = json.loads(Scripts(out / GALLERY).scripts["about"][0])
    assert about["model"] == "soft"
    assert about["search"] == {"method": "beam", "beam": 5, "n_best": 2}


def test_confidence_is_taken_from_the_record(tmp_path: Path) -> None:
    picture((80, 60)).save(tmp_path / "a.png")
    captions = [random_caption((80, 60)), random_caption((80, 60), 2)]
    names = [str(tmp_path / "a.png"), *(str(tmp_path / name) for name in ("b.png", "c.png"))]
    sure = dict(zip(names, (0.8, 0.3, None), strict=True))
    write_record(
        tmp_path / "out", {name: [replace(captions[0], confidence=each), captions[1]] for name, each in sure.items()}
    )
    gallery_from_record(tmp_path / "out")
    held = entries_in(tmp_path / "out" / GALLERY)
    assert [(entry.get("confidence"), entry.get("low")) for entry in held] == [(0.8, False), (0.3, True), (None, None)]
    for text in ("mine", captions[1].text):  # what people chose is not doubted
        lines = [to_line(corrected(line.record, text)) for line in read_lines(tmp_path / "out" / CAPTIONS)]
        (tmp_path / "out" / CAPTIONS).write_bytes(b"".join(lines))
        gallery_from_record(tmp_path / "out")
        assert ["confidence" in entry for entry in entries_in(tmp_path / "out" / GALLERY)] == [False] * 3


def test_record_that_makes_no_gallery(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match="has no captions"):
        gallery_from_record(out)
    write_record(out, {"a.jpg": [random_caption((80, 60))]}, attention=False)
    with pytest.raises(ValueError, match=r"a\.jpg: the record holds no attention"):
        gallery_from_record(out)
    write_record(out, {"a.jpg": [random_caption((80, 60))]})
    record = json.loads((out / CAPTIONS).read_text())
    (out / CAPTIONS).write_bytes(to_line({**record, "beta": [2.0, 0.5, 0.5]}))
    with pytest.raises(ValueError, match=r"a\.jpg: the record is damaged"):
        gallery_from_record(out)
    (out / CAPTIONS).write_bytes(to_line(record))
    (out / GALLERY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symlink"):
        gallery_from_record(out)


def test_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="side is 3; it must be at least 16"):
        write_gallery([entry_of(1)], tmp_path / "page.html", side=3)
    with pytest.raises(ValueError, match=r"a\.jpg has no captions"):
        GalleryEntry("a.jpg", [], picture((8, 8)))
    with pytest.raises(ValueError, match=r"a\.jpg has 1 labels for 2 captions"):
        GalleryEntry("a.jpg", [random_caption((8, 8))] * 2, picture((8, 8)), ["soft"])


def test_web_files_are_read_by_name() -> None:
    assert all(read_asset(name) for name in (*VIEWER, VIEWER_STYLE, "gallery.html"))
    for name in ("../files.py", "nothing.js", ""):
        with pytest.raises(ValueError, match=r"is not a web file; there are .*viewer\.js"):
            read_asset(name)
