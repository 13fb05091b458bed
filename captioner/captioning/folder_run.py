"""Captioning a collection into a folder, by one process or several; interrupted at any moment, it resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from captioner.captioning.caption import Result
from captioner.captioning.captioner import Captioner, caption_sources
from captioner.captioning.options import CaptionOptions, OutputOptions
from captioner.captioning.output_folder import OutputFolder
from captioner.captioning.outputs import write_beside, write_coco, write_csv, write_sidecars
from captioner.captioning.records import CAPTIONS, Origin, caption_record, error_record, read_lines
from captioner.images.finding import Source, is_in_share, name_key
from captioner.processes import Processes

Found = TypeVar("Found")


@dataclass(frozen=True)
class Report:
    """What a run did, all processes together: images found, captioned, skipped and failed, and how long it took."""

    found: int
    captioned: int
    skipped: int
    failed: int
    seconds: float


class Pictures(Protocol):
    """What is drawn of a folder's captions by rooms that can draw; captioning itself cannot."""

    def is_drawn(self, source: Source) -> bool:
        """Tell whether all that is drawn of one image is there."""

    def draw(self, results: Iterator[Result]) -> Iterator[Result]:
        """Draw each result and pass it on, in order; one that cannot be drawn has failed."""

    def finish(self) -> None:
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
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Caption the images that the record in `out` does not hold yet, and bring what is derived from it up to date.

    Each of several processes gives the same sources, of which it takes its share, and the first puts together what
    they have found. `pictures` of an image are there before its record, which says that all is done. `listen` is told
    what came of each image that was tried, `progress` how many are done with. Sources are looked for only once the
    folder is there.
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
        folder.close_files()
        folder.wait_for_others()
        outcomes = _meet(lambda: processes.gather(run.outcome()))
        if processes.is_first:
            failed = {key for outcome in outcomes for key in outcome.failed}
            folder.put_together(failed, anew=any(outcome.anew for outcome in outcomes))
            _derive(out, output)
            if pictures is not None:
                pictures.finish()
        _meet(processes.wait)
        if output.beside:
            run.write_beside()
    return Report(
        outcomes[0].found,
        sum(outcome.captioned for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum(len(outcome.failed) for outcome in outcomes),
        max(outcome.seconds for outcome in outcomes),
    )


def _meet(meeting: Callable[[], Found]) -> Found:
    """Return what comes of meeting the other processes; raise ValueError where one was killed."""
    try:
        return meeting()
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "")
        raise ValueError(f"another process ended early; run the same command again to resume ({first})") from None


def _derive(out: Path, output: OutputOptions) -> None:
    for format, write in (("csv", write_csv), ("coco", write_coco), ("txt", write_sidecars)):
        if format in output.formats:
            write(out)


@dataclass(frozen=True)
class _Outcome:
    """What one process did, and what the first must know to put the parts together."""

    found: int
    captioned: int
    skipped: int
    failed: tuple[bytes, ...]  # keys
    anew: bool  # records were replaced
    seconds: float


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
        progress: Callable[[int], None],
    ) -> None:
        self.folder, self.model, self.options, self.output = folder, model, options, output
        self.pictures, self.listen, self.progress = pictures, listen, progress
        self.origin = Origin(model.digest, options.identity(), output.attention, options.heads)
        self.known = folder.read_known(self.origin, output.existing)
        self.found = self.captioned = self.skipped = 0
        self.failed: list[bytes] = []
        self.files: set[bytes] = set()  # keys of the images that are files of their own
        self.anew = folder.repeated
        self.seconds = 0.0

    def caption(self, sources: Iterable[Source]) -> None:
        """Caption what is not done, and record it."""
        started = time.monotonic()
        results = caption_sources(self.model, self._pending(sources), self.options)
        for result in results if self.pictures is None else self.pictures.draw(results):
            if result.error is None:
                self.folder.add_caption(caption_record(result.name, result.captions, self.origin))
                self.captioned += 1
            else:
                self.folder.add_error(error_record(result.name, result.error.reason))
                self.failed.append(result.source.key)
            self.listen(result)
            self._advance()
        self.seconds = time.monotonic() - started

    def _pending(self, sources: Iterable[Source]) -> Iterator[Source]:
        for source in sources:
            self.found += 1
            key = source.key
            if not is_in_share(key, self.folder.rank, self.folder.count):
                continue
            if self.output.beside and source.offset is None:
                self.files.add(key)
            if self.known.get(key) and (self.pictures is None or self.pictures.is_drawn(source)):
                self.skipped += 1
                self._advance()
            else:
                self.anew |= key in self.known
                yield source

    def _advance(self) -> None:
        self.progress(self.captioned + self.skipped + len(self.failed))

    def outcome(self) -> _Outcome:
        """Return what was done."""
        return _Outcome(self.found, self.captioned, self.skipped, tuple(self.failed), self.anew, self.seconds)

    def write_beside(self) -> None:
        """Write a text file beside each image of this run that is a file and has a caption."""
        problems = []
        for line in read_lines(self.folder.path / CAPTIONS):
            if name_key(line.name) in self.files:
                try:
                    write_beside(Path(line.name), line.record["text"], overwrite=self.output.existing == "overwrite")
                except OSError as error:
                    problems.append(error)
        if problems:
            raise ValueError(f"{len(problems):,} text files cannot be written beside their images: {problems[0]}")
