"""Captions put into image files as XMP: JPEG and PNG, everything else in the file the same byte for byte."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from captioner.captioning.output import xmp
from captioner.captioning.output.written_files import WrittenFiles
from captioner.files import concerns_all_files, digest, printable, replacing, system_reason
from captioner.images.headers.header import find_format
from captioner.images.opening import ImageError, read_file
from captioner.images.sources import Source

_XMP_JPEG, _XMP_PNG = b"http://ns.adobe.com/xap/1.0/\0", b"XML:com.adobe.xmp"
_APP1, _SCAN, _FIRST = 0xE1, 0xDA, (0xE0, 0xE1)  # JFIF and EXIF come before XMP
_MAX_SEGMENT = 65_533


class NoPlaceError(ValueError):
    """A file has no place for captions, or none for so much."""


def embed_caption(source: Source, text: str, is_ours: Callable[[str], bool]) -> tuple[Source, bool]:
    """Put a caption into an image file, whole or not at all; return the image as it is then, and whether it says it.

    A caption that is there and not the program's, as `is_ours` tells, stays. Raises `NoPlaceError` for a file that has
    no place for it, and `ImageError` for one that cannot be written, or is not what the source's stamp tells.
    """
    target = Path(os.path.realpath(source.path))
    data, _ = read_file(target)
    if source.stamp is not None and digest(data) != source.stamp.digest:
        raise _replaced(source)
    changed, says = _with_caption(data, text, is_ours)
    if changed == data:
        return source, says
    unfinished = target.with_name(f".captioner-{os.getpid()}.unfinished")
    try:
        with replacing(target, unfinished=unfinished) as file:
            file.write(changed)
            shutil.copymode(target, unfinished)
    except OSError as error:
        if concerns_all_files(error):
            raise
        reason = f"the caption cannot be put into it: {system_reason(error)}"
        raise ImageError(printable(source.name), reason) from None
    embedded, found = replace(source, stamp=None).read()
    if found != changed:
        raise _replaced(source)
    return embedded, says


def note_embedded(written: WrittenFiles, source: Source) -> None:
    """Note that an image, as its stamp tells it, needs nothing more put into it."""
    if source.stamp is not None:
        written.note(source.path, _embedded(source.stamp.digest))


def is_embedded(written: WrittenFiles, path: Path, contents: str) -> bool:
    """Tell whether that was noted of the image file with such a digest."""
    return written.is_noted(path, _embedded(contents))


def _embedded(contents: str) -> str:
    return digest(f"embedded {contents}".encode())


def _replaced(source: Source) -> ImageError:
    return ImageError(printable(source.name), "it was replaced after it had been captioned")


def _with_caption(data: bytes, text: str, is_ours: Callable[[str], bool]) -> tuple[bytes, bool]:
    """Return a file's bytes with a caption, and whether they say it."""
    name = find_format(data)
    try:
        if name == "JPEG":
            return _in_jpeg(data, text, is_ours)
        if name == "PNG":
            return _in_png(data, text, is_ours)
    except (IndexError, struct.error):
        raise NoPlaceError("its metadata is damaged; use --format xmp") from None
    except ValueError as error:
        raise NoPlaceError(str(error)) from None
    raise NoPlaceError(f"captions cannot be put into {name or 'this format'}; use --format xmp")


def _merged(packet: bytes | None, text: str, is_ours: Callable[[str], bool]) -> tuple[bytes, bool]:
    return (xmp.make_packet(text), True) if packet is None else xmp.merge(packet, text, is_ours)


def _in_jpeg(data: bytes, text: str, is_ours: Callable[[str], bool]) -> tuple[bytes, bool]:
    position = place = 2
    while data[position] == 0xFF and data[position + 1] != _SCAN:
        if data[position + 1] == 0xFF:  # a marker may have any number of these before it
            position += 1
            continue
        code, (length,) = data[position + 1], struct.unpack_from(">H", data, position + 2)
        end = position + 2 + length
        contents = data[position + 4 : end]
        if code == _APP1 and contents.startswith(_XMP_JPEG):
            packet, says = _merged(contents[len(_XMP_JPEG) :], text, is_ours)
            return data[:position] + _segment(packet) + data[end:], says
        position = end
        if code in _FIRST and place == position - length - 2:
            place = end
    packet, says = _merged(None, text, is_ours)
    return data[:place] + _segment(packet) + data[place:], says


def _segment(packet: bytes) -> bytes:
    contents = _XMP_JPEG + packet
    if len(contents) > _MAX_SEGMENT:
        raise ValueError("its metadata has no room for a caption; use --format xmp")
    return struct.pack(">BBH", 0xFF, _APP1, len(contents) + 2) + contents


def _in_png(data: bytes, text: str, is_ours: Callable[[str], bool]) -> tuple[bytes, bool]:
    position = place = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        contents = data[position + 8 : end - 4]
        if kind == b"iTXt" and contents.startswith(_XMP_PNG + b"\0"):
            compressed, rest = contents[len(_XMP_PNG) + 1], contents[len(_XMP_PNG) + 3 :]
            if compressed:
                raise ValueError("its metadata is compressed; use --format xmp")
            packet, says = _merged(rest.split(b"\0", 2)[2], text, is_ours)
            return data[:position] + _chunk(packet) + data[end:], says
        if kind == b"IHDR":
            place = end
        position = end
    packet, says = _merged(None, text, is_ours)
    return data[:place] + _chunk(packet) + data[place:], says


def _chunk(packet: bytes) -> bytes:
    contents = b"iTXt" + _XMP_PNG + b"\0\0\0\0\0" + packet
    return struct.pack(">I", len(contents) - 4) + contents + struct.pack(">I", zlib.crc32(contents))
