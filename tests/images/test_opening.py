"""Files that must be refused: by name, with the reason, in one line, and before any pixel of them is unpacked."""

from __future__ import annotations

import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import awkward_images as made
from helpers.awkward_images import COLOURS, PLAIN, Builders, chunk, encode, jpeg, paletted, png, tiff
from PIL import AvifImagePlugin, Image, WebPImagePlugin

from captioner.images import opening
from captioner.images.opening import ImageError, NotAnImageError, open_image, upright_size

ICON = b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" + bytes(99)
PNG_HEADER = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {  # before any pixel is unpacked
    "empty": (lambda: b"", "empty file"),
    **{
        name: (lambda data=data: data, "not one of JPEG, PNG")
        for name, data in {
            "text": b"dear diary, today I took a photograph",
            "text that begins like a BMP": b"BMW makes cars, and motorcycles too, in Bavaria",
            "HTML": b"<!DOCTYPE html><html><title>404 not found</title></html>",
            "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
            "PDF": b"%PDF-1.7\n1 0 obj <</Type /Catalog>> endobj",
            "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage",
            "zip": b"PK\3\4\x14\0" + bytes(99),
            "ICO": ICON,
            "CUR": ICON[:2] + b"\2" + ICON[3:],
            "PSD": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(99),
            "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99),
            "JPEG 2000, stream": b"\xff\x4f\xff\x51" + bytes(99),
            "PPM": b"P6 9 9 255\n" + bytes(243),
            "WAV": b"RIFF\x24\0\0\0WAVEfmt " + bytes(99),
            "zeros": bytes(999),
            "start of a JPEG": b"\xff\xd8",
        }.items()
    },
    "PNG of 60 megapixels": (lambda: png([bytes(1000)] * 7500, 1, 0, (8000, 7500)), "60.0 megapixels"),
    "PNG, two headers": (
        lambda: png([b"\0"], 8, 0, (1, 1), chunks=chunk(b"IHDR", PNG_HEADER)),
        "its headers disagree: 1 x 1 and 20000 x 20000",
    ),
    "PNG, another chunk before its header": (
        lambda: encode(COLOURS, "PNG").replace(b"\n\x1a\n", b"\n\x1a\n" + chunk(b"tEXt", bytes([0, 0, 0, 9] * 4)), 1),
        "does not begin with its IHDR chunk",
    ),
    "PNG, no pixels": (lambda: png([], 8, 2, (0, 9)), "size of 0 x 9"),
    "GIF, giant screen": (
        lambda: (data := encode(paletted(), "GIF"))[:6] + struct.pack("<HH", 60_000, 60_000) + data[10:],
        "3,600.0 megapixels",
    ),
    "GIF, giant frame": (
        lambda: encode(paletted(), "GIF").replace(
            struct.pack("<4H", 0, 0, 64, 32), struct.pack("<4H", 0, 0, 60_000, 60_000)
        ),
        "3,600.0 megapixels",
    ),
    "GIF, unknown block": (
        lambda: encode(paletted(), "GIF").replace(b",\0\0\0\0", b"\x99,\0\0\0\0", 1),
        "unknown block 0x99 at byte",
    ),
    "WebP, giant, lossy": (
        lambda: (data := encode(COLOURS, "WEBP"))[:26] + struct.pack("<HH", 16_383, 16_383) + data[30:],
        "268.4 megapixels",
    ),
    "WebP, giant, lossless": (
        lambda: (data := encode(COLOURS, "WEBP", lossless=True))[:21] + b"\xff" * 3 + b"\x0f" + data[25:],
        "268.4 megapixels",
    ),
    "WebP, giant canvas": (
        lambda: (data := made.animation("WEBP"))[:24] + b"\xff\xff\0\xff\xff\0" + data[30:],
        "4,295.0 megapixels",
    ),
    "WebP, unknown": (lambda: encode(COLOURS, "WEBP", lossless=True).replace(b"VP8L", b"VP9L"), "first chunk"),
    "WebP, all zeros": (lambda: (data := encode(COLOURS, "WEBP"))[:20] + bytes(len(data) - 20), "size of 0 x 0"),
    "TIFF, giant": (
        lambda: tiff([zlib.compress(bytes(100))], {259: ("short", [8])}, [8], 1, (60_000, 60_000)),
        "3,600.0 megapixels",
    ),
    **{
        f"TIFF, giant {kind}": (
            lambda more=more: tiff(
                [zlib.compress(bytes(100))],
                {259: ("short", [8]), 322: ("long", [60_000]), 323: ("long", [60_000]), **more},
                [8],
                1,
                (10, 10),
            ),
            "3,600.0 megapixels",
        )
        for kind, more in {"tile": {}, "tile among strips": {273: ("long", [8]), 279: ("long", [12])}}.items()
    },
    "TIFF, 300 samples": (lambda: tiff([bytes(100)], {}, [8] * 300, 1), "samples per pixel"),
    "TIFF, fewer strips than rows": (
        lambda: tiff([bytes(64)] * 3, {278: ("short", [1])}, [8], 1),
        "too few strips or tiles",
    ),
    "TIFF, planes missing": (
        lambda: tiff([bytes(2048)] * 2, {284: ("short", [2])}, [8] * 3, 2),
        "too few strips or tiles",
    ),
    "TIFF, strip beyond its end": (
        lambda: tiff([zlib.compress(bytes(2048))], {259: ("short", [8]), 279: ("long", [999])}, [8], 1),
        "truncated: its pixels need 1007 bytes",
    ),
    "TIFF, no strips": (lambda: tiff([], {273: ("byte", []), 259: ("short", [8])}, [8], 1), "does not say where"),
    "TIFF, directory beyond its end": (lambda: b"II*\0" + struct.pack("<I", 9999) + bytes(99), "truncated"),
    "BMP, giant, run lengths": (
        lambda: made.bmp(b"\0\1", 8, (60_000, 60_000), compression=1, tables=bytes(1024)),
        "pixels in run lengths",
    ),
    "BMP, giant": (lambda: made.bmp(bytes(99), 24, (60_000, 60_000)), "truncated"),
    "BMP, negative width": (lambda: made.bmp(bytes(9999), 24, (-9, 9)), "size of -9 x 9"),
    "JPEG, giant": (lambda: made.with_size(PLAIN, 65_000, 65_000), "4,225.0 megapixels"),
    "JPEG, 1000 scans": (lambda: made.with_scans(jpeg(COLOURS, progressive=True), 1000), "more than 100 scans"),
    "JPEG, cut, another after it": (lambda: PLAIN[:-9] + PLAIN, "another picture begins"),
    "JPEG, nothing but an end": (lambda: b"\xff\xd8\xff\xd9", "size of 0 x 0"),
    "JPEG, thumbnail, cut": (lambda: made.thumbnailed_jpeg()[: -len(PLAIN) // 3], "end-of-image"),
}
WHOLE: Builders = {  # files to be cut
    "JPEG": lambda: PLAIN,
    "JPEG, progressive": lambda: jpeg(COLOURS, progressive=True),
    "PNG": lambda: encode(COLOURS, "PNG"),
    "PNG, animated": lambda: made.animation("PNG"),
    "GIF": lambda: encode(paletted(), "GIF"),
    "GIF, animated": lambda: made.animation("GIF"),
    "WebP": lambda: encode(COLOURS, "WEBP"),
    "WebP, lossless": lambda: encode(COLOURS, "WEBP", lossless=True),
    "WebP, animated": lambda: made.animation("WEBP"),
    "BMP": lambda: encode(COLOURS, "BMP"),
    "BMP, run lengths": made.run_length_bmp,
    "BMP, OS/2": lambda: made.bmp(COLOURS.tobytes(), 24, header=12),
    "TIFF": lambda: encode(COLOURS, "TIFF"),
    "TIFF, strips": made.striped_tiff,
    "TIFF, tiles": made.tiled_tiff,
    "TIFF, LZW": lambda: encode(COLOURS, "TIFF", compression="tiff_lzw"),
    "AVIF": lambda: encode(COLOURS, "AVIF"),
}
REFUSED |= {
    f"{name}, cut at {part:.0%}": (
        lambda build=build, part=part: (data := build())[: int(len(data) * part)],
        "truncated",
    )
    for name, build in WHOLE.items()
    for part in (0.2, 0.5, 0.8, 0.95)
}
REFUSED |= {
    f"{name}, one byte short": (lambda build=build: build()[:-1], "truncated")
    for name, build in WHOLE.items()
    if name not in ("TIFF, strips", "TIFF, tiles", "TIFF, LZW")  # these end with their directory, after the pixels
}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that make room for pixels or unpack them, as they come."""
    calls: list[str] = []

    def spy(owner: object, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: calls.append(name) or original(*arguments))

    spy(Image, "_getdecoder")
    spy(Image.core, "new")
    spy(WebPImagePlugin._webp, "WebPAnimDecoder")
    spy(AvifImagePlugin._avif, "AvifDecoder")
    return calls


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_before_unpacking(name: str, tmp_path: Path, unpacked: list[str]) -> None:
    build, reason = REFUSED[name]
    path = tmp_path / "picture.jpg"
    path.write_bytes(build())
    unpacked.clear()
    with pytest.raises(ImageError) as refusal:
        open_image(path)
    assert unpacked == []
    message = str(refusal.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert message.isprintable()


@pytest.mark.parametrize("name", WHOLE)
def test_unpacking_would_be_seen(name: str, unpacked: list[str]) -> None:
    data = WHOLE[name]()
    unpacked.clear()
    open_image(data)
    assert unpacked


@pytest.mark.skipif(sys.platform == "win32", reason="measures memory as Unix reports it")
def test_refusing_bombs_costs_no_memory_and_prints_nothing(tmp_path: Path) -> None:
    reasons = ("megapixels", "disagree", "samples per pixel")
    bombs = [build for build, reason in REFUSED.values() if any(part in reason for part in reasons)]
    for number, build in enumerate(bombs):
        (tmp_path / f"{number}.png").write_bytes(build())
    measure = """
import resource, sys
from captioner.images.finding import find_images
from captioner.images.opening import ImageError, NotAnImageError, open_image, upright_size
def opened(path):
    try:
        return open_image(path)
    except ImageError:
        return None
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert not any([opened(path) for path in find_images(sys.argv[1:])])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", measure, tmp_path], capture_output=True, text=True, check=True)
    assert len(bombs) > 9
    assert int(run.stdout) < 20_000  # kilobytes; the smallest of the bombs unpacks to 60 megabytes
    assert run.stderr == ""


def cut_png(length: int) -> bytes:
    noise = random.Random(0)
    data = png([noise.randbytes(made.WIDTH) for _ in range(made.HEIGHT)], 8, 0)
    start = data.index(b"IDAT") + 4
    return data[: start - 8] + chunk(b"IDAT", data[start : start + length]) + chunk(b"IEND", b"")


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {  # what their headers announce is all there
    "JPEG, no scan": (lambda: PLAIN[: PLAIN.index(b"\xff\xda")] + b"\xff\xd9", "cannot be decoded"),
    "JPEG, 12 bits": (lambda: PLAIN.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "cannot be decoded"),
    "PNG, pixels cut": (lambda: cut_png(200), "cannot be decoded"),
    "PNG, no pixels": (lambda: cut_png(0), "cannot be decoded"),
    "PNG, wrong checksum": (lambda: (data := encode(COLOURS, "PNG"))[:29] + bytes(4) + data[33:], "cannot be decoded"),
    "PNG, unknown depth": (lambda: png([bytes(64)] * 32, 7, 0), "cannot be decoded"),
    "GIF, no frame": (lambda: encode(paletted(), "GIF")[: 13 + 12] + b";", "cannot be decoded"),
    "WebP, damaged": (
        lambda: (data := encode(COLOURS, "WEBP", lossless=True))[:25] + b"\xff" * (len(data) - 25),
        "cannot be decoded",
    ),
    "BMP, unknown compression": (lambda: made.bmp(bytes(9), 24, compression=9), "cannot be decoded"),
    "TIFF, unknown compression": (lambda: tiff([bytes(9)], {259: ("short", [999])}, [8], 1), "KeyError 999"),
    "TIFF, float of 64 bits": (
        lambda: tiff([bytes(16384)], {339: ("short", [3])}, [64], 1),
        "directory cannot be read",
    ),
    "TIFF, damaged": (lambda: tiff([b"nonsense"], {259: ("short", [8])}, [8], 1), "cannot be decoded"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_refuses_what_is_damaged_inside(name: str) -> None:
    build, reason = DAMAGED[name]
    with pytest.raises(ImageError, match=f"image: .*{reason}") as refusal:
        open_image(build())
    assert str(refusal.value).isprintable()


def refusal_of(path: str | os.PathLike[str]) -> str:
    with pytest.raises(ImageError) as refusal:
        open_image(path)
    message = str(refusal.value)
    assert message.isprintable()
    return message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe.jpg", tmp_path / "folder.jpg"
    os.mkfifo(pipe)
    folder.mkdir()
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    assert refusal_of(pipe) == f"{pipe}: not a regular file"
    assert refusal_of("/dev/zero") == "/dev/zero: not a regular file"
    assert refusal_of(folder) == f"{folder}: is a directory"
    assert refusal_of(tmp_path / "missing.jpg") == f"{tmp_path / 'missing.jpg'}: no such file or directory"
    assert refusal_of(tmp_path / "loop.jpg").endswith(": too many levels of symbolic links")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket.jpg"))
        assert "socket.jpg: " in refusal_of(tmp_path / "socket.jpg")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_refusing_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        for path in (tmp_path, tmp_path / "empty.jpg", "/dev/zero"):
            refusal_of(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "private.jpg"
    path.write_bytes(PLAIN)
    path.chmod(0)
    assert refusal_of(path) == f"{path}: permission denied"


def test_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.tif"
    with path.open("wb") as file:
        file.truncate(10**12)  # takes no space where files may have holes
    assert refusal_of(path) == f"{path}: 1,000,000 MB; at most 512 MB are read"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems forbid such names")
@pytest.mark.parametrize("name", [b"two\nlines.jpg", b"not \xff utf-8.jpg", b"\x1b[31mred.jpg", "\u2028.jpg".encode()])
def test_strange_names_stay_on_one_line(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(PLAIN[:-2])
    assert refusal_of(path) == f"{str(path)!a}: truncated: it ends before its end-of-image marker"
    path.write_bytes(PLAIN)
    assert open_image(path).size == (made.WIDTH, made.HEIGHT)


@pytest.mark.parametrize("name", ["null\0.jpg", "half a pair \ud800.jpg", "x" * 9999])
def test_names_that_no_file_can_have(name: str) -> None:
    assert "cannot be decoded" not in refusal_of(name)


def test_a_tile_may_reach_beyond_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_PIXELS", 96 * 48)  # of whole tiles, which is what is unpacked
    assert open_image(made.tiled_tiff()).size == (made.WIDTH, made.HEIGHT)
    monkeypatch.setattr(opening, "MAX_PIXELS", 96 * 48 - 1)
    with pytest.raises(ImageError, match="96 x 48 is"):
        open_image(made.tiled_tiff())


@pytest.mark.parametrize("orientation", made.ORIENTATIONS)
def test_the_size_is_that_of_the_upright_image(orientation: int, unpacked: list[str]) -> None:
    data = jpeg(COLOURS, exif=made.exif(orientation))
    unpacked.clear()
    size = upright_size(data)
    assert unpacked == []
    assert size == open_image(data).size
    turned = encode(COLOURS, "TIFF", exif=made.exif(orientation))  # which Pillow turns itself
    assert upright_size(turned) == open_image(turned).size


def test_what_is_no_image_is_told_from_what_is_damaged() -> None:
    for read in (open_image, upright_size):
        with pytest.raises(NotAnImageError, match="not one of") as raised:
            read(b"dear diary")
        assert (raised.value.name, raised.value.reason[:10]) == ("image", "not one of")
        assert type(raised.value.copy()) is type(pickle.loads(pickle.dumps(raised.value))) is NotAnImageError
        with pytest.raises(ImageError, match="truncated") as raised:
            read(jpeg(COLOURS)[:-9])
        assert not isinstance(raised.value, NotAnImageError)
