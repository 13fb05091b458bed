"""Filling a region cache from files of detections instead of an encoder; safe to interrupt at any moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from captioner.datasets.dataset import CaptionedImage
from captioner.files import printable
from captioner.images.geometry import Box, Geometry
from captioner.images.opening import ImageError, upright_size
from captioner.images.preprocessing import Prepared
from captioner.model.config import IMPORTED
from captioner.model.encoders.detections import Detection, DetectionFile, Floats, open_detections
from captioner.model.encoders.engines import RegionArray
from captioner.model.encoders.fill_cache import BATCH, FillReport, Progress, Writer
from captioner.model.encoders.imported import imported_encoder
from captioner.model.encoders.region_cache import cache_folder, cache_identity

_NO_PIXELS = np.empty((0, 0, 3), np.uint8)
_LARGEST = 65504  # that half precision holds
_ASPECT = 0.02  # how far the shapes of an image and of the copy that boxes are of may be apart
_Found = tuple[CaptionedImage, Prepared | ImageError, Floats]


@dataclass(frozen=True)
class ImportReport(FillReport):
    """What one import did; `absent` images of the data are in no file, `unknown` ones of the files not in the data."""

    absent: int
    unknown: int
    cut: int  # images with more boxes than are kept


def import_regions(
    images: Sequence[CaptionedImage],
    root: Path,
    files: Sequence[Path],
    name: str,
    *,
    most: int | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[Path, ImportReport]:
    """Put the regions of images in files of detections into the cache `name` below `root`; return its folder.

    Of each image the first `most` boxes are kept, by default all. An image that the cache has already is left as it is,
    so that several files may be imported one after the other.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name is {name!r}; use letters, digits, dots, hyphens and underscores")
    sources = [open_detections(path) for path in files]
    surveys = [source.survey() for source in sources]
    if len({dimensions for _, dimensions in surveys}) > 1:
        widths = ", ".join(f"{each.path.name} {found[1]}" for each, found in zip(sources, surveys, strict=True))
        raise ValueError(f"the vectors have different widths: {widths}")
    counts = {key: count for found, _ in surveys for key, count in found.items()}
    if not counts or not max(counts.values()):
        raise ValueError(f"{files[0]} has no boxes")
    places = _Places(images)
    known = {key: image for key in counts if (image := places.find(key)) is not None}
    longest = most or max(counts.values())
    encoder = imported_encoder(IMPORTED + name, longest, surveys[0][1])
    identity = cache_identity(encoder)
    folder = cache_folder(root, identity)
    with Writer(folder, identity) as writer:
        pending = {image.file_name for image in writer.find_pending(list(known.values()))}
        before = len({image.file_name for image in known.values()}) - len(pending)
        writer.reserve(len(pending))
        progress(before, before + len(pending))
        refused: list[str] = []
        done = 0
        detected = _detections(sources, known, pending, longest, encoder.dimensions)
        while batch := list(islice(detected, BATCH)):
            good = [regions for _, result, regions in batch if isinstance(result, Prepared)]
            regions: RegionArray | None = np.stack(good) if good else None
            refused += writer.write([(image, result) for image, result, _ in batch], regions)
            done += len(batch)
            progress(before + done, before + len(pending))
    found = {image.file_name for image in known.values()}
    return folder, ImportReport(
        done - len(refused),
        before,
        tuple(refused),
        absent=sum(image.file_name not in found for image in images),
        unknown=len(counts) - len(known),
        cut=sum(count > longest for key, count in counts.items() if key in known),
    )


class _Places:
    """The images of a data set by what a file of detections may call them."""

    def __init__(self, images: Sequence[CaptionedImage]) -> None:
        self.named: dict[str, CaptionedImage | None] = {}  # None: several
        for image in images:
            path = Path(image.file_name)
            for name in {image.file_name, path.name, path.stem, str(image.image_id)}:
                self.named[name] = image if self.named.get(name, image) == image else None

    def find(self, key: str) -> CaptionedImage | None:
        """Return the image of a file name or its end, with or without the suffix, or of an id; None where none is."""
        if key in self.named and self.named[key] is None:
            raise ValueError(f"{printable(key)} may be several images of the data; give their file names in full")
        return self.named.get(key)


def _detections(
    sources: Sequence[DetectionFile],
    known: Mapping[str, CaptionedImage],
    pending: set[str],
    longest: int,
    dimensions: int,
) -> Iterator[_Found]:
    """Yield the images that are still to be imported, with their geometry or why they are refused, and (L, D)."""
    seen: set[str] = set()
    for source in sources:
        for detection in source.read():
            image = known.get(detection.key)
            if image is None or image.file_name not in pending or image.file_name in seen:
                continue
            seen.add(image.file_name)
            regions = np.zeros((longest, dimensions), np.float32)  # (L, D)
            try:
                geometry = _geometry(image, detection, longest)
                vectors = detection.vectors[:longest]
                if vectors.shape[1] != dimensions or not (np.abs(vectors) <= _LARGEST).all():  # false for NaN
                    reason = f"its vectors are not {dimensions} numbers from -{_LARGEST:,} to {_LARGEST:,}"
                    raise ImageError(printable(image.file_name), reason)
                regions[: len(vectors)] = vectors
                yield image, Prepared(_NO_PIXELS, geometry), regions
            except ImageError as error:
                yield image, error.copy(), regions


def _geometry(image: CaptionedImage, detection: Detection, longest: int) -> Geometry:
    """Return where the boxes of a detection lie on its image; raise `ImageError` where they cannot."""
    width, height = upright_size(image.path)
    boxes = detection.boxes[:longest].astype(np.float64)  # (n, 4)
    name = printable(image.file_name)
    if not len(boxes):
        raise ImageError(name, "it has no boxes; at least one is needed")
    if not np.isfinite(boxes).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise ImageError(name, "a box is not left, top, right, bottom in this order")
    if detection.size is not None and detection.size != (width, height):
        across, down = width / max(detection.size[0], 1), height / max(detection.size[1], 1)
        if abs(across / down - 1) > _ASPECT:
            copy = f"{detection.size[0]} x {detection.size[1]}"
            raise ImageError(name, f"its boxes are of an image of {copy} pixels; it has {width} x {height}")
        boxes *= (across, down, across, down)
    # Within the image, and at least a pixel wide: what no one can see must not be drawn.
    limits = np.array([width, height], np.float64)
    low = boxes[:, :2].clip(0, np.maximum(limits - 1, 0))
    high = np.maximum(boxes[:, 2:].clip(0, limits), low + np.minimum(limits, 1))
    edges: list[Box] = [(x, y, far_x, far_y) for x, y, far_x, far_y in np.hstack([low, high]).tolist()]
    return Geometry(width, height, (0.0, 0.0, float(width), float(height)), boxes=tuple(edges))
