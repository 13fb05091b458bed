"""Image files that are bombs by structure: small pictures of far too many parts, and a seeded stream of such files."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import numpy as np

from helpers import awkward_images as made
from helpers import box_images
from helpers.awkward_images import COLOURS, GREYS, PLAIN, chunk, encode, jpeg, jpeg_segment, paletted, with_segment

PROFILE = b"icc\0\0" + zlib.compress(bytes(1_000_000), 9)  # a thousandth of what it unpacks to


def commented_jpeg(count: int, size: int = 0, code: int = 0xFE) -> bytes:
    """Return a JPEG with so many segments of so many bytes before its picture."""
    return PLAIN[:2] + jpeg_segment(code, bytes(size)) * count + PLAIN[2:]


def exif_jpeg(pieces: int) -> bytes:
    """Return a JPEG whose EXIF block comes in so many pieces of 64 kB."""
    return PLAIN[:2] + jpeg_segment(0xE1, b"Exif\0\0".ljust(65_000, b"\0")) * pieces + PLAIN[2:]


def jpeg_with(code: int, contents: bytes, count: int) -> bytes:
    """Return a JPEG with the same segment so many times before its picture."""
    return PLAIN[:2] + jpeg_segment(code, contents) * count + PLAIN[2:]


def repeated_scan_jpeg(scans: int, side: int) -> bytes:
    """Return a progressive JPEG of noise that says its last scan again and again."""
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    data = encode(noise, "JPEG", quality=40, progressive=True)
    place = data.rindex(b"\xff\xda")
    return data[:place] + data[place:-2] * scans + data[-2:]


def padded_jpeg(count: int, filler: bytes = b"\xff") -> bytes:
    """Return a JPEG with so many bytes of nothing after its first segment."""
    return PLAIN[:20] + filler * count + PLAIN[20:]


def scanned_jpeg(scans: int, width: int, height: int) -> bytes:
    """Return a progressive JPEG that announces a size and says the same scan again and again."""
    return made.with_size(made.with_scans(jpeg(COLOURS, progressive=True), scans), width, height)


def chunked_png(count: int, kind: bytes = b"tEXt", payload: bytes = b"") -> bytes:
    """Return a PNG with so many chunks of a kind before its pixels."""
    data = encode(COLOURS, "PNG")
    return data[:33] + chunk(kind, payload) * count + data[33:]


def divided_png(count: int) -> bytes:
    """Return a PNG with so many empty chunks of pixels among the others."""
    data = encode(COLOURS, "PNG")
    place = data.index(b"IDAT") - 4
    return data[:place] + chunk(b"IDAT", b"") * count + data[place:]


def sparse_gif(count: int) -> bytes:
    """Return a GIF with so many zero bytes before its picture, as a file with a hole has them."""
    return _inside_gif(bytes(count))


def commented_gif(count: int, size: int = 1) -> bytes:
    """Return a GIF with a comment of so many blocks of so many bytes."""
    return _inside_gif(b"\x21\xfe" + (bytes([size]) + b"x" * size) * count + b"\0")


def _inside_gif(part: bytes) -> bytes:
    data = encode(paletted(), "GIF")
    place = 13 + (3 << ((data[10] & 7) + 1))
    return data[:place] + part + data[place:]


def chunked_webp(count: int) -> bytes:
    """Return a WebP with so many empty chunks after its picture."""
    data = encode(COLOURS, "WEBP", exif=made.exif(1)) + b"abcd\0\0\0\0" * count
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def webp_with_metadata(size: int, kinds: tuple[bytes, ...] = (b"EXIF", b"XMP ")) -> bytes:
    """Return a WebP with so many bytes of each kind of metadata."""
    data = encode(COLOURS, "WEBP", exif=made.exif(1))
    data += b"".join(kind + struct.pack("<I", size) + bytes(size + size % 2) for kind in kinds)
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def tiled_tiff(tiles: int, width: int, height: int = 16) -> bytes:
    """Return a TIFF of one column in compressed tiles, nearly all of each of which lies outside."""
    packed = zlib.compress(bytes(width * height), 9)
    starts = [8 + place * len(packed) for place in range(tiles)]
    tags = {
        259: ("short", [8]),
        322: ("long", [width]),
        323: ("long", [height]),
        324: ("long", starts),
        325: ("long", [len(packed)] * tiles),
    }
    return made.tiff([packed * tiles], tags, [8], 1, size=(1, height * tiles))


def striped_tiff(count: int) -> bytes:
    """Return a TIFF of 16 x 16 pixels in so many strips, all but the first of them of nothing."""
    fields: list[tuple[int, int, int, int]] = [(256, 4, 1, 16), (257, 4, 1, 16), (258, 3, 1, 8), (259, 3, 1, 1)]
    place = 8 + 256
    fields += [(262, 3, 1, 1), (273, 4, count, place), (278, 4, 1, 1), (279, 4, count, place)]
    offsets = np.full(count, 8, dtype="<u4").tobytes()
    entries = b"".join(struct.pack("<HHII", *field) for field in fields)
    directory = struct.pack("<H", len(fields)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", place + len(offsets)) + bytes(256) + offsets + directory


def overlapping_tiff(strips: int, size: int) -> bytes:
    """Return a TIFF of one column in compressed strips that are all the same bytes, most of them never needed."""
    packed = zlib.compress(b"\0").ljust(size, b"\0")
    tags = {
        259: ("short", [8]),
        278: ("short", [1]),
        273: ("long", [8] * strips),
        279: ("long", [size] * strips),
    }
    return made.tiff([packed], tags, [8], 1, size=(1, strips))


def numbered_tiff(count: int, tag: int = 282, kind: str = "fraction") -> bytes:
    """Return a TIFF with a field of so many numbers, by default in place of its resolution, which is one."""
    values = [1] * (2 * count if kind == "fraction" else count)
    data = made.tiff([GREYS.tobytes()], {tag: ("long" if kind == "fraction" else kind, values)}, [8], 1)
    if kind != "fraction":
        return data
    place = data.index(struct.pack("<HHI", tag, 4, len(values)))
    return data[:place] + struct.pack("<HHI", tag, 5, count) + data[place + 8 :]


def scanned_tiff(scans: int, width: int, height: int) -> bytes:
    """Return a TIFF of one strip, a JPEG that says the same scan again and again."""
    packed = made.with_size(made.with_scans(encode(GREYS, "JPEG", progressive=True), scans), width, height)
    return made.tiff([packed], {259: ("short", [7])}, [8], 1, size=(width, height))


def overlapping_fields(fields: int, size: int) -> bytes:
    """Return an EXIF block, or TIFF, whose fields all point at the same bytes."""
    start = 8 + 2 + 12 * fields + 4
    entries = b"".join(struct.pack("<HHII", 0x8000 + number, 7, size, start) for number in range(fields))
    return b"II*\0" + struct.pack("<IH", 8, fields) + entries + bytes(4) + bytes(size)


def bombed_tiff(fields: int, size: int) -> bytes:
    """Return a whole TIFF, with further fields that all point at the same bytes."""
    picture = made.tiff([GREYS.tobytes()], {}, [8], 1)
    (directory,) = struct.unpack_from("<I", picture, 4)
    (count,) = struct.unpack_from("<H", picture, directory)
    entries = picture[directory + 2 : directory + 2 + 12 * count]
    more = b"".join(struct.pack("<HHII", 0x8000 + number, 7, size, len(picture)) for number in range(fields))
    new = struct.pack("<H", count + fields) + entries + more + bytes(4)
    place = len(picture) + size
    return picture[:4] + struct.pack("<I", place) + picture[8:] + bytes(size) + new


def run_length_bmp(runs: int, size: tuple[int, int] = (made.WIDTH, made.HEIGHT)) -> bytes:
    """Return a BMP of so many steps to where it stands already."""
    return made.bmp(b"\0\2\0\0" * runs + b"\0\1", 8, size, compression=1, tables=made.BITMAP_PALETTE.ljust(1024, b"\0"))


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {  # of a second or 200 MB and more, and what their refusal says
    "JPEG, empty comments": (lambda: commented_jpeg(3_000_000), "10,000 segments"),
    "JPEG, metadata": (lambda: commented_jpeg(1_000, 65_000, 0xE4), "bytes of metadata"),
    "JPEG, EXIF in pieces": (lambda: exif_jpeg(400), "bytes of EXIF"),
    "JPEG, fill bytes": (lambda: padded_jpeg(20_000_000), "stray bytes"),
    "JPEG, zeros": (lambda: padded_jpeg(20_000_000, b"\0"), "stray bytes"),
    "JPEG, scans of a large picture": (lambda: scanned_jpeg(80, 7000, 7000), "in its scans together"),
    "JPEG, EXIF in small pieces": (lambda: jpeg_with(0xE1, b"Exif\0\0" + bytes(34), 90_000), "64 pieces of EXIF"),
    "JPEG, Photoshop resources": (
        lambda: jpeg_with(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4".ljust(12, b"\0") * 5_000, 500),
        "10,000 Photoshop resources",
    ),
    "JPEG, tables": (lambda: jpeg_with(0xDB, bytes(65) * 1_000, 480), "bytes of tables"),
    "JPEG, frames": (lambda: jpeg_with(0xC0, b"\x08\0\x08\0\x08\3" + bytes(63_000), 480), "more than 1 frames"),
    "JPEG, noise again and again": (lambda: repeated_scan_jpeg(95, 500), "bytes of coded pixels"),
    "PNG, empty chunks": (lambda: chunked_png(1_000_000), "100,000 chunks"),
    "PNG, empty chunks of pixels": (lambda: divided_png(1_000_000), "100,000 chunks"),
    "PNG, private chunks": (lambda: chunked_png(100, b"prVt", bytes(1_000_000)), "bytes of metadata"),
    "PNG, colour profiles": (lambda: chunked_png(10_000, b"iCCP", PROFILE), "colour profiles"),
    "GIF, a hole": (lambda: sparse_gif(60_000_000), "100,000 blocks"),
    "GIF, a comment in single bytes": (lambda: commented_gif(10_000_000), "blocks are smaller than 64 bytes"),
    "GIF, a long comment": (lambda: commented_gif(300_000, 255), "bytes of metadata"),
    "WebP, empty chunks": (lambda: chunked_webp(3_000_000), "100,000 chunks"),
    "WebP, metadata": (lambda: webp_with_metadata(20_000_000), "bytes of metadata"),
    "AVIF, metadata": (lambda: box_images.with_metadata(1, 40_000_000), "bytes of metadata"),
    "AVIF, the same metadata often": (lambda: box_images.with_metadata(300, 1_000_000), "bytes of metadata"),
    "AVIF, metadata of many pictures": (lambda: box_images.with_metadata(1, 1_000_000, 300), "bytes of metadata"),
    "AVIF, a large overlay": (lambda: box_images.put_together(b"iovl", 30_000, 30_000), "900.0 megapixels"),
    "AVIF, a large grid": (lambda: box_images.put_together(b"grid", 60_000, 60_000, wide=False), "3,600.0 megapixels"),
    "AVIF, frames": (lambda: box_images.sequence(2_500_000), "2,500,000 frames"),
    "TIFF, tiles outside of it": (lambda: tiled_tiff(39_000, 7008), "megapixels"),
    "TIFF, a long column": (lambda: made.tiff([bytes(200_000)], {}, [8], 1, size=(1, 200_000)), "200,000 pixels long"),
    "TIFF, empty strips": (lambda: striped_tiff(2_400_000), "2,400,000 strips"),
    "TIFF, strips that overlap": (lambda: overlapping_tiff(39_000, 1_000_000), "overlap"),
    "TIFF, fractions": (lambda: numbered_tiff(3_000_000), "30,000,0.. numbers"),
    "TIFF, a long palette": (lambda: numbered_tiff(15_000_000, 320, "short"), "15,000,0.. numbers"),
    "TIFF, scans of a large picture": (lambda: scanned_tiff(80, 7000, 7000), "in its scans together"),
    "TIFF, fields that overlap": (lambda: bombed_tiff(900, 10_000_000), "points at 9,000 MB"),
    "BMP, idle run lengths": (lambda: run_length_bmp(10_000_000), "bytes of run lengths"),
    "BMP, run lengths of a large picture": (lambda: run_length_bmp(1, (50_000_000, 1)), "pixels in run lengths"),
}


def structural_mutation(chance: random.Random) -> bytes:
    """Return a file with one kind of part in some number and size, from none to more than is opened."""
    count = int(10 ** chance.uniform(0, 5.3))
    size = min(int(10 ** chance.uniform(0, 4.8)), 20_000_000 // count)
    builders: list[Callable[[], bytes]] = [
        lambda: commented_jpeg(count, size, chance.choice((0xFE, 0xE1, 0xE2, 0xED, 0xDB))),
        lambda: exif_jpeg(1 + count % 300),
        lambda: padded_jpeg(count * 10, chance.choice((b"\xff", b"\0", b"\xff\0", b"\xff\xd3"))),
        lambda: made.with_scans(jpeg(COLOURS, progressive=True), count % 200),
        lambda: chunked_png(count, chance.choice((b"tEXt", b"zTXt", b"iTXt", b"gAMA", b"pHYs", b"prVt")), bytes(size)),
        lambda: chunked_png(1 + count % 30, b"iCCP", PROFILE),
        lambda: chunked_png(1, b"eXIf", overlapping_fields(count % 30_000, size)),
        lambda: divided_png(count),
        lambda: sparse_gif(count),
        lambda: commented_gif(count, 1 + size % 255),
        lambda: chunked_webp(count),
        lambda: encode(COLOURS, "WEBP", exif=overlapping_fields(count % 30_000, size)),
        lambda: with_segment(PLAIN, 0xE1, b"Exif\0\0" + overlapping_fields(count % 4_000, size % 16_000)),
        lambda: striped_tiff(16 + count),
        lambda: overlapping_tiff(1 + count % 70_000, 20 + size),
        lambda: bombed_tiff(count % 30_000, 1 + size),
        lambda: numbered_tiff(
            1 + count, chance.choice((282, 320, 40_000)), chance.choice(("fraction", "short", "long"))
        ),
        lambda: scanned_tiff(1 + count % 200, 64 + size % 7000, 64 + size % 7000),
        lambda: run_length_bmp(count),
        lambda: jpeg_with(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4".ljust(12, b"\0") * 1_000, count % 200),
        lambda: jpeg_with(0xDB, bytes(65) * (1 + size % 900), count % 200),
        lambda: jpeg_with(0xE1, b"Exif\0\0" + bytes(size % 60_000), count),
        lambda: webp_with_metadata(count * 100),
        lambda: box_images.with_metadata(1 + count % 300, size * 10, 1 + size % 50),
        lambda: box_images.put_together(chance.choice((b"grid", b"iovl")), count, size),
        lambda: box_images.sequence(count),
        lambda: tiled_tiff(1 + count % 2_000, 16 * (1 + size % 500)),
    ]
    return chance.choice(builders)()
