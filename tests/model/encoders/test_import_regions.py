"""Regions that a detector made: read from its files into a cache, a different number for each image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.detections import Found, detect, write_jsonl, write_tsv
from helpers.toy_captioner import write_images

from captioner.datasets.dataset import CaptionedImage
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError
from captioner.images.preprocessing import BOXES, Preprocessing
from captioner.model.config import EncoderConfig
from captioner.model.encoders.import_regions import import_regions
from captioner.model.encoders.imported import find_imported
from captioner.model.encoders.region_cache import RegionCache

SIZE, COUNTS = (40, 32), (3, 1, 5, 2)


@pytest.fixture
def images(tmp_path: Path) -> list[CaptionedImage]:
    paths = write_images(tmp_path / "photos", len(COUNTS), SIZE)
    return [
        CaptionedImage(f"photos/{path.name}", path, 100 + place, "train", ("a",), None)
        for place, path in enumerate(paths)
    ]


@pytest.fixture
def found(images: list[CaptionedImage]) -> dict[str, Found]:
    return {image.file_name: detect(place, COUNTS[place], SIZE) for place, image in enumerate(images)}


def check(folder: Path, images: list[CaptionedImage], found: list[Found], regions: int = 5) -> None:
    with RegionCache(folder) as cache:
        names = [image.file_name for image in images]
        rows, mask = cache.regions(names), cache.mask(names)
        assert mask is not None
        assert rows.shape == (len(names), regions, 6)
        for row, there, name, (boxes, vectors) in zip(rows, mask, names, found, strict=True):
            count = min(len(boxes), regions)
            assert there.tolist() == [True] * count + [False] * (regions - count)
            np.testing.assert_array_equal(row[:count], vectors[:count].astype(np.float16))
            assert not row[count:].any()
            geometry = cache.geometry(name, Geometry(*SIZE, (0.0, 0.0, 40.0, 32.0)))
            np.testing.assert_allclose(geometry.boxes, boxes[:count], atol=1e-4)


@pytest.mark.parametrize("kind", ["full names", "bare names", "stems", "numbers"])
def test_both_formats_give_what_is_in_them(
    kind: str, tmp_path: Path, images: list[CaptionedImage], found: dict[str, Found]
) -> None:
    names = {
        "full names": [image.file_name for image in images],
        "bare names": [image.path.name for image in images],
        "stems": [image.path.stem for image in images],
        "numbers": [str(image.image_id) for image in images],
    }[kind]
    renamed = dict(zip(names, found.values(), strict=True))
    files = [write_jsonl(tmp_path / "a.jsonl", renamed), write_tsv(tmp_path / "b.tsv", renamed, SIZE)]
    for file in files:
        folder, report = import_regions(images, tmp_path / file.stem, [file], "frcnn")
        assert folder.name.startswith("imported_frcnn-5boxes-")
        assert (report.encoded, report.skipped, report.refused, report.absent, report.unknown) == (4, 0, (), 0, 0)
        check(folder, images, list(found.values()))
        encoder = find_imported(tmp_path / file.stem, "imported/frcnn")
        assert (encoder.grid, encoder.dimensions) == ((1, 5), 6)


def test_files_add_up_and_a_second_import_adds_nothing(
    tmp_path: Path, images: list[CaptionedImage], found: dict[str, Found]
) -> None:
    parts = [dict(list(found.items())[:2]), dict(list(found.items())[2:])]
    files = [write_jsonl(tmp_path / "one.jsonl", parts[0]), write_tsv(tmp_path / "two.tsv", parts[1], SIZE)]
    once, _ = import_regions(images, tmp_path / "at once", files, "frcnn", most=4)
    folder, first = import_regions(images, tmp_path / "one by one", files[:1], "frcnn", most=4)
    _, second = import_regions(images, tmp_path / "one by one", files, "frcnn", most=4)
    assert (first.encoded, first.absent, first.cut) == (2, 2, 0)
    assert (second.encoded, second.skipped, second.absent, second.cut) == (2, 2, 0, 1)
    check(folder, images, list(found.values()), regions=4)
    for name in ("regions.f16", "boxes.f32", "index.jsonl", "cache.json"):
        assert (folder / name).read_bytes() == (once / name).read_bytes()


def test_a_torn_end_is_cut_off(tmp_path: Path, images: list[CaptionedImage], found: dict[str, Found]) -> None:
    part = dict(list(found.items())[:2])
    whole, _ = import_regions(images, tmp_path / "whole", [write_jsonl(tmp_path / "b.jsonl", found)], "x", most=5)
    folder, _ = import_regions(images, tmp_path / "torn", [write_jsonl(tmp_path / "a.jsonl", part)], "x", most=5)
    for name, torn in (("regions.f16", b"12345"), ("boxes.f32", b"123"), ("index.jsonl", b'{"file_name": "pho')):
        with (folder / name).open("ab") as file:
            file.write(torn)
    import_regions(images, tmp_path / "torn", [tmp_path / "b.jsonl"], "x", most=5)
    for name in ("regions.f16", "boxes.f32", "index.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_boxes_of_a_copy_of_another_size_are_scaled_and_kept_inside(
    tmp_path: Path, images: list[CaptionedImage], found: dict[str, Found]
) -> None:
    name = images[0].file_name
    boxes = np.array([[-4, 0, 40, 80], [79, 63, 90, 64]], np.float32)  # on 80 x 64 pixels
    file = write_jsonl(tmp_path / "a.jsonl", {name: (boxes, found[name][1][:2])}, width=80, height=64)
    folder, _ = import_regions(images, tmp_path / "out", [file], "x")
    with RegionCache(folder) as cache:
        geometry = cache.geometry(name, Geometry(*SIZE, (0.0, 0.0, 40.0, 32.0)))
    assert geometry.boxes == ((0, 0, 20, 32), (39, 31, 40, 32))


@pytest.mark.parametrize(
    ("boxes", "changes", "reason"),
    [
        ([], {}, "no boxes"),
        ([[5, 5, 4, 9]], {}, "left, top, right, bottom"),
        ([[0, 0, float("nan"), 9]], {}, "left, top, right, bottom"),
        ([[0, 0, 4, 9]], {"width": 40, "height": 40}, "of an image of 40 x 40 pixels; it has 40 x 32"),
    ],
)
def test_images_that_cannot_be_are_refused_and_the_others_kept(
    boxes: Any, changes: dict[str, int], reason: str, tmp_path: Path, images: list[CaptionedImage]
) -> None:
    bad = np.array(boxes, np.float32).reshape(-1, 4)
    good = detect(1, 2, SIZE)
    chance = np.zeros((len(bad), 6), np.float32)
    file = write_jsonl(tmp_path / "a.jsonl", {images[1].file_name: (bad, chance)}, **changes)
    other = write_jsonl(tmp_path / "b.jsonl", {images[0].file_name: good})
    folder, report = import_regions(images, tmp_path / "out", [file, other], "x")
    assert report.encoded == 1
    assert reason in report.refused[0]
    assert images[1].file_name in report.refused[0]
    with RegionCache(folder) as cache:
        assert list(cache.records) == [images[0].file_name]


def test_files_that_cannot_be_read_are_named(tmp_path: Path, images: list[CaptionedImage]) -> None:
    def refuse(path: Path, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            import_regions(images, tmp_path / "out", [path], "x")

    refuse(tmp_path / "none.tsv", "none.tsv is not a file")
    (tmp_path / "a.csv").write_text("")
    refuse(tmp_path / "a.csv", "suffix '.csv'; detected regions are .jsonl or .tsv")
    (tmp_path / "a.jsonl").write_text('{"file_name": "x"}\n')
    refuse(tmp_path / "a.jsonl", "a.jsonl:1 is damaged: expected")
    (tmp_path / "a.jsonl").write_text('{"file_name": "x", "boxes": [[0, 0, 1, 1]]}\n')
    refuse(tmp_path / "a.jsonl", "a.safetensors is missing")
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    refuse(tmp_path / "a.jsonl", "a.safetensors cannot be read")
    write_jsonl(tmp_path / "a.jsonl", {"x": detect(0, 2, SIZE)})
    (tmp_path / "a.jsonl").write_text('{"file_name": "x", "boxes": [[0, 0, 1, 1]]}\n')
    refuse(tmp_path / "a.jsonl", "has 2 vectors for 1 boxes")
    (tmp_path / "a.tsv").write_text("1\t2\n")
    refuse(tmp_path / "a.tsv", "a.tsv:1 is damaged: it has 2 fields")
    (tmp_path / "a.tsv").write_text("1\t40\t32\t2\tAAAA\tAAAA\n")
    refuse(tmp_path / "a.tsv", "a.tsv:1 is damaged: its base64")
    with pytest.raises(ValueError, match="name is 'a/b'"):
        import_regions(images, tmp_path / "out", [tmp_path / "a.tsv"], "a/b")


def test_no_pixels_are_read_for_imported_regions(tmp_path: Path, images: list[CaptionedImage]) -> None:
    with pytest.raises(ImageError, match="its regions were not imported"):
        Preprocessing(1, BOXES).read(images[0].path)
    with pytest.raises(ValueError, match="imported regions have no size"):
        EncoderConfig("imported/x", size=224)
    with pytest.raises(ValueError, match="has no regions called imported/x; `captioner features"):
        find_imported(tmp_path, "imported/x")
