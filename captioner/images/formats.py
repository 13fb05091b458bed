"""The six image formats: what a file's headers say before any pixel is unpacked, and its pixels as RGB afterwards.

`read_header` unpacks nothing, so a bomb or half a file is known for what it is at the cost of reading its headers.
"""

from __future__ import annotations

import io
import logging
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin
from PIL.ExifTags import Base as Tag
from PIL.ImageFile import ImageFile

from captioner.files import one_line

# A progressive JPEG needs about ten scans; each may cost a pass over all pixels, so thousands of them are an attack.
MAX_JPEG_SCANS = 100
# A marker is FF and a code; FF 00 is an escaped FF of the compressed data, FF 01 and FF D0-D7 mark places inside it.
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_START, _JPEG_END, _JPEG_SCAN = 0xD8, 0xD9, 0xDA
_BMP_UNCOMPRESSED = (0, 3, 6)
_TIFF_UNCOMPRESSED, _TIFF_PLANAR, _TIFF_WHITE_IS_ZERO, _TIFF_SIGNED = 1, 2, 0, (2,)
# Without a handler of its own, Pillow's log would go to stderr in programs that set up no logging.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class Damaged(ValueError):
    """A file holds no whole and sound image; the message says why, without the file's name."""


@dataclass(frozen=True)
class Header:
    """The format and the stored size of an image, before any rotation."""

    format: str
    width: int
    height: int


def read_header(data: bytes) -> Header | None:
    """Return what `data` holds, None when it is none of the six formats; raise `Damaged` when part of it is missing."""
    for name, (signature, measure, _) in _FORMATS.items():
        if signature.match(data):
            try:
                width, height = measure(data)
            except (struct.error, IndexError):
                raise Damaged("truncated: it ends too soon") from None
            if width < 1 or height < 1:
                raise Damaged(f"its header gives a size of {width} x {height}")
            return Header(name, width, height)
    return None


class _JpegReader(JpegImagePlugin.JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Leave the resolution alone: nothing uses it, and a damaged EXIF block would make it refuse the picture."""


def open_reader(data: bytes, header: Header) -> ImageFile:
    """Return Pillow's reader of the image that `read_header` measured, before any pixel is unpacked."""
    image = _FORMATS[header.format][2](io.BytesIO(data))
    if image.width * image.height > header.width * header.height:
        raise Damaged(f"its headers disagree: {header.width} x {header.height} and {image.width} x {image.height}")
    if header.format == "PNG":
        _scale_png_transparency(image, depth=data[24])
    return image


def _measure_jpeg(data: bytes) -> tuple[int, int]:
    width = height = scans = 0
    position = 2
    while marker := _JPEG_MARKER.search(data, position):
        code, position = data[marker.end() - 1], marker.end()
        if code == _JPEG_END:
            return width, height
        if code == _JPEG_START:
            raise Damaged("truncated: another picture begins before its end-of-image marker")
        (length,) = struct.unpack_from(">H", data, position)
        if code in _JPEG_FRAMES:
            rows, columns = struct.unpack_from(">HH", data, position + 3)
            width, height = max(width, columns), max(height, rows)
        scans += code == _JPEG_SCAN
        if scans > MAX_JPEG_SCANS:
            raise Damaged(f"it has more than {MAX_JPEG_SCANS} scans")
        position += length
    raise Damaged("truncated: it ends before its end-of-image marker")


def _measure_png(data: bytes) -> tuple[int, int]:
    kind, width, height = struct.unpack_from(">4sII", data, 12)
    if kind != b"IHDR":
        raise Damaged("it does not begin with its IHDR chunk")
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        position += 12 + length
        if kind == b"IEND":
            return width, height
    raise Damaged("truncated: it ends before its IEND chunk")


def _measure_gif(data: bytes) -> tuple[int, int]:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + _gif_palette_bytes(flags)
    while position < len(data):
        block, position = data[position], position + 1
        if block == 0x3B:
            return width, height
        if block == 0x2C:
            left, top, columns, rows, flags = struct.unpack_from("<4HB", data, position)
            # A frame may reach beyond the screen, and decoders then enlarge the screen.
            width, height = max(width, left + columns), max(height, top + rows)
            position = _skip_gif_blocks(data, position + 9 + _gif_palette_bytes(flags) + 1)
        elif block == 0x21:
            position = _skip_gif_blocks(data, position + 1)
        elif block != 0:
            raise Damaged(f"it has an unknown block {block:#04x} at byte {position - 1}")
    raise Damaged("truncated: it ends before its trailer")


def _gif_palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_gif_blocks(data: bytes, position: int) -> int:
    while length := data[position]:
        position += length + 1
    return position + 1


def _measure_webp(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise Damaged(f"truncated: it announces {length + 8} bytes and has {len(data)}")
    kind = data[12:16]
    if kind == b"VP8X":
        width, width_high, height, height_high = struct.unpack_from("<HBHB", data, 24)
        return 1 + width + (width_high << 16), 1 + height + (height_high << 16)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise Damaged(f"its first chunk is {kind!r}, not one of VP8, VP8L, VP8X")


def _measure_bmp(data: bytes) -> tuple[int, int]:
    offset, header = struct.unpack_from("<II", data, 10)
    if header == 12:  # OS/2: no compression, short sizes
        width, height, _, bits = struct.unpack_from("<4H", data, 18)
        compression = stored = 0
    else:
        width, height, _, bits, compression, stored = struct.unpack_from("<iiHHII", data, 18)
        height = abs(height)  # negative: rows from the top
    needed = (width * bits + 31) // 32 * 4 * height if compression in _BMP_UNCOMPRESSED else stored
    if offset + needed > len(data):
        raise Damaged(f"truncated: its pixels need {offset + needed} bytes and it has {len(data)}")
    return width, height


def _measure_tiff(data: bytes) -> tuple[int, int]:
    order, big = "<" if data.startswith(b"I") else ">", b"+" in data[2:4]
    (directory,) = struct.unpack_from(f"{order}Q", data, 8) if big else struct.unpack_from(f"{order}I", data, 4)
    (entries,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, min(directory, len(data)))
    if directory + entries * (20 if big else 12) > len(data):
        raise Damaged("truncated: it ends inside its directory")
    try:
        tags = TiffImagePlugin.TiffImageFile(io.BytesIO(data)).tag_v2
    except Exception as error:  # any exception at all comes out of a damaged directory
        raise Damaged(f"its directory cannot be read: {one_line(error)}") from None
    width, height = tags[Tag.ImageWidth], tags[Tag.ImageLength]
    needed = max(_tiff_ends(tags, width, height))
    if needed > len(data):
        raise Damaged(f"truncated: its pixels need {needed} bytes and it has {len(data)}")
    # One tile is unpacked whole, so a tile larger than the image counts at its own size.
    tile = _numbers(tags, Tag.TileWidth, 0)[0], _numbers(tags, Tag.TileLength, 0)[0]
    return max((width, height), tile, key=math.prod)


def _tiff_ends(tags: TiffImagePlugin.ImageFileDirectory_v2, width: int, height: int) -> list[int]:
    """Return the byte after each strip or tile; raise `Damaged` when they do not cover the image."""
    tiled = Tag.StripOffsets not in tags
    if tiled:
        columns, rows = _numbers(tags, Tag.TileWidth, 0)[0], _numbers(tags, Tag.TileLength, 0)[0]
    else:
        columns, rows = width, min(_numbers(tags, Tag.RowsPerStrip, height)[0], height)
    offsets = _numbers(tags, Tag.TileOffsets if tiled else Tag.StripOffsets)
    if not offsets or columns < 1 or rows < 1:
        raise Damaged("it does not say where its pixels are")
    samples = _numbers(tags, Tag.SamplesPerPixel, 1)[0]
    planar = tags.get(Tag.PlanarConfiguration) == _TIFF_PLANAR
    per_plane = math.ceil(width / columns) * math.ceil(height / rows)
    if len(offsets) < per_plane * (samples if planar else 1):
        raise Damaged("truncated: it has too few strips or tiles for its size")
    if tags.get(Tag.Compression, _TIFF_UNCOMPRESSED) != _TIFF_UNCOMPRESSED:
        lengths = _numbers(tags, Tag.TileByteCounts if tiled else Tag.StripByteCounts)
        return [start + length for start, length in zip_longest(offsets, lengths, fillvalue=0)]
    # Stored lengths are not to be trusted when nothing is compressed, since no reader needs them then.
    bits = _numbers(tags, Tag.BitsPerSample, 1)
    row_bytes = (columns * (bits[0] if planar else sum((bits * samples)[:samples])) + 7) // 8
    return [
        start + row_bytes * (rows if tiled else min(rows, height - index % per_plane * rows))
        for index, start in enumerate(offsets)
    ]


def _numbers(tags: TiffImagePlugin.ImageFileDirectory_v2, tag: int, *default: int) -> list[int]:
    value = tags.get(tag)
    values = value if isinstance(value, tuple) else (value,)
    return [number for number in values if isinstance(number, int)] or list(default)


def _scale_png_transparency(image: ImageFile, depth: int) -> None:
    """Bring the transparent colour of a PNG to the 8 bits that Pillow brings its pixels to."""
    transparent = image.info.get("transparency")
    if image.mode == "L" and isinstance(transparent, int) and depth < 8:
        image.info["transparency"] = transparent % 2**depth * 255 // (2**depth - 1)
    elif isinstance(transparent, tuple) and depth == 16:
        image.info["transparency"] = tuple(level >> 8 for level in transparent)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return 8-bit RGB at the right brightness, transparency composited on white."""
    if image.mode.startswith(("I", "F")):
        image = _to_grey(image)
    elif image.mode == "La":
        image = image.convert("LA")  # the only way that Pillow knows out of premultiplied grey
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy
    coloured = image.convert("RGBA")
    paper = Image.new("RGB", image.size, "white")
    paper.paste(coloured, mask=coloured)
    return paper


def _to_grey(image: Image.Image) -> Image.Image:
    """Scale 16-bit, 32-bit and float levels to 8 bits; Pillow's own conversion clips them all to white."""
    tags = getattr(image, "tag_v2", {})
    bits, signed = tags.get(Tag.BitsPerSample), tags.get(Tag.SampleFormat) == _TIFF_SIGNED
    stored = np.asarray(image)  # (height, width)
    if image.mode == "I" and bits == (32,) and not signed:
        stored = stored.view(np.uint32)  # Pillow keeps unsigned levels in signed numbers
    levels = stored.astype(np.float32)
    np.nan_to_num(levels, copy=False, nan=0.0, posinf=np.inf, neginf=0.0)
    # Where nothing says what is white, it is the first of the customary scales to hold the brightest pixel.
    scales: tuple[float, ...]
    if image.mode == "F":
        scales = (1.0, 255.0, 65535.0)
    elif image.mode == "I" and bits == (16,):
        scales = (255.0, 32767.0)
    elif image.mode == "I":
        scales = (255.0, 65535.0, float(np.iinfo(stored.dtype).max))
    else:
        scales = (4095.0,) if bits == (12,) else (65535.0,)
    brightest = float(levels.max(where=np.isfinite(levels), initial=0.0))
    # Filters overshoot white in float images: a pixel of 1.02 does not make it a scale of 255.
    overshoot = 2.0 if image.mode == "F" else 1.0
    white = next((scale for scale in scales if brightest <= scale * overshoot), brightest)
    grey = (np.clip(levels, 0, white) * (255.0 / white)).round().astype(np.uint8)
    if tags.get(Tag.PhotometricInterpretation) == _TIFF_WHITE_IS_ZERO:
        grey = 255 - grey
    scaled = Image.fromarray(grey)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled.putalpha(Image.fromarray(np.where(levels == transparent, 0, 255).astype(np.uint8)))
    return scaled


_FORMATS: dict[str, tuple[re.Pattern[bytes], Callable[[bytes], tuple[int, int]], type[ImageFile]]] = {
    "JPEG": (re.compile(rb"\xff\xd8\xff"), _measure_jpeg, _JpegReader),
    "PNG": (re.compile(rb"\x89PNG\r\n\x1a\n"), _measure_png, PngImagePlugin.PngImageFile),
    "GIF": (re.compile(rb"GIF8[79]a"), _measure_gif, GifImagePlugin.GifImageFile),
    "WEBP": (re.compile(rb"RIFF....WEBP", re.DOTALL), _measure_webp, WebPImagePlugin.WebPImageFile),
    # Two letters begin many a text; the size of a known header must follow.
    "BMP": (
        re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL),
        _measure_bmp,
        BmpImagePlugin.BmpImageFile,
    ),
    "TIFF": (re.compile(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"), _measure_tiff, TiffImagePlugin.TiffImageFile),
}
FORMATS = tuple(_FORMATS)
