"""A gallery of awkward image files, each with the picture that it must open as."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import awkward_images as made
from helpers.awkward_images import (
    BLACK_AND_WHITE,
    COLOURS,
    GREYS,
    INDICES,
    ORIENTATIONS,
    PALETTE,
    PLAIN,
    Builders,
    Pixels,
    chunk,
    encode,
    exif,
    jpeg,
    packed,
    paletted,
    png,
    rgb,
    rows,
    stored,
    tiff,
    with_segment,
)
from PIL import Image

from captioner.images.opening import open_image, upright_size

ALPHA = np.where(INDICES == 1, 0, 255).astype(np.uint8)  # the top right is transparent
RGBA, LA = np.dstack([COLOURS, ALPHA]), np.dstack([GREYS, ALPHA])
HALF = np.dstack([COLOURS, np.full_like(GREYS, 128)])
WIDE, TALL = np.repeat(PALETTE[None, :1], 20_000, axis=1), np.repeat(PALETTE[:1, None], 20_000, axis=0)
FEW_LEVELS = COLOURS // [8, 4, 8]  # of 5, 6 and 5 bits
CHANNELS = [0xFF << shift for shift in (24, 16, 8, 0)]  # of four bytes, as big-endian numbers
BARE = PLAIN[:2] + PLAIN[20:]  # without JFIF, so that Pillow looks for the resolution in EXIF
XMP = b'http://ns.adobe.com/xap/1.0/\0<rdf tiff:Orientation="6"/>'


def grey_tiff(levels: np.ndarray, sample_format: int = 1, photometric: int = 1, order: str = "<") -> bytes:
    tags = {339: ("short", [sample_format])}
    return tiff([levels.tobytes()], tags, [8 * levels.itemsize], photometric, order=order)


def oriented_tiff(orientation: int, compression: str) -> bytes:
    return encode(stored(COLOURS, orientation), "TIFF", compression=compression, tiffinfo={274: orientation})


COLOURED: Builders = {  # files that show COLOURS
    **{f"JPEG, orientation {n}": lambda n=n: jpeg(stored(COLOURS, n), exif=exif(n)) for n in ORIENTATIONS},
    "JPEG, orientation out of range": lambda: jpeg(COLOURS, exif=exif(99)),
    "JPEG, orientation in XMP": lambda: with_segment(jpeg(stored(COLOURS, 6)), 0xE1, XMP),
    "JPEG, progressive": lambda: jpeg(COLOURS, progressive=True),
    "JPEG, colours halved": lambda: encode(COLOURS, "JPEG", quality=95, subsampling=2),
    "JPEG, restart markers": lambda: jpeg(COLOURS, restart_marker_blocks=1),
    "JPEG, CMYK": lambda: jpeg(COLOURS, "CMYK"),
    "JPEG, YCCK": made.ycck_jpeg,
    "JPEG, a second picture after it": lambda: encode(
        COLOURS, "MPO", quality=100, save_all=True, append_images=[Image.fromarray(GREYS)]
    ),
    "JPEG, garbage after its end": lambda: PLAIN + b"\xff\xd8\xff\xda garbage " * 9,
    "JPEG, filled up between markers": lambda: PLAIN[:2] + b"\xff" * 9 + PLAIN[2:],
    "JPEG, thumbnail": made.thumbnailed_jpeg,
    "JPEG, EXIF of nonsense": lambda: with_segment(BARE, 0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff nonsense"),
    "JPEG, EXIF cut in its header": lambda: with_segment(BARE, 0xE1, b"Exif\0\0II*\0"),
    "JPEG, EXIF of nothing": lambda: with_segment(BARE, 0xE1, b"Exif\0\0"),
    "JPEG, EXIF with an empty resolution": made.resolutionless_jpeg,
    "JPEG, colour profile of nonsense": lambda: with_segment(PLAIN, 0xE2, b"ICC_PROFILE\0\1\1no"),
    **{f"PNG, orientation {n}": lambda n=n: encode(stored(COLOURS, n), "PNG", exif=exif(n)) for n in (3, 6, 7)},
    "PNG": lambda: encode(COLOURS, "PNG"),
    "PNG, 16 bits": lambda: png(rows(made.deep(COLOURS, ">")), 16, 2),
    "PNG, palette": lambda: encode(paletted(), "PNG"),
    "PNG, palette of 2 bits": lambda: png(packed(INDICES, 2), 2, 3, chunks=chunk(b"PLTE", PALETTE.tobytes())),
    "PNG, interlaced": lambda: png(made.interlaced_rows(COLOURS), 8, 2, interlaced=True),
    "PNG, animated": lambda: made.animation("PNG"),
    "PNG, EXIF of nonsense": lambda: png(rows(COLOURS), 8, 2, chunks=chunk(b"eXIf", b"MM\0*\xff\xff\xff\xff")),
    "PNG, garbage after its end": lambda: encode(COLOURS, "PNG") + b"garbage",
    **{
        f"WebP, orientation {n}": lambda n=n: encode(stored(COLOURS, n), "WEBP", lossless=True, exif=exif(n))
        for n in (5, 6, 8)
    },
    "WebP": lambda: encode(COLOURS, "WEBP", lossless=True),
    "WebP, lossy": lambda: encode(COLOURS, "WEBP", quality=100),
    "WebP, animated": lambda: made.animation("WEBP", lossless=True),
    "WebP, EXIF of nonsense": lambda: encode(COLOURS, "WEBP", lossless=True, exif=b"Exif\0\0II*\0\xff"),
    "GIF": lambda: encode(paletted(), "GIF", interlace=0),
    "GIF, interlaced": lambda: encode(paletted(), "GIF", interlace=1),
    "GIF, animated": lambda: made.animation("GIF"),
    "BMP": lambda: encode(COLOURS, "BMP"),
    "BMP, top row first": lambda: made.bmp(COLOURS[:, :, ::-1].tobytes(), 24, (64, -32)),
    "BMP, palette of 8 bits": lambda: encode(paletted(), "BMP"),
    "BMP, palette of 4 bits": lambda: made.bmp(
        b"".join(packed(INDICES[::-1], 4)), 4, tables=made.BITMAP_PALETTE.ljust(64, b"\0")
    ),
    "BMP, run lengths": made.run_length_bmp,
    "BMP, OS/2": lambda: made.bmp(COLOURS[::-1, :, ::-1].tobytes(), 24, header=12),
    "BMP, 32 bits, the last unused": lambda: made.bmp(np.dstack([COLOURS[::-1, :, ::-1], GREYS]).tobytes(), 32),
    **{f"TIFF, orientation {n}": lambda n=n: oriented_tiff(n, "raw") for n in ORIENTATIONS},
    **{f"TIFF, LZW, orientation {n}": lambda n=n: oriented_tiff(n, "tiff_lzw") for n in (2, 6)},
    **{
        f"TIFF, {method}": lambda method=method: encode(COLOURS, "TIFF", compression=method)
        for method in ("tiff_lzw", "tiff_adobe_deflate", "packbits")
    },
    "TIFF, JPEG inside": lambda: encode(COLOURS, "TIFF", compression="jpeg", quality=100),
    "TIFF, CMYK": lambda: encode(COLOURS, "TIFF", "CMYK"),
    "TIFF, palette": lambda: encode(paletted(), "TIFF"),
    "TIFF, 16 bits": lambda: tiff([(made.deep(COLOURS, "<")).tobytes()], {}, [16] * 3, 2),
    "TIFF, strips": made.striped_tiff,
    "TIFF, strips, big-endian": lambda: made.striped_tiff(order=">"),
    "TIFF, planes": lambda: tiff(
        [COLOURS[:, :, channel].tobytes() for channel in range(3)], {284: ("short", [2])}, [8] * 3, 2
    ),
    "TIFF, tiles": made.tiled_tiff,
    "TIFF, tiles, deflate": lambda: made.tiled_tiff(8),
    "TIFF, lengths of nothing": lambda: tiff([COLOURS.tobytes()], {279: ("long", [0])}, [8] * 3, 2),
    "TIFF, several pages": lambda: made.animation("TIFF"),
    "TIFF, BigTIFF": lambda: made.striped_tiff(big=True),
    "TIFF, EXIF beyond its end": lambda: tiff([COLOURS.tobytes()], {34665: ("long", [10**9])}, [8] * 3, 2),
}
GREY: Builders = {  # files that show GREYS
    "JPEG, grey": lambda: jpeg(GREYS),
    "PNG, grey": lambda: encode(GREYS, "PNG"),
    "PNG, grey of 2 bits": lambda: png(packed(GREYS // 85, 2), 2, 0),
    "PNG, grey of 4 bits": lambda: png(packed(GREYS // 17, 4), 4, 0),
    "PNG, grey of 16 bits": lambda: png(rows(made.deep(GREYS, ">")), 16, 0),
    "GIF, grey": lambda: encode(GREYS, "GIF"),
    "BMP, grey": lambda: encode(GREYS, "BMP"),
    "TIFF, grey": lambda: grey_tiff(GREYS),
    "TIFF, white is zero": lambda: grey_tiff(255 - GREYS, photometric=0),
    "TIFF, 16 bits, little-endian": lambda: grey_tiff(made.deep(GREYS, "<")),
    "TIFF, 16 bits, big-endian": lambda: grey_tiff(made.deep(GREYS, ">"), order=">"),
    "TIFF, 16 bits, white is zero": lambda: grey_tiff(65535 - made.deep(GREYS, "<"), photometric=0),
    "TIFF, 16 bits, LZW": lambda: encode(made.deep(GREYS, "<"), "TIFF", compression="tiff_lzw"),
    "TIFF, 16 bits, signed": lambda: grey_tiff((GREYS * 128.0).astype("<i2"), 2),
    "TIFF, 12 bits": lambda: tiff([made.twelve_bits(GREYS * np.uint16(16))], {}, [12], 1),
    "TIFF, 32 bits": lambda: grey_tiff((GREYS * 2.0**24).astype("<u4")),
    "TIFF, 32 bits, signed": lambda: grey_tiff((GREYS * 2.0**23).astype("<i4"), 2),
    "TIFF, 32 bits of 8": lambda: grey_tiff(GREYS.astype("<i4"), 2),
    "TIFF, 32 bits of 16": lambda: grey_tiff(made.deep(GREYS, "<").astype("<i4"), 2),
    "TIFF, float to 1": lambda: grey_tiff((GREYS / 255).astype("<f4"), 3),
    "TIFF, float to 1, big-endian": lambda: grey_tiff((GREYS / 255).astype(">f4"), 3, order=">"),
    "TIFF, float to 1, white is zero": lambda: grey_tiff((1 - GREYS / 255).astype("<f4"), 3, photometric=0),
    "TIFF, float above 1": lambda: grey_tiff(np.where(GREYS == 255, 1.2, GREYS / 255).astype("<f4"), 3),
    "TIFF, float to 255, not a number": lambda: grey_tiff(np.where(GREYS == 0, np.nan, GREYS).astype("<f4"), 3),
    "TIFF, float to 255, infinite": lambda: grey_tiff(
        np.select([GREYS == 255, GREYS == 0], [np.inf, -3e38], GREYS).astype("<f4"), 3
    ),
}
ON_WHITE = np.where(ALPHA[..., None] == 0, 255, COLOURS)
GREY_ON_WHITE = rgb(np.where(ALPHA == 0, 255, GREYS).astype(np.uint8))
NO_GREY_85 = rgb(np.where(GREYS == 85, 255, GREYS).astype(np.uint8))
OTHERS: dict[str, tuple[Callable[[], bytes], Pixels]] = {
    "PNG, 1 bit": (lambda: png(packed(BLACK_AND_WHITE & 1, 1), 1, 0), rgb(BLACK_AND_WHITE)),
    "BMP, 1 bit": (lambda: encode(BLACK_AND_WHITE, "BMP", "1"), rgb(BLACK_AND_WHITE)),
    "TIFF, 1 bit": (lambda: encode(BLACK_AND_WHITE, "TIFF", "1"), rgb(BLACK_AND_WHITE)),
    "TIFF, 1 bit, fax": (lambda: encode(BLACK_AND_WHITE, "TIFF", "1", compression="group4"), rgb(BLACK_AND_WHITE)),
    "TIFF, 1 bit, white is zero": (
        lambda: tiff([b"".join(packed(1 - (BLACK_AND_WHITE & 1), 1))], {}, [1], 0),
        rgb(BLACK_AND_WHITE),
    ),
    "PNG, RGBA": (lambda: encode(RGBA, "PNG"), ON_WHITE),
    "PNG, RGBA of 16 bits": (lambda: png(rows(made.deep(RGBA, ">")), 16, 6), ON_WHITE),
    "PNG, RGBA, half transparent": (lambda: encode(HALF, "PNG"), np.round(COLOURS * (128 / 255) + 127)),
    "PNG, grey and alpha": (lambda: png(rows(LA), 8, 4), GREY_ON_WHITE),
    "PNG, grey and alpha of 16 bits": (lambda: png(rows(made.deep(LA, ">")), 16, 4), GREY_ON_WHITE),
    "PNG, one colour transparent": (
        lambda: png(rows(COLOURS), 8, 2, chunks=chunk(b"tRNS", PALETTE[1].astype(">u2").tobytes())),
        ON_WHITE,
    ),
    "PNG, one colour of 16 bits transparent": (
        lambda: png(rows(made.deep(COLOURS, ">")), 16, 2, chunks=chunk(b"tRNS", made.deep(PALETTE[1], ">").tobytes())),
        ON_WHITE,
    ),
    **{
        f"PNG, one grey of {bits} bits transparent": (
            lambda bits=bits, step=step: png(
                packed(GREYS // step, bits), bits, 0, chunks=chunk(b"tRNS", struct.pack(">H", 85 // step))
            ),
            NO_GREY_85,
        )
        for bits, step in ((2, 85), (4, 17), (8, 1))
    },
    "PNG, one grey of 16 bits transparent": (
        lambda: png(rows(made.deep(GREYS, ">")), 16, 0, chunks=chunk(b"tRNS", made.deep(GREYS[-1, :1], ">").tobytes())),
        NO_GREY_85,
    ),
    "PNG, palette, one transparent": (lambda: encode(paletted(), "PNG", transparency=1), ON_WHITE),
    "PNG, palette, all half transparent": (
        lambda: encode(paletted(), "PNG", transparency=bytes([128] * 4)),
        np.round(COLOURS * (128 / 255) + 127),
    ),
    "WebP, RGBA": (lambda: encode(RGBA, "WEBP", lossless=True), ON_WHITE),
    "GIF, one transparent": (lambda: encode(paletted(), "GIF", transparency=1), ON_WHITE),
    "BMP, RGBA": (
        lambda: made.bmp(RGBA[::-1].tobytes(), 32, header=56, compression=3, tables=struct.pack(">4I", *CHANNELS)),
        ON_WHITE,
    ),
    "BMP, 16 bits": (
        lambda: made.bmp(
            (FEW_LEVELS[::-1] @ [1 << 11, 1 << 5, 1]).astype("<u2").tobytes(),
            16,
            compression=3,
            tables=struct.pack("<3I", 0xF800, 0x7E0, 0x1F),
        ),
        np.round(FEW_LEVELS * (255 / np.array([31, 63, 31]))),
    ),
    "TIFF, RGBA": (lambda: encode(RGBA, "TIFF"), ON_WHITE),
    "TIFF, grey and alpha": (lambda: encode(LA, "TIFF"), GREY_ON_WHITE),
    "TIFF, grey and premultiplied alpha": (
        lambda: tiff([(LA * (LA[..., 1:] > 0)).tobytes()], {338: ("short", [1])}, [8, 8], 1),
        GREY_ON_WHITE,
    ),
    "PNG, 1 x 1": (lambda: encode(COLOURS[:1, :1], "PNG"), COLOURS[:1, :1]),
    "PNG, 1 x 20000": (lambda: encode(TALL, "PNG"), TALL),
    "JPEG, 20000 x 1": (lambda: jpeg(WIDE), WIDE),
}
OPENED = {
    **{name: (build, COLOURS) for name, build in COLOURED.items()},
    **{name: (build, rgb(GREYS)) for name, build in GREY.items()},
    **OTHERS,
}


@pytest.mark.parametrize("name", OPENED)
def test_opens_as_the_picture_it_shows(name: str, tmp_path: Path) -> None:
    build, expected = OPENED[name]
    path = tmp_path / "picture.jpg"  # whatever it holds
    path.write_bytes(build())
    image = open_image(path)
    assert image.mode == "RGB"
    assert image.size == upright_size(path) == expected.shape[1::-1]
    difference = np.abs(np.asarray(image, dtype=int) - expected)
    if "JPEG" in name or "lossy" in name:
        difference[14:18] = difference[:, 30:34] = 0  # colours run over the seams
        assert difference.max() <= 4
    else:
        assert difference.max() <= 1
