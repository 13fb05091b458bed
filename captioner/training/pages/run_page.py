"""The page of one run, run.html: curves, samples with attention by epoch, settings, time left; refreshed as it goes."""

from __future__ import annotations

import html
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from captioner.evaluation.report.html import Html, join, section, tag
from captioner.evaluation.tables import label
from captioner.files import open_regular, write_whole
from captioner.training.log import Line, is_validation, read_log
from captioner.training.pages.page import make_page, run_charts, sample_figure
from captioner.training.pages.series import RunCurves
from captioner.training.recipe import Recipe, to_yaml
from captioner.training.run_folder import RunFolder

PAGE = "run.html"
EVERY = 10.0  # seconds from one writing to the next
STATES = {
    "training": "training",
    "finished": "finished",
    "stopped": "stopped; --resume continues it",
    "failed": "ended with an error",
}


@dataclass(frozen=True)
class Length:
    """How long a run is: epochs and steps in all."""

    epochs: int
    steps: int


class RunPage:
    """Writes run.html into a run folder: at first, after each validation, every few seconds, and in the end."""

    def __init__(self, folder: Path, recipe: Recipe, length: Length) -> None:
        self.folder, self.recipe, self.length = folder, recipe, length
        self.curves = RunCurves(read_log(folder / "log.jsonl"))
        self.first_step, self.epoch = self.curves.step, 0
        self.began = self.written = time.monotonic()
        self.sizes: dict[str, tuple[int, int] | None] = {}
        self.write("training")

    def log(self, line: Line) -> None:
        """Take a line of the log."""
        self.curves.add(line)
        self.epoch = line["epoch"]
        if is_validation(line) or time.monotonic() - self.written > EVERY:
            self.write("training")

    def close(self) -> None:
        """Do nothing: `write` tells how a run ended."""

    def write(self, state: str) -> None:
        """Write the page, with one of `STATES`."""
        self.written = time.monotonic()
        name = self.folder.resolve().name
        sections = [
            self._head(name, state),
            section("curves", "Curves", tag("div", *run_charts(self.curves), class_="charts"))
            if self.curves.series
            else tag("p", "Nothing is logged yet: the first step is under way.", class_="muted"),
            self._samples(),
            section(
                "settings",
                "Settings",
                tag("pre", Html(html.escape(to_yaml(self.recipe))), class_="settings", tabindex=0),
            ),
        ]
        refresh = f"{EVERY:.0f}" if state == "training" else None
        body = tag("main", join(sections, "\n"), data_refresh=refresh, data_written=f"{time.time():.0f}")
        write_whole(self.folder / PAGE, make_page(f"{name}, {state}", body), sync=False)

    def _head(self, name: str, state: str) -> Html:
        steps, done = self.length.steps, self.curves.step
        facts: dict[str, str] = {"step": f"{done:,} of {steps:,}"}
        if self.epoch:
            facts = {"epoch": f"{self.epoch} of {self.length.epochs}", **facts}
        metric = self.recipe.validation.metric
        if (best := self.curves.best(metric)) is not None:
            facts[f"best {label(metric)}"] = f"{best[0]:.1f}, epoch {best[1]}"
        seconds = time.monotonic() - self.began
        facts["running for" if state == "training" else "ran for"] = _duration(seconds)
        trained = done - self.first_step
        if state == "training" and trained:
            facts["time left"] = f"about {_duration(seconds / trained * max(0, steps - done))}"
        speed = self.curves.series.get("train/captions_per_second")
        if speed is not None:
            facts["captions per second"] = f"{speed.points()[-1][1]:,.0f}"
        entries = (tag("div", tag("dt", key), tag("dd", value)) for key, value in facts.items())
        written = time.strftime("%Y-%m-%d %H:%M:%S")
        return tag(
            "header",
            tag("h1", tag("bdi", name), tag("span", STATES[state], class_="state")),
            tag("progress", value=str(min(done, steps)), max=str(max(1, steps)), aria_label="steps done"),
            tag("p", f"Written {written}. ", tag("span", "", class_="news"), class_="muted"),
            tag("dl", *entries, class_="facts"),
        )

    def _samples(self) -> Html:
        epochs = self.curves.samples()
        if not epochs:
            return Html()
        groups, last = [], max(epochs)
        for epoch, samples in epochs.items():
            shown = (sample_figure(each, each["overlay"], self._size(each["overlay"])) for each in samples)
            hidden = None if epoch == last else "hidden"
            groups.append(tag("div", *shown, class_="epoch", data_epoch=epoch, hidden=hidden))
        slider = tag("input", type="range", min=0, max=len(groups) - 1, value=len(groups) - 1, aria_label="epoch")
        chooser = tag("div", tag("output", f"epoch {last}"), *([slider] if len(groups) > 1 else []), class_="epochs")
        about = "Captions of some validation images after each validation, and where the model looked for each word."
        return section("samples", "Samples", tag("p", about, class_="muted"), chooser, *groups)

    def _size(self, overlay: str | None) -> tuple[int, int] | None:
        """Return the width and height of a word grid, so that the page does not jump while it loads."""
        if overlay is not None and overlay not in self.sizes:
            self.sizes[overlay] = png_size(self.folder / overlay)
        return self.sizes[overlay] if overlay is not None else None


@contextmanager
def showing(run: RunFolder, recipe: Recipe, length: Length, stopped: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Keep run.html up to date with the log, and let it tell in the end how the run ended."""
    page = RunPage(run.folder, recipe, length)
    run.trackers.append(page)
    state = "failed"
    try:
        yield
        state = "finished"
    except stopped:
        state = "stopped"
        raise
    finally:
        page.write(state)


def png_size(path: Path) -> tuple[int, int] | None:
    """Return the width and height that a PNG file begins with; None where there is no such file."""
    try:
        with open_regular(path) as file:
            width, height = struct.unpack(">16x2I", file.read(24))
    except (OSError, ValueError, struct.error):
        return None
    return width, height


def _duration(seconds: float) -> str:
    """Return a time as people say it: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
