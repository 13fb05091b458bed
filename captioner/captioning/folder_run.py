"""Captioning a collection into a folder, by one process or several; interrupted at any moment, it resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from captioner.captioning.caption import Result
from captioner.captioning.captioner import Captioner
from captioner.captioning.collection import caption_sources
from captioner.captioning.corrections import apply_corrections, embed_corrections, store_corrections
from captioner.captioning.options import CaptionOptions, OutputOptions
from captioner.captioning.output.derived import Derived
from captioner.captioning.output.embedding import NoPlaceError, embed_caption, is_embedded, note_embedded
from captioner.captioning.output.folder import OutputFolder
from captioner.captioning.records import CAPTIONS, Origin, caption_record, error_record, read_lines
from captioner.files import digest
from captioner.images.key_set import KeySet
from captioner.images.opening import ImageError
from captioner.images.sources import Source, is_in_share, name_key
from captioner.model.confidence import is_low
from captioner.processes import Processes

Found = TypeVar("Found")


@dataclass(frozen=True)
class Report:
    """What a run did, all processes together: images found, captioned, skipped and failed, and how long it took.

    `gone` images were forgotten; `left` are the files that others wrote, or changed, and that stayed as they are.
    `low` of the captions made are of low confidence. `no_place` are images that captions cannot be put into, and why.
    """

    found: int
    captioned: int
    skipped: int
    failed: int
    seconds: float
    gone: int = 0
    left: tuple[str, ...] = ()
    low: int = 0
    no_place: tuple[str, ...] = ()


class Pictures(Protocol):
    """What is drawn of a folder's captions by rooms that can draw; captioning itself cannot."""

    def is_drawn(self, source: Source) -> bool:
        """Tell whether all that is drawn of one image is there."""

    def draw(self, results: Iterator[Result]) -> Iterator[Result]:
        """Draw each result and pass it on, in order; one that cannot be drawn has failed."""

    def finish(self, derived: Derived) -> None:
        """Draw what is of all captions together, once the record is whole."""


def caption_into(
    out: Path,
    model: Captioner,
    sources: Iterable[Source],
    options: CaptionOptions,
    output: OutputOptions,
    *,
    pictures: Pictures | None = None,
    processes: Processes | None = None,
    listen: Callable[[Result], None] = lambda result: None,
    progress: Callable[[int, int], None] = lambda done, skipped: None,
    covers: Callable[[str], bool] = lambda name: False,
) -> Report:
    """Caption the images that the record in `out` does not hold yet, and bring what is derived from it up to date.

    Each of several processes gives the same sources, of which it takes its share, and the first puts together what
    they have found. `pictures` of an image are there before its record, which says that all is done. `listen` is told
    what came of each image that was tried, `progress` how many are done with and how many of these were done before.
    Sources are looked for only once the folder is there. An image is gone if the sources would have had it, as `covers`
    tells by its name, and it is not there.
    """
    processes = processes or Processes()
    with OutputFolder(out, processes.rank, processes.count) as folder:
        if processes.is_first:
            folder.recover()
        _meet(processes.wait)
        run = _Run(folder, model, options, output, pictures, listen, progress)
        folder.open_files()
        _meet(processes.wait)
        run.caption(sources)
        run.look_for_gone(covers)
        folder.close_files()
        folder.wait_for_others()
        outcomes = _meet(lambda: processes.gather(run.outcome()))
        gone = [name for outcome in outcomes for name in outcome.gone]
        if processes.is_first:
            failed = {key for outcome in outcomes for key in outcome.failed}
            anew = any(outcome.anew for outcome in outcomes)
            folder.put_together(failed, anew=anew, gone=set(map(name_key, gone)))
            if output.corrections:
                store_corrections(out, output.corrections)
            apply_corrections(out)
            if output.embed:
                embed_corrections(out, run.derived.written)
            for name in gone:
                run.derived.forget(name)
            run.derived.bring_up_to_date(output.formats)
            if pictures is not None:
                pictures.finish(run.derived)
        _meet(processes.wait)
        run.write_beside()
        left = _meet(lambda: processes.gather([str(path) for path in run.derived.written.left]))
    return Report(
        outcomes[0].found,
        sum(outcome.captioned for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum(len(outcome.failed) for outcome in outcomes),
        max(outcome.seconds for outcome in outcomes),
        len(gone),
        tuple(dict.fromkeys(path for paths in left for path in paths)),
        sum(outcome.low for outcome in outcomes),
        tuple(reason for outcome in outcomes for reason in outcome.no_place),
    )


def _meet(meeting: Callable[[], Found]) -> Found:
    """Return what comes of meeting the other processes; raise ValueError where one was killed."""
    try:
        return meeting()
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "")
        raise ValueError(f"another process ended early; run the same command again to resume ({first})") from None


@dataclass(frozen=True)
class _Outcome:
    """What one process did, and what the first must know to put the parts together."""

    found: int
    captioned: int
    skipped: int
    failed: tuple[bytes, ...]  # keys
    gone: tuple[str, ...]  # names
    anew: bool  # records were replaced
    seconds: float
    low: int
    no_place: tuple[str, ...]


class _Run:
    """One process's share of a run."""

    def __init__(
        self,
        folder: OutputFolder,
        model: Captioner,
        options: CaptionOptions,
        output: OutputOptions,
        pictures: Pictures | None,
        listen: Callable[[Result], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self.folder, self.model, self.options, self.output = folder, model, options, output
        self.pictures, self.listen, self.progress = pictures, listen, progress
        self.origin = Origin(
            model.digest,
            options.identity(),
            output.attention,
            options.heads,
            name=model.name,
            wording=output.wording.identity(),
            needed=output.needed,
        )
        self.known = folder.read_known(self.origin, output.existing)
        self.derived = Derived(folder.path, output.naming)
        self.found = self.captioned = self.skipped = self.low = 0
        self.failed: list[bytes] = []
        self.gone: list[str] = []
        self.no_place: list[str] = []  # images that captions cannot be put into, and why
        self.seen = KeySet()  # keys of the images of this share, where some may be forgotten
        self.files = KeySet()  # keys of those that are files of their own, where these are written to or beside
        self.anew = folder.repeated
        self.seconds = 0.0

    def caption(self, sources: Iterable[Source]) -> None:
        """Caption what is not done, and record it."""
        started = time.monotonic()
        results = caption_sources(self.model, self._pending(sources), self.options, stamped=self.output.stamped)
        for result in results if self.pictures is None else self.pictures.draw(results):
            if result.error is None:
                result = self._record(result)
            if result.error is None:
                self.captioned += 1
                self.low += is_low(result.captions[0].confidence)
            else:
                self.folder.add_error(error_record(result.name, result.error.reason))
                self.failed.append(result.source.key)
            self.listen(result)
            self._advance()
        self.seconds = time.monotonic() - started

    def _record(self, result: Result) -> Result:
        """Record what came of an image, and return it; one that cannot take its caption has failed."""
        wording = self.output.wording
        captions = [replace(caption, text=wording.apply(caption.text)) for caption in result.captions]
        source = result.source
        if self.output.embed:
            try:
                source = self._embed(source, captions[0].text)
            except ImageError as error:
                return Result.failed(source, error.reason)
        stamp = source.stamp.to_dict() if source.stamp is not None else None
        self.folder.add_caption(caption_record(result.name, captions, self.origin, stamp))
        return result

    def _embed(self, source: Source, text: str) -> Source:
        """Put a caption into its image, and return the image as it is then."""
        written = self.derived.written
        if source.offset is not None or source.contents is not None:
            return source
        written.note(source.path, digest(text.encode()))
        try:
            embedded, says = embed_caption(
                source, text, lambda said: written.is_noted(source.path, digest(said.encode()))
            )
        except NoPlaceError as error:
            self.no_place.append(f"{source.name}: {error}")
            embedded, says = source, True
        note_embedded(written, embedded)
        if not says:
            written.left.append(source.path)
        return embedded

    def _pending(self, sources: Iterable[Source]) -> Iterator[Source]:
        for source in sources:
            self.found += 1
            source = self.known.spelt_as_before(source)
            key = source.key
            if not is_in_share(key, self.folder.rank, self.folder.count):
                continue
            if self.output.prune:
                self.seen.add(key)
            if (self.output.embed or self.output.beside_kinds) and source.offset is None and source.contents is None:
                self.files.add(key)
            if self._is_done(source):
                self.skipped += 1
                self._advance()
            else:
                self.anew |= key in self.known.stamps
                yield source

    def _is_done(self, source: Source) -> bool:
        """Tell whether everything is there that this run would make of an image."""
        if not self.known.stays(source):
            return False
        if self.output.embed and source.key in self.files:
            contents = (self.known.stamps[source.key] or b"")[16:].hex()
            if not is_embedded(self.derived.written, source.path, contents):
                return False
        return self.pictures is None or self.pictures.is_drawn(source)

    def _advance(self) -> None:
        self.progress(self.captioned + self.skipped + len(self.failed), self.skipped)

    def look_for_gone(self, covers: Callable[[str], bool]) -> None:
        """Find the images of the record that are gone, where they are to be forgotten."""
        if self.output.prune:
            for line in read_lines(self.folder.path / CAPTIONS):
                key = name_key(line.name)
                is_here = is_in_share(key, self.folder.rank, self.folder.count)
                if is_here and key not in self.seen and covers(line.name) and not os.path.lexists(line.name):
                    self.gone.append(line.name)

    def outcome(self) -> _Outcome:
        """Return what was done."""
        done = (self.found, self.captioned, self.skipped)
        failed, gone, no_place = tuple(self.failed), tuple(self.gone), tuple(self.no_place)
        return _Outcome(*done, failed, gone, self.anew, self.seconds, self.low, no_place)

    def write_beside(self) -> None:
        """Write the sidecars beside each image of this run that is a file and has a caption."""
        kinds = self.output.beside_kinds
        problems = []
        for line in read_lines(self.folder.path / CAPTIONS) if kinds else ():
            if name_key(line.name) in self.files:
                try:
                    for kind in kinds:
                        self.derived.sidecars.write_beside(Path(line.name), kind, line.record["text"])
                except OSError as error:
                    problems.append(error)
        if problems:
            raise ValueError(f"{len(problems):,} sidecars cannot be written beside their images: {problems[0]}")
