"""Camera raw files: the largest JPEG in them is the picture, upright; what is damaged comes to a quick end."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioner.commands.collection import Collection
from captioner.images.finding import find_sources
from captioner.images.headers.raw_previews import find_preview
from captioner.images.opening import ImageError, open_image, upright_size
from captioner.images.preprocessing import Preprocessing

COMPRESSION, PHOTOMETRIC, ORIENTATION, BELOW, JPEG, JPEG_LENGTH = 259, 262, 274, 330, 513, 514
STRIPS, STRIP_LENGTHS, SUBFILE, WIDTH, HEIGHT, DNG_VERSION, PANASONIC_JPEG = 273, 279, 254, 256, 257, 50706, 0x2E
SENSOR = 32803
NO_PREVIEW = "a camera raw file without a preview that can be read; export it as JPEG"
Directory = dict[int, Any]  # a number, several, or directories below


def jpeg(width: int, height: int, colour: str = "red", **options: Any) -> bytes:
    """Return a picture whose left half has a colour, and whose right half is white."""
    image = Image.new("RGB", (width, height), "white")
    image.paste(colour, (0, 0, width // 2, height))
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


class Raw:
    """A file in the making: parts, and directories that point at them."""

    def __init__(self, order: str = "<", magic: bytes | None = None) -> None:
        self.order = order
        self.data = bytearray((magic or {"<": b"II*\0", ">": b"MM\0*"}[order]) + bytes(12))

    def add(self, part: bytes) -> int:
        """Append a part, and return where it lies."""
        offset = len(self.data)
        self.data += part + bytes(len(part) % 2)
        return offset

    def preview(self, part: bytes) -> Directory:
        """Append a JPEG, and return the fields that lead to it."""
        return {JPEG: self.add(part), JPEG_LENGTH: len(part)}

    def strip(self, part: bytes) -> Directory:
        """Append a JPEG as the one strip of a picture, and return its fields."""
        return {COMPRESSION: 7, STRIPS: self.add(part), STRIP_LENGTHS: len(part), SUBFILE: 1, PHOTOMETRIC: 6}

    def directory(self, fields: Directory, following: int = 0) -> int:
        """Append a directory, and those below it, and return where it lies."""
        entries = b""
        for tag, value in sorted(fields.items()):
            if tag == BELOW:
                value = [each if isinstance(each, int) else self.directory(each) for each in value]
            if tag == PANASONIC_JPEG:
                kind, count, stored = 7, len(value), struct.pack(f"{self.order}I", self.add(value))
            else:
                values = value if isinstance(value, list) else [value]
                is_short = tag in (COMPRESSION, PHOTOMETRIC, ORIENTATION)
                kind, count = 3 if is_short else 4, len(values)
                stored = struct.pack(f"{self.order}{count}{'H' if is_short else 'I'}", *values)
                if len(stored) > 4:
                    stored = struct.pack(f"{self.order}I", self.add(stored))
            entries += struct.pack(f"{self.order}HHI", tag, kind, count) + stored.ljust(4, b"\0")
        return self.add(struct.pack(f"{self.order}H", len(fields)) + entries + struct.pack(f"{self.order}I", following))

    def finish(self, *chain: Directory) -> bytes:
        """Return the file with a chain of directories."""
        following = 0
        for fields in reversed(chain):
            following = self.directory(fields, following)
        struct.pack_into(f"{self.order}I", self.data, 4, following)
        return bytes(self.data)


def nef(order: str = "<", orientation: int = 1) -> bytes:
    """Return a file as Nikon builds it: a small picture, and below it the preview and the sensor's pixels."""
    raw = Raw(order)
    small = {WIDTH: 16, HEIGHT: 12, COMPRESSION: 1, PHOTOMETRIC: 2, STRIPS: raw.add(bytes(576)), STRIP_LENGTHS: 576}
    sensor = {COMPRESSION: 34713, PHOTOMETRIC: SENSOR, STRIPS: raw.add(bytes(5000)), STRIP_LENGTHS: 5000, SUBFILE: 0}
    below = [raw.preview(jpeg(60, 40)), raw.preview(jpeg(300, 200)), sensor]
    return raw.finish({**small, ORIENTATION: orientation, BELOW: below})


def cr2() -> bytes:
    """Return a file as Canon builds it: four directories, of which the last leads to a lossless JPEG."""
    raw = Raw(magic=b"II*\0\0\0\0\0CR\2\0")
    lossless = jpeg(600, 400, quality=100).replace(b"\xff\xc0", b"\xff\xc3", 1)
    sensor = raw.strip(lossless)
    del sensor[SUBFILE], sensor[PHOTOMETRIC]
    return raw.finish(
        {**raw.strip(jpeg(300, 200)), COMPRESSION: 6, ORIENTATION: 1},
        raw.preview(jpeg(60, 40)),
        {COMPRESSION: 1, STRIPS: raw.add(bytes(300)), STRIP_LENGTHS: 300},
        {**sensor, COMPRESSION: 6},
    )


def dng() -> bytes:
    """Return a file as Adobe builds it: below a small picture two previews in strips, and lossless tiles."""
    raw = Raw(">")
    sensor = {COMPRESSION: 7, PHOTOMETRIC: SENSOR, STRIPS: [raw.add(bytes(99)), 9], STRIP_LENGTHS: [99, 9]}
    below = [sensor, raw.strip(jpeg(300, 200)), raw.strip(jpeg(90, 60))]
    small = {COMPRESSION: 1, PHOTOMETRIC: 2, STRIPS: raw.add(bytes(576)), STRIP_LENGTHS: 576}
    return raw.finish({**small, ORIENTATION: 1, DNG_VERSION: 0x01040000, BELOW: below})


def arw() -> bytes:
    """Return a file as Sony builds it: the preview is in the first directory."""
    raw = Raw()
    sensor = {COMPRESSION: 32767, PHOTOMETRIC: SENSOR, STRIPS: raw.add(bytes(5000)), STRIP_LENGTHS: 5000}
    return raw.finish({**raw.preview(jpeg(300, 200)), ORIENTATION: 1, BELOW: [sensor]}, raw.preview(jpeg(60, 40)))


def pef() -> bytes:
    """Return a file as Pentax builds it: the sensor's pixels first, then a small preview, then the large one."""
    raw = Raw(">")
    sensor = {COMPRESSION: 65535, PHOTOMETRIC: SENSOR, STRIPS: raw.add(bytes(5000)), STRIP_LENGTHS: 5000}
    return raw.finish(sensor, raw.preview(jpeg(60, 40)), raw.preview(jpeg(300, 200)))


def rw2() -> bytes:
    """Return a file as Panasonic builds it: the JPEG is a field of the first directory."""
    raw = Raw(magic=b"IIU\0")
    return raw.finish({PANASONIC_JPEG: jpeg(300, 200), ORIENTATION: 1})


FILES = {
    "nef": nef(),
    "nef, big-endian": nef(">"),
    "cr2": cr2(),
    "dng": dng(),
    "arw": arw(),
    "pef": pef(),
    "rw2": rw2(),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_the_largest_preview_is_the_picture(data: bytes) -> None:
    image = open_image(data)
    assert image.size == upright_size(data) == (300, 200)
    expected = np.asarray(open_image(jpeg(300, 200)))
    assert np.array_equal(np.asarray(image), expected)


@pytest.mark.parametrize("order", "<>")
def test_the_orientation_is_that_of_the_raw_file(order: str) -> None:
    turned = nef(order, orientation=6)  # a quarter to the right: what was left is above
    image = open_image(turned)
    assert image.size == upright_size(turned) == (200, 300)
    assert image.getpixel((100, 20)) == open_image(nef()).getpixel((20, 100))
    assert image.getpixel((100, 280)) == (255, 255, 255)
    prepared = Preprocessing(size=32).read(turned)
    assert (prepared.geometry.width, prepared.geometry.height) == (200, 300)
    assert prepared.pixels[:12].mean() < prepared.pixels[20:].mean()


def test_where_the_raw_file_does_not_tell_the_preview_does() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    raw = Raw()
    data = raw.finish({PHOTOMETRIC: SENSOR}, raw.preview(jpeg(300, 200, exif=exif)))
    assert open_image(data).size == upright_size(data) == (200, 300)


def test_a_preview_with_too_many_pixels_gives_way_to_a_smaller_one() -> None:
    data = nef()
    assert find_preview(data, 300 * 200) == (jpeg(300, 200), 1)
    assert find_preview(data, 300 * 200 - 1) == (jpeg(60, 40), 1)


def test_other_tiff_files_are_as_before() -> None:
    file = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(file, "TIFF")
    assert find_preview(file.getvalue(), 10**9) is None
    assert open_image(file.getvalue()).size == (30, 20)
    for data in (b"", b"II*\0", b"MM\0*\0\0\0\xff", b"II*\0\x08\0\0\0", jpeg(30, 20)):
        assert find_preview(data, 10**9) is None


def test_a_raw_file_without_a_usable_preview_is_named(tmp_path: Path) -> None:
    raw = Raw()
    path = tmp_path / "a.NEF"
    for fields in (
        {},
        {JPEG: 1 << 31, JPEG_LENGTH: 500},
        {JPEG: 0, JPEG_LENGTH: 0},
        {JPEG: 20, JPEG_LENGTH: (1 << 32) - 1},
        {JPEG: 20},
        {JPEG: raw.add(bytes(500)), JPEG_LENGTH: 500},
        {JPEG: raw.add(b"\xff\xd8\xff\xda" + bytes(500)), JPEG_LENGTH: 504},
    ):
        path.write_bytes(raw.finish({PHOTOMETRIC: SENSOR, **fields}))
        (source,) = find_sources([tmp_path])
        with pytest.raises(ImageError) as raised:
            open_image(source.open())
        assert raised.value.reason == NO_PREVIEW


def test_a_preview_that_is_cut_off_is_named() -> None:
    raw = Raw()
    whole = jpeg(300, 200)
    with pytest.raises(ImageError, match="truncated: it ends before its end-of-image marker"):
        open_image(raw.finish({PHOTOMETRIC: SENSOR, **raw.preview(whole[: len(whole) // 2])}))


def test_directories_that_lead_back_are_visited_once() -> None:
    raw = Raw()
    fields = {PHOTOMETRIC: SENSOR, **raw.preview(jpeg(300, 200)), BELOW: [16, 16, 1 << 31, 0]}
    first = raw.directory(fields)
    loop = raw.directory({BELOW: [first] * 50}, following=first)
    struct.pack_into("<I", raw.data, 4, loop)
    assert open_image(bytes(raw.data)).size == (300, 200)


def test_more_directories_than_any_camera_writes_are_not_visited() -> None:
    raw = Raw()
    last = raw.directory({PHOTOMETRIC: SENSOR, **raw.preview(jpeg(300, 200))})
    for _ in range(60):
        last = raw.directory({}, following=last)
    struct.pack_into("<I", raw.data, 4, last)
    assert find_preview(bytes(raw.data), 10**9) is None


def test_random_damage_ends_in_a_picture_or_one_line() -> None:
    chance = random.Random(0)
    errors = []
    for _ in range(300):
        data = bytearray(chance.choice(list(FILES.values())))
        for _ in range(chance.choice((1, 4, 40))):
            place = chance.randrange(len(data) if chance.random() < 0.3 else 40)
            data[(len(data) - place - 1) if chance.random() < 0.7 else place] = chance.choice(b"\0\1\x80\xff\x0c")
        try:
            assert min(open_image(bytes(data)).size) > 0
        except ImageError as error:
            errors.append(str(error))
    assert 10 < len(errors) < 300
    assert not any("\n" in error for error in errors)


def test_an_rw2_from_a_pipe_is_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rw2())))
    (source,) = Collection(["-"], recursive=False)
    assert open_image(source.open()).size == (300, 200)
