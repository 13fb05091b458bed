"""Finding images, fitting them, and reading them ahead."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.awkward_images import encode, exif, record_reductions, stored
from helpers.holding import PATIENCE
from PIL import Image

from captioner.images.finding import find_images
from captioner.images.opening import ImageError, open_image
from captioner.images.preprocessing import Preprocessing, read_ahead

# Finding


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.JPG", "a.png", "C.Tiff", "notes.txt", "jpg", ".hidden.png", "d/e.webp", "d/f/g.gif", ".git/h.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(folder: Path, **options: bool) -> list[str]:
    return [str(path.relative_to(folder)) for path in find_images([folder], **options)]


def test_finds_images_sorted_in_any_case(folder: Path) -> None:
    assert names(folder) == ["C.Tiff", "a.png", "b.JPG"]
    assert names(folder, recursive=True) == ["C.Tiff", "a.png", "b.JPG", "d/e.webp", "d/f/g.gif"]


def test_named_files_come_as_they_are_and_in_order(folder: Path) -> None:
    paths = [folder / "notes.txt", folder / ".hidden.png", folder / "missing.jpg", "null\0", folder / "a.png"]
    assert list(find_images(paths)) == [Path(path) for path in paths]


def test_symlinks_are_followed_once(folder: Path) -> None:
    (folder / "d" / "up").symlink_to("..")
    (folder / "again").symlink_to("d")
    (folder / "self.png").symlink_to("self.png")
    (folder / "dangling.png").symlink_to("nowhere")
    (folder / "link.png").symlink_to("a.png")
    found = names(folder, recursive=True)
    assert found == ["C.Tiff", "a.png", "again/e.webp", "again/f/g.gif", "b.JPG", "dangling.png", "link.png"]


def test_folder_that_cannot_be_listed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = os.scandir

    def refuse(path: Path) -> Iterator[os.DirEntry[str]]:
        if path == folder / "d":
            raise PermissionError
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert names(folder, recursive=True) == ["C.Tiff", "a.png", "b.JPG", "d"]


def test_finds_images_however_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    depth = 1100  # more than Python's stack holds
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    Path("deep.png").touch()
    found = list(find_images([tmp_path], recursive=True))
    os.remove("deep.png")
    for _ in range(depth):  # nor can pytest remove folders that deep
        os.chdir("..")
        os.rmdir("d")
    assert [path.name for path in found] == ["deep.png"]


# Fitting


def photo(width: int, height: int) -> Image.Image:
    """Return noise with as much of each scale as photographs have."""
    noise = np.random.default_rng(0)
    picture = np.zeros((height, width, 3))
    for octave in range(1, 9):
        coarse = noise.uniform(-0.9, 0.9, (2**octave, 2**octave, 3)) / 1.8**octave
        for channel in range(3):
            layer = Image.fromarray(coarse[:, :, channel].astype(np.float32))
            picture[:, :, channel] += np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(np.clip(picture * 127 + 127, 0, 255).astype(np.uint8))


def differences(left: np.ndarray, right: np.ndarray) -> tuple[float, int]:
    """Return the mean and the largest difference, in levels."""
    difference = np.abs(left.astype(int) - right)
    return difference.mean(), difference.max()


@pytest.mark.parametrize(("interpolation", "method"), [("bilinear", 2), ("bicubic", 3), ("lanczos", 1)])
@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_fits_as_plain_resizing_and_cropping(interpolation: str, method: int, shrink: int) -> None:
    image = photo(200 * shrink, 160 * shrink)
    whole = np.asarray(image.resize((200, 160), Image.Resampling(method)))
    crop = Preprocessing(140, "crop", resize=160, interpolation=interpolation).apply(image)
    assert differences(crop.pixels, whole[10:150, 30:170])[1] <= 1
    assert crop.geometry.box == (30 * shrink, 10 * shrink, 170 * shrink, 150 * shrink)
    squash = Preprocessing(100, interpolation=interpolation).apply(image)
    assert differences(squash.pixels, np.asarray(image.resize((100, 100), Image.Resampling(method))))[1] <= 1
    assert squash.geometry.box == (0, 0, 200 * shrink, 160 * shrink)


def test_input_is_of_its_own_and_can_be_written(tmp_path: Path) -> None:
    image = photo(60, 50)
    for preprocessing in (Preprocessing(20), Preprocessing(20, flip=True)):
        pixels = preprocessing.apply(image).pixels
        assert pixels.shape == (20, 20, 3)
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable
        assert pixels.flags.c_contiguous


def test_flip_mirrors_the_input_and_its_geometry() -> None:
    image = photo(90, 60)
    plain, flipped = Preprocessing(32, "crop").apply(image), Preprocessing(32, "crop", flip=True).apply(image)
    assert np.array_equal(flipped.pixels, plain.pixels[:, ::-1])
    assert flipped.geometry.cell_box(1, 0, (4, 4)) == plain.geometry.cell_box(1, 3, (4, 4))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("size", "factor"), [((1350, 1001), 8), ((891, 667), 4), ((600, 301), 2), ((400, 200), 1)])
def test_decoding_at_a_fraction_looks_the_same(
    size: tuple[int, int], factor: int, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reductions = record_reductions(monkeypatch)
    data = encode(stored(np.asarray(photo(*size)), orientation), "JPEG", quality=90, exif=exif(orientation))
    for preprocessing in (Preprocessing(56), Preprocessing(48, "crop", resize=56)):
        reduced, whole = preprocessing.read(data), preprocessing.apply(open_image(data))
        assert reductions[-2:] == [factor, 1]
        assert reduced.geometry == whole.geometry
        mean, largest = differences(reduced.pixels, whole.pixels)
        assert mean < 0.5  # measured: at most 0.34, and 2 for the largest
        assert largest <= 3


def test_settings_survive_json() -> None:
    for preprocessing in (Preprocessing(7), Preprocessing(9, "crop", 12, "lanczos", (0.5,) * 3, (0.1, 0.2, 0.3), True)):
        assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing
        assert Preprocessing.from_dict(preprocessing.to_dict()) == preprocessing


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size is 0; it must be at least 1 pixel"),
        ({"fit": "stretch"}, "fit is 'stretch'; choose from crop, squash"),
        ({"interpolation": "nearest"}, "interpolation is 'nearest'; choose from bilinear, bicubic, lanczos"),
        ({"resize": 256}, "resize is 256; it goes with fit 'crop'"),
        ({"fit": "crop", "resize": 223}, "must be at least size 224"),
        ({"mean": [0.5, 0.5]}, r"mean is \(0.5, 0.5\); it must be three numbers"),
        ({"mean": [0.5, 0.5, math.nan]}, "mean is .* it must be three numbers"),
        ({"std": [0.5, 0.5, 0]}, r"std is \(0.5, 0.5, 0\); it must be above 0"),
        ({"sizes": 3, "crop": 1}, "unknown preprocessing setting crop, sizes; choose from size, fit, resize"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocessing.from_dict({"size": 224, **settings})


# Reading ahead


class Reader:
    """Stands for a preprocessing: gives back the names of files, all but the first once it may."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_go_on = threading.Event()

    def read(self, path: str) -> str:
        self.begun.append(path)
        if "broken" in path:
            raise RuntimeError(path)
        assert path == "0" or self.may_go_on.wait(PATIENCE)
        return path


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_reads_ahead_in_order_with_errors_in_place(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(20)]
    for number, path in enumerate(paths):
        # The first ones are the largest, so that later ones are ready before them.
        Image.new("RGB", (1000 // (number + 1), 1000), (number * 10, 0, 0)).save(path)
    paths[3].write_bytes(b"nothing")
    paths[11].unlink()
    results = list(read_ahead(paths, Preprocessing(4), workers=4))
    assert len(results) == len(paths)
    for number, result in enumerate(results):
        if number in (3, 11):
            assert isinstance(result, ImageError)
            assert str(paths[number]) in str(result)
            assert result.__traceback__ is result.__context__ is None  # they would hold the file's bytes
        else:
            assert result.pixels[0, 0].tolist() == [number * 10, 0, 0]


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_reads_no_further_ahead_than_asked(ahead: int) -> None:
    reader, total, taken = Reader(), 20, 0
    reader.may_go_on.set()

    def paths() -> Iterator[str]:
        nonlocal taken
        for taken in range(1, total + 1):
            yield str(taken)

    # What is taken is read at once, and nothing is taken but when a result is asked for.
    for consumed, _ in enumerate(read_ahead(paths(), reader, workers=3, ahead=ahead), start=1):
        assert taken == min(consumed + ahead, total)
    assert sorted(reader.begun, key=int) == [str(number) for number in range(1, total + 1)]


def test_stops_when_the_consumer_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *arguments: Any, **options: Any) -> None:
            reader.may_go_on.set()  # what was waiting has been let go by then
            super().shutdown(*arguments, **options)

    monkeypatch.setattr("captioner.threads.ThreadPoolExecutor", Pool)
    results = read_ahead(map(str, itertools.count()), reader, workers=2, ahead=200)
    assert next(results) == "0"
    assert decoding_threads()
    results.close()
    assert decoding_threads() == []
    assert len(reader.begun) <= 3  # the first, and what two threads were at


def test_other_errors_reach_the_consumer() -> None:
    reader = Reader()
    reader.may_go_on.set()
    results = read_ahead(["0", "broken", "2"], reader)
    assert next(results) == "0"
    with pytest.raises(RuntimeError, match="broken"):
        next(results)
    assert decoding_threads() == []


def test_reads_nothing_of_nothing() -> None:
    assert list(read_ahead([], Preprocessing(4))) == []
