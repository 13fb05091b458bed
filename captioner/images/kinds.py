"""Kinds of files by their names: images that are read, and pictures that are not, with the reason."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib.util import find_spec

from PIL import features


def _endings(names: str) -> set[str]:
    return {f".{name}" for name in names.split()}


_JPEG = _endings("jpg jpeg jpe jfif")
_ALWAYS = _JPEG | _endings("png webp gif bmp dib tif tiff")
_HEIF, _AVIF = _endings("heic heif hif"), _endings("avif")
_PREVIEWED = _endings("nef nrw cr2 dng arw rw2 pef srw")  # camera raw files, by the JPEG in them
_RAW = _PREVIEWED | _endings("cr3 crw orf raf 3fr iiq x3f erf mrw kdc dcr mef mos rwl gpr fff sr2 srf")
_DRAWINGS = _endings(
    "psd psb xcf kra afphoto jp2 j2k jpf jpx jxl jxr bpg svg svgz eps ai pdf ico tga exr hdr dpx ppm pgm pbm pnm pcx "
    "wmf emf djvu"
)
_FILMS = _endings("mp4 mov avi mkv m4v webm 3gp mts m2ts mpg mpeg wmv flv ogv")
_PACKED = (".tar.zst", ".tar.lz", ".7z", ".rar")

CAN_READ_AVIF: bool = bool(features.check("avif"))
CAN_READ_HEIF = find_spec("pillow_heif") is not None
EXTENSIONS = frozenset(_ALWAYS | _PREVIEWED | (_AVIF if CAN_READ_AVIF else set()) | (_HEIF if CAN_READ_HEIF else set()))
SUBFOLDER = "subfolder with images"
_REASONS = {
    "HEIC": "pip install 'captioner[heif]' to read them",
    "AVIF": "this Pillow was built without AVIF",
    "film": "not a photograph",
    "raw": "beside a JPEG of the same name",
    "compressed archive": "unpack it first",
    SUBFOLDER: "--recursive searches them too",
}
_PLURALS = {"film": "films", "compressed archive": "compressed archives", SUBFOLDER: "subfolders with images"}
_OTHERS = "not read; export as JPEG"


def unread_kind(name: str) -> str | None:
    """Return what kind of picture a file is by its name, where it is one that is not read; else None."""
    lower = name.lower()
    if lower.endswith(_PACKED):
        return "compressed archive"
    suffix = os.path.splitext(lower)[1]
    if suffix in EXTENSIONS:
        return None
    if suffix in _HEIF:
        return "HEIC"
    if suffix in _FILMS:
        return "film"
    return suffix[1:].upper() if suffix in _RAW | _DRAWINGS | _AVIF else None


def is_raw_beside_jpeg(name: str, others: Collection[str]) -> bool:
    """Tell whether a file is a camera raw file, and among `others`, names in small letters, is a JPEG of its name."""
    stem, suffix = os.path.splitext(name.lower())
    return suffix in _RAW and any(stem + jpeg in others for jpeg in _JPEG)


def why_unread(format: str | None) -> str | None:
    """Return why a format that is known cannot be read here, and what to do; None where it can."""
    can_read = {"HEIC": CAN_READ_HEIF, "AVIF": CAN_READ_AVIF}.get(format or "", True)
    return None if can_read else f"{format}: {_REASONS[format or '']}"


def why_not_a_photograph(kind: str) -> str:
    """Return why a file of a kind that `unread_kind` tells is not read, and what to do."""
    return f"{kind}: {_REASONS.get(kind, _OTHERS)}"


def describe_unread(counts: Mapping[str, int]) -> str:
    """Return how many files of which kinds were not read, and why, in one line; "" where there are none."""
    by_reason: dict[str, list[str]] = {}
    for kind, count in sorted(counts.items()):
        name = kind if count == 1 else _PLURALS.get(kind, kind)
        by_reason.setdefault(_REASONS.get(kind, _OTHERS), []).append(f"{count:,} {name}")
    return "; ".join(f"{', '.join(kinds)} ({reason})" for reason, kinds in by_reason.items())
