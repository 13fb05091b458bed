"""A gallery of captions: one HTML file that shows images, their captions and where each word looked.

The page asks nothing of any network and works from a file. It holds, for each image, a thumbnail and a block of JSON;
its script draws the attention on a canvas, as `captioner.figures.masks` would.
"""

from __future__ import annotations

import base64
import html
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.captioning.corrections import written_caption
from captioner.captioning.recorded_captions import recorded_captions, recorded_confidence, recorded_images
from captioner.captioning.records import CAPTIONS, read_lines, refuse_link
from captioner.evaluation.report.html import fill_template, policy_hash
from captioner.files import printable, replacing
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError, ImageSource, open_image
from captioner.images.sources import Source
from captioner.model.confidence import is_low
from captioner.threads import map_ahead
from captioner.web.assets import VIEWER, VIEWER_STYLE, read_asset

GALLERY = "gallery.html"
THUMBNAIL = 480  # pixels of a thumbnail's longer side: sharp in the grid on a dense screen, and bearable when enlarged
_QUALITY = 80
_AHEAD = 8  # thumbnails made beforehand for each worker
# Nothing but the page's own script and style, and pictures that it holds itself.
_POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class GalleryEntry:
    """One image of a gallery: the name it is shown by, its captions, the best first, and what to open it by.

    `labels` tell several captions apart, such as the models that made them; without, they are alternatives of one.
    `confidence`, 0..1, is how likely a person would accept the first caption, and `correction` what one wrote instead.
    """

    name: str
    captions: Sequence[Caption]
    image: ImageSource | Source
    labels: Sequence[str] = ()
    confidence: float | None = None
    correction: str | None = None

    def __post_init__(self) -> None:
        if not self.captions:
            raise ValueError(f"{printable(self.name)} has no captions; a gallery needs at least one of each image")
        if self.labels and len(self.labels) != len(self.captions):
            raise ValueError(f"{printable(self.name)} has {len(self.labels)} labels for {len(self.captions)} captions")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"{printable(self.name)} has the confidence {self.confidence}; it must be from 0 to 1")


def write_gallery(
    entries: Iterable[GalleryEntry],
    path: str | os.PathLike[str],
    *,
    title: str = "Captions",
    model: str | None = None,
    search: Mapping[str, Any] | None = None,
    side: int = THUMBNAIL,
    workers: int = 2,
) -> int:
    """Write images and their captions as one HTML file, whole or not at all, and return how many there are.

    Entries are taken one by one, so that memory does not grow with them. `model` and the settings of the `search` are
    told in the page's head, `side` is the longer one of a thumbnail in pixels, `workers` threads make them. An image
    that cannot be opened is grey, and the page says why.
    """
    if side < 16:
        raise ValueError(f"side is {side}; it must be at least 16 pixels")
    before, after = _page_around_entries(title)
    count = 0
    blocks = map_ahead(
        lambda entry: _entry_blocks(entry, side), entries, workers=workers, ahead=_AHEAD * workers, name="thumbnail"
    )
    with replacing(Path(path)) as file:
        file.write(before)
        for block in blocks:
            file.write(block)
            count += 1
        about = {"title": title, "model": model, "search": dict(search or {})}
        file.write(_data_block("about", about))
        file.write(after)
    return count


def gallery_from_record(
    out: Path,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "Captions",
    model: str | None = None,
    side: int = THUMBNAIL,
    workers: int = 2,
) -> int:
    """Write the gallery of all captions recorded in the folder `out`, and return how many images there are.

    The record must hold attention. Images are opened by their names in it, relative ones from the current folder. The
    file is `out`/gallery.html unless there is a `path`; `model` is a name for the one that
    made the captions, where it is another than the record tells. The rest is as for `write_gallery`.
    """
    record_path = out / CAPTIONS
    first = next(read_lines(record_path), None)
    if first is None:
        raise ValueError(f"{record_path} has no captions; caption something into {out} first")
    recorded = str(first.record.get("model_name") or first.record.get("model", "")[:12])
    target = out / GALLERY if path is None else Path(path)
    refuse_link(target)
    return write_gallery(
        _recorded_entries(record_path),
        target,
        title=title,
        model=model or recorded or None,
        search=first.record.get("search"),
        side=side,
        workers=workers,
    )


def _recorded_entries(record_path: Path) -> Iterator[GalleryEntry]:
    for source, record in recorded_images(record_path):
        try:
            captions = recorded_captions(record)
            correction = written_caption(record)
            if correction is not None:
                captions[0] = replace(captions[0], text=str(record["model_text"]))
            entry = GalleryEntry(
                record["file_name"],
                captions,
                source,
                confidence=recorded_confidence(record),
                correction=correction,
            )
        except ValueError as error:
            raise ValueError(f"{record_path}: {printable(source.name)}: {error}") from None
        yield entry


def _entry_blocks(entry: GalleryEntry, side: int) -> bytes:
    """Return the part of the page that holds one image: what the page's script reads, then the picture.

    They are two, so that the script can read all captions at its start without the pictures.
    """
    geometry = entry.captions[0].geometry
    image, problem = _open(entry, geometry, side)
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=3.0)
    red, green, blue = image.resize((1, 1), Image.Resampling.BOX).tobytes()
    picture = io.BytesIO()
    image.save(picture, "JPEG", quality=_QUALITY, optimize=True)
    data: dict[str, Any] = {
        "name": entry.name,
        "geometry": _plain_geometry(geometry),
        "colour": f"#{red:02x}{green:02x}{blue:02x}",
        "captions": [packed_caption(caption) for caption in entry.captions],
    }
    for caption, packed in zip(entry.captions, data["captions"], strict=True):
        if caption.geometry != geometry:  # of a model that crops, beside one that does not
            packed["geometry"] = _plain_geometry(caption.geometry)
    if entry.labels:
        data["labels"] = list(entry.labels)
    if problem:
        data["problem"] = problem
    if entry.confidence is not None:
        data["confidence"] = _short(entry.confidence)
        data["low"] = is_low(entry.confidence)
    if entry.correction is not None:
        data["correction"] = entry.correction
    thumbnail = base64.b64encode(picture.getvalue())
    return _data_block("entry", data) + b'<script type="text/plain" class="picture">' + thumbnail + b"</script>\n"


def _plain_geometry(geometry: Geometry) -> dict[str, Any]:
    values = geometry.to_dict()
    values["box"] = [round(edge, 3) for edge in geometry.box]
    if geometry.boxes is not None:
        values["boxes"] = [[round(edge, 1) for edge in box] for box in geometry.boxes]
    return values


def _open(entry: GalleryEntry, geometry: Geometry, side: int) -> tuple[Image.Image, str | None]:
    """Return the image, upright and RGB, or a grey one of its shape, as large as a thumbnail, and why."""
    try:
        image = open_image(entry.image.open() if isinstance(entry.image, Source) else entry.image)
        if image.size == (geometry.width, geometry.height):
            return image, None
        problem = f"the image has changed since: it has {image.width} x {image.height} pixels"
    except ImageError as error:
        problem = f"the image cannot be opened: {error.reason}"
    longest = max(geometry.width, geometry.height, 1)
    size = tuple(max(1, round(side * length / longest)) for length in (geometry.width, geometry.height))
    return Image.new("RGB", (size[0], size[1]), (128, 128, 128)), problem


def packed_caption(caption: Caption) -> dict[str, Any]:
    """Return a caption in plain values for JSON, its attention in a byte a cell, as attention.js unpacks it.

    A weight is its byte / 255 times the word's peak, so that it is off by at most 1/510 of the peak.
    """
    count, rows, columns = caption.attention.shape
    peaks = caption.attention.max(axis=(1, 2), initial=0)  # (T,)
    scaled = caption.attention / np.where(peaks > 0, peaks, 1)[:, None, None] * 255  # (T, rows, columns)
    cells: NDArray[np.uint8] = scaled.round().astype(np.uint8)  # (T, rows, columns)
    packed: dict[str, Any] = {
        "text": caption.text,
        "words": list(caption.words),
        "probabilities": [_short(value) for value in caption.probabilities.tolist()],
        "log_prob": _short(caption.log_prob),
        "beta": [_short(value) for value in caption.beta.tolist()],
        "attention": {
            "rows": rows,
            "columns": columns,
            "peaks": [_short(value) for value in peaks.tolist()] if count else [],
            "cells": base64.b64encode(cells.tobytes()).decode("ascii"),
        },
    }
    if caption.points is not None:
        packed |= {"points": caption.points.astype(float).round(3).tolist(), "extents": list(caption.extents)}
    return packed


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _data_block(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return data that the page's script reads, inert whatever texts it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII alone
    # Within a script element no other characters mean anything to a parser of HTML.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" class="{kind}">{text}</script>\n'.encode("ascii")


def _page_around_entries(title: str) -> tuple[bytes, bytes]:
    """Return what comes before the entries and what comes after them."""
    style = "\n".join(map(read_asset, (VIEWER_STYLE, "gallery.css")))
    script = "\n".join(map(read_asset, (*VIEWER, "theme.js", "corrections.js", "cards.js", "gallery.js")))
    parts = {
        "policy": _POLICY.format(style=policy_hash(style), script=policy_hash(script)),
        "title": html.escape(title),
        "style": style,
        "script": script,
    }
    before, _, after = read_asset("gallery.html").partition("{{entries}}\n")

    def fill(template: str) -> bytes:
        return fill_template(template, **parts).encode("utf-8", "backslashreplace")

    return fill(before), fill(after)
