"""From a measured image file to its pixels as RGB: Pillow's reader of each format, and the brightness of each mode."""

from __future__ import annotations

import ctypes
import io
import logging
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    _imaging,
)
from PIL.ExifTags import Base as Tag
from PIL.ImageFile import ImageFile

from captioner.images.headers.header import Damaged, Header

_TIFF_WHITE_IS_ZERO, _TIFF_SIGNED = 0, (2,)
# Without a handler of its own, Pillow's log would go to stderr in programs that set up no logging.
logging.getLogger("PIL").addHandler(logging.NullHandler())
# libtiff writes what it thinks of a file to stderr, whatever Pillow makes of it; where it cannot be found, it does so.
with suppress(AttributeError, OSError):
    for _name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        getattr(ctypes.CDLL(_imaging.__file__), _name)(None)


class _JpegReader(JpegImagePlugin.JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Leave the resolution alone: nothing uses it, and a damaged EXIF block would make it refuse the picture."""


def open_reader(data: bytes, header: Header) -> ImageFile:
    """Return Pillow's reader of the image that `read_header` measured, before any pixel is unpacked."""
    image = _READERS[header.format](io.BytesIO(data))
    if image.width * image.height > header.pixels:
        raise Damaged(f"its headers disagree: {header.width} x {header.height} and {image.width} x {image.height}")
    if header.format == "PNG":
        _scale_png_transparency(image, depth=data[24])
    return image


def _open_heif(file: io.BytesIO) -> ImageFile:
    from pillow_heif import HeifImageFile  # an extra

    image: ImageFile = HeifImageFile(file)  # type: ignore[no-untyped-call]
    return image


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
    scaled_levels = np.clip(levels, 0, white)
    scaled_levels *= 255.0 / white
    grey = scaled_levels.round(out=scaled_levels).astype(np.uint8)
    if tags.get(Tag.PhotometricInterpretation) == _TIFF_WHITE_IS_ZERO:
        grey = 255 - grey
    scaled = Image.fromarray(grey)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled.putalpha(Image.fromarray(np.where(levels == transparent, 0, 255).astype(np.uint8)))
    return scaled


_READERS: dict[str, Callable[[io.BytesIO], ImageFile]] = {
    "JPEG": _JpegReader,
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "HEIC": _open_heif,
}
