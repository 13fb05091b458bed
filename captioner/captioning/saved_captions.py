"""Captions read back from a record that was made with attention, and the images that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from captioner.captioning.caption import Caption
from captioner.captioning.records import Record, read_lines
from captioner.images.finding import ARCHIVE, Source, find_sources, name_key
from captioner.images.geometry import Geometry


def recorded_captions(record: Record, source: Path | None = None) -> list[Caption]:
    """Return the captions of an image that a record made with attention holds, the best first.

    `source` is the image, where it is known. Raises ValueError where the record lacks what is needed to draw them.
    """
    if "attention" not in record or "geometry" not in record:
        raise ValueError("the record holds no attention; make it with `captioner caption --attention`")
    try:
        width, height, box, flipped = (record["geometry"][name] for name in ("width", "height", "box", "flipped"))
        left, top, right, bottom = map(float, box)
        geometry = Geometry(int(width), int(height), (left, top, right, bottom), bool(flipped))
        if geometry.width < 1 or geometry.height < 1 or not (left < right and top < bottom):
            raise ValueError(f"its geometry is {geometry}")
        found = [_caption(fields, geometry, source) for fields in (record, *record.get("alternatives", ()))]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the record is damaged: {type(error).__name__}: {error}") from None
    return share_grid(found)


def share_grid(captions: Sequence[Caption]) -> list[Caption]:
    """Return captions of one model, those without words with the grid of the others, which their records do not tell.

    Where none has words, all stay as they are.
    """
    grid = next((caption.attention.shape[1:] for caption in captions if caption.words), None)
    if grid is None:
        return list(captions)
    none = np.zeros((0, *grid), dtype=np.float32)  # (0, rows, columns)
    return [caption if caption.words else replace(caption, attention=none) for caption in captions]


def _caption(fields: Record, geometry: Geometry, source: Path | None) -> Caption:
    words = tuple(map(str, fields["words"]))
    attention = np.asarray(fields["attention"], dtype=np.float32)  # (T, rows, columns)
    return Caption(
        str(fields["text"]),
        words,
        np.asarray(fields["probabilities"], dtype=np.float32),
        float(fields["log_prob"]),
        attention if words else attention.reshape(0, 1, 1),  # see `share_grid`
        np.asarray(fields["beta"], dtype=np.float32),
        geometry,
        source,
    )


def read_recorded(path: Path) -> Iterator[tuple[Source, Record]]:
    """Yield the images of a record and their lines, of several of an image the last, in the order of the file.

    Images are looked for under their names, which are paths as they were given: relative ones from the current folder.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file of records, such as captions.jsonl")
    last = {name_key(line.name): line.offset for line in read_lines(path)}
    archives: dict[str, dict[str, Source]] = {}
    for line in read_lines(path):
        if last[name_key(line.name)] == line.offset:
            yield _find(line.name, archives), line.record


def _find(name: str, archives: dict[str, dict[str, Source]]) -> Source:
    """Return the image of a name, a file or a member of an archive, of which each is listed once."""
    path = Path(name)
    if path.exists():
        return Source(name, path)
    archive = next((each for each in path.parents if each.suffix.lower() == ARCHIVE and each.is_file()), None)
    if archive is None:
        return Source(name, path)  # opening it says that it is not there
    key = archive.as_posix()
    if key not in archives:
        archives[key] = {source.name: source for source in find_sources([archive])}
    return archives[key].get(name, Source(name, archive, problem="not in the archive"))
