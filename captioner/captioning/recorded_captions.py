"""Captions and images read back from records, to be drawn, scored or shown again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from captioner.captioning.caption import Caption
from captioner.captioning.records import Record, read_lines
from captioner.images.finding import ARCHIVES, find_sources
from captioner.images.sources import Source, name_key


def recorded_captions(record: Record, source: Path | None = None) -> list[Caption]:
    """Return the captions of an image that a record made with attention holds, the best first.

    `source` is the image, where it is known. Raises ValueError where the record lacks what is needed to draw them.
    """
    if "attention" not in record or "geometry" not in record:
        raise ValueError("the record holds no attention; make it with `captioner caption --attention`")
    try:
        alternatives = ({**other, "geometry": record["geometry"]} for other in record.get("alternatives", ()))
        found = [Caption.from_dict(values, source) for values in (record, *alternatives)]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"the record is damaged: {type(error).__name__}: {error}") from None
    return share_grid(found)


def recorded_confidence(record: Record) -> float | None:
    """Return the confidence in a record's caption, None where it has none or somebody chose the caption."""
    confidence = record.get("confidence")
    if record.get("corrected") or not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        return None
    return confidence


def share_grid(captions: Sequence[Caption]) -> list[Caption]:
    """Return captions of one model, those without words with the grid of the others, which their records do not tell.

    Where none has words, all stay as they are.
    """
    grid = next((caption.attention.shape[1:] for caption in captions if caption.words), None)
    if grid is None:
        return list(captions)
    none = np.zeros((0, *grid), dtype=np.float32)  # (0, rows, columns)
    return [caption if caption.words else replace(caption, attention=none) for caption in captions]


def recorded_images(path: Path) -> Iterator[tuple[Source, Record]]:
    """Yield the images of a record and their lines, of several of an image the last, in the order of the file.

    Images are looked for under their names, which are paths as they were given: relative ones from the current folder.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file of records such as captions.jsonl")
    last = {name_key(line.name): line.offset for line in read_lines(path)}
    archives: dict[str, dict[str, Source]] = {}
    for line in read_lines(path):
        if last[name_key(line.name)] == line.offset:
            yield _find(line.name, archives), line.record


def _find(name: str, archives: dict[str, dict[str, Source]]) -> Source:
    """Return the image of a name, a file or a member of an archive, of which each is listed once."""
    path = Path(name)
    if os.path.exists(name):  # which takes any name, unlike a path's own method
        return Source(name, path)
    archives_above = (each for each in path.parents if each.name.lower().endswith(ARCHIVES) and os.path.isfile(each))
    archive = next(archives_above, None)
    if archive is None:
        return Source(name, path)  # opening it says that it is not there
    key = archive.as_posix()
    if key not in archives:
        archives[key] = {source.name: source for source in find_sources([archive])}
    return archives[key].get(name, Source(name, archive, problem="not in the archive"))
