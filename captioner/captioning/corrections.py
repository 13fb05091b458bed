"""Captions that people have corrected: lines {"image", "caption"}, taken over into a folder's record.

A folder keeps them in corrections.jsonl, so that every later run, also one that captions all images anew, ends with
what people wrote. An image is named as in the record, or by its file's name alone where only one image has that name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from captioner import files
from captioner.captioning.output.derived import Derived
from captioner.captioning.output.embedding import NoPlaceError, embed_caption, note_embedded
from captioner.captioning.output.folder import OutputFolder
from captioner.captioning.output.written_files import WrittenFiles
from captioner.captioning.records import CAPTIONS, Record, read_lines, refuse_link, to_line
from captioner.files import digest, printable, replacing
from captioner.images.opening import ImageError
from captioner.images.sources import Source

CORRECTIONS = "corrections.jsonl"
LONGEST = 2000  # letters of a caption
_MAX_BYTES = 500_000_000  # of a file of corrections: millions of them
_MAX_LINE = 65_536  # bytes


@dataclass(frozen=True)
class Applied:
    """What came of corrections: how many images have a caption that people chose, and the names that are unknown.

    `left` are files that were not brought up to date, because others wrote or changed them.
    """

    corrected: int
    unknown: tuple[str, ...]
    left: tuple[str, ...] = ()


def read_corrections(path: Path) -> dict[str, str]:
    """Return captions by the names of their images, of several the last; raise ValueError for a line that is wrong."""
    found: dict[str, str] = {}
    name = printable(str(path))
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            image, caption = values["image"], values["caption"]
        except (ValueError, KeyError, TypeError, RecursionError):
            image = caption = None
        if not isinstance(image, str) or not isinstance(caption, str):
            raise ValueError(f'{name}:{number} is not a correction; expected {{"image": "a.jpg", "caption": "..."}}')
        text = " ".join(caption.split())
        if not text or not text.isprintable() or len(text) > LONGEST:
            raise ValueError(f"{name}:{number}: the caption must be a printable text of 1 to {LONGEST} letters")
        found[image] = text
    return found


def _lines(path: Path) -> Iterator[bytes]:
    try:
        for _, line in files.read_lines(path, longest=_MAX_LINE, most=_MAX_BYTES):
            yield line
    except OSError as error:
        raise ValueError(f"cannot read {printable(str(path))}: {(error.strerror or str(error)).lower()}") from None


def store_corrections(out: Path, corrections: Mapping[str, str]) -> None:
    """Add corrections to those of a folder; what is said of an image last counts."""
    target = out / CORRECTIONS
    refuse_link(target)
    known = read_corrections(target) if target.exists() else {}
    with replacing(target) as file:
        for image, caption in {**known, **corrections}.items():
            file.write(to_line({"image": image, "caption": caption}))


def apply_corrections(out: Path) -> Applied:
    """Take a folder's corrections over into its record, which is written anew only where that changes it."""
    target = out / CORRECTIONS
    if not target.exists():
        return Applied(0, ())
    refuse_link(target)
    corrections = read_corrections(target)
    names = _match(corrections, out)
    records = {image: corrections[given] for given, image in names.items()}
    changed = [line for line in read_lines(out / CAPTIONS) if _differs(line.record, records)]
    if changed:
        with replacing(out / CAPTIONS) as file:
            for line in read_lines(out / CAPTIONS):
                caption = records.get(line.record["file_name"])
                file.write(to_line(line.record if caption is None else corrected(line.record, caption)))
    return Applied(len(names), tuple(name for name in corrections if name not in names))


def _match(corrections: Mapping[str, str], out: Path) -> dict[str, str]:
    """Return the record's name of each image that a correction names, without those that it names of none or of two."""
    ends: dict[str, list[str]] = {}
    exact: set[str] = set()
    wanted = {name.rpartition("/")[2] for name in corrections}
    for line in read_lines(out / CAPTIONS):
        name = line.record["file_name"]
        if name in corrections:
            exact.add(name)
        if (end := name.rpartition("/")[2]) in wanted:
            ends.setdefault(end, []).append(name)
    found: dict[str, str] = {}
    for given in corrections:
        alone = ends.get(given, [])
        if given in exact:
            found[given] = given
        elif len(set(alone)) == 1:
            found[given] = alone[0]
    return found


def _differs(record: Record, captions: Mapping[str, str]) -> bool:
    caption = captions.get(record["file_name"])
    return caption is not None and (record["text"] != caption or not record.get("corrected"))


def corrected(record: Record, caption: str) -> Record:
    """Return a record with the caption that somebody chose or wrote, marked `corrected`.

    A caption that the model gave too, among the alternatives, changes places with the first, and keeps its words and
    attention. Another is the `text` beside the model's words, and `model_text` is what the model said.
    """
    found = {**record, "corrected": True}
    found["text"] = found.pop("model_text", found["text"])  # as the model had it
    alternatives = list(found.get("alternatives", ()))
    place = next((place for place, other in enumerate(alternatives) if other["text"] == caption), None)
    if found["text"] == caption:
        return found
    if place is None:
        return {**found, "text": caption, "model_text": found["text"]}
    chosen = alternatives[place]
    mine = (*chosen, *(["confidence"] if "confidence" not in chosen else []))
    alternatives[place] = {key: found[key] for key in mine if key in found}
    swapped = {**found, **chosen, "alternatives": alternatives}
    if "confidence" not in chosen:  # it is of the model's first
        swapped.pop("confidence", None)
    return swapped


def written_caption(record: Record) -> str | None:
    """Return the caption that somebody wrote for the image of a record, None where it is one of the model's."""
    return str(record["text"]) if record.get("corrected") and "model_text" in record else None


def embed_corrections(out: Path, written: WrittenFiles) -> None:
    """Put the corrected captions of a folder's record into the images that hold the model's.

    Others are not changed: those without a caption of the program's, and those that are not the image of the record.
    The record is written anew where an image is, as it tells the image's size, time and hash.
    """
    changed: dict[str, Record] = {}
    for line in read_lines(out / CAPTIONS):
        source = Source(line.name, Path(line.name))
        if not line.record.get("corrected") or not written.knows(source.path) or not source.path.is_file():
            continue
        with suppress(ImageError, NoPlaceError):
            embedded = _embed(source, line.record, written)
            if embedded is not None:
                changed[line.name] = {**line.record, "file": embedded}
    if changed:
        with replacing(out / CAPTIONS) as file:
            for line in read_lines(out / CAPTIONS):
                file.write(to_line(changed.get(line.name, line.record)))


def _embed(source: Source, record: Record, written: WrittenFiles) -> dict[str, Any] | None:
    """Put a record's caption into its image, and return the stamp of what is there then; None where nothing changed."""
    source, _ = source.read()
    stamp = record.get("file") or {}
    if source.stamp is None or stamp.get("digest") != source.stamp.digest:
        return None
    text = record["text"]
    written.note(source.path, digest(text.encode()))
    embedded, says = embed_caption(source, text, lambda said: written.is_noted(source.path, digest(said.encode())))
    note_embedded(written, embedded)
    if not says:
        written.left.append(source.path)
    return embedded.stamp.to_dict() if embedded.stamp not in (None, source.stamp) else None


def correct_folder(
    out: Path, path: Path, finish: Callable[[Derived], None] = lambda derived: None, *, embed: bool = False
) -> Applied:
    """Take corrections over into a folder's record, and bring the tables and sidecars that are there up to date.

    `finish` brings up to date what other rooms make of the record; `embed` puts corrected captions into the images
    that hold captions of the program. Raises ValueError, and changes nothing, where no correction is of an image in
    the record.
    """
    corrections = read_corrections(path)
    if not (out / CAPTIONS).is_file():
        raise ValueError(f"{out / CAPTIONS} is not there; caption the images into {out} first")
    with OutputFolder(out) as folder:
        folder.recover()
        if not _match(corrections, out):
            name = printable(str(path))
            raise ValueError(f"none of the {len(corrections):,} images in {name} has a caption in {out}")
        store_corrections(out, corrections)
        applied = apply_corrections(out)
        derived = Derived(out)
        if embed:
            embed_corrections(out, derived.written)
        derived.bring_up_to_date(())
        finish(derived)
    return replace(applied, left=tuple(dict.fromkeys(map(str, derived.written.left))))
