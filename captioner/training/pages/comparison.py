"""Several runs on one page: how far they came, the settings in which they differ, curves and samples side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from captioner.evaluation.report.html import Html, join, section, table, tag
from captioner.evaluation.report.inline_charts import jpeg
from captioner.evaluation.tables import ABSENT, label
from captioner.files import write_whole
from captioner.images.opening import ImageError, open_image
from captioner.model.bundled import distinct_names
from captioner.training.log import Line, read_log
from captioner.training.pages.page import compared_charts, make_page, sample_figure
from captioner.training.pages.series import RunCurves
from captioner.training.recipe import Recipe, load_recipe
from captioner.training.resuming import differences

WIDEST = 1000  # pixels of a word grid on the page, which holds all of them


@dataclass(frozen=True)
class Run:
    """One run to be compared: its name on the page, settings and curves."""

    name: str
    folder: Path
    recipe: Recipe
    curves: RunCurves

    def best_samples(self) -> tuple[int, list[Line]] | None:
        """Return the epoch of the best score that has samples, and these; None where none was drawn."""
        samples = self.curves.samples()
        best = self.curves.best(self.recipe.validation.metric)
        if not samples:
            return None
        epoch = best[1] if best and best[1] in samples else max(samples)
        return epoch, samples[epoch]


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs, finished or under way; a ValueError names the folder that holds none."""
    for folder in folders:
        if not (folder / "log.jsonl").is_file() or not (folder / "settings.yaml").is_file():
            what = "holds no training run" if folder.is_dir() else "is not there"
            raise ValueError(f"{folder} {what}; expected a folder with settings.yaml and log.jsonl, such as runs/tiny")
    names = distinct_names([folder.resolve().name for folder in folders])
    return [
        Run(name, folder, load_recipe(folder / "settings.yaml"), RunCurves(read_log(folder / "log.jsonl")))
        for name, folder in zip(names, folders, strict=True)
    ]


def write_comparison(folders: Sequence[Path], path: Path) -> None:
    """Write a page that compares the runs in folders; it holds all that it shows."""
    runs = load_runs(folders)
    title = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs"
    charts = compared_charts({run.name: run.curves for run in runs})
    body = join(
        [
            tag("header", tag("h1", tag("bdi", title))),
            section("runs", "Runs", _scores(runs), _settings(runs)),
            section("curves", "Curves", tag("div", *charts, class_="charts")) if charts else Html(),
            _samples(runs),
        ],
        "\n",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, make_page(title, tag("main", body)))


def _scores(runs: Sequence[Run]) -> Html:
    rows = []
    for run in runs:
        metric = run.recipe.validation.metric
        best = run.curves.best(metric)
        of_best = [line for line in run.curves.validations if best is not None and line["epoch"] == best[1]]
        numbers = [
            f"{sum(line[key] for line in of_best) / len(of_best):.{digits}f}"
            if of_best and key in of_best[0]
            else ABSENT
            for key, digits in (("bleu1", 1), ("bleu4", 1), ("cider", 1), ("validation_loss", 3))
        ]
        last = run.curves.validations[-1]["epoch"] if run.curves.validations else ABSENT
        rows.append([run.name, f"{run.curves.step:,}", str(last), str(best[1]) if best else ABSENT, *numbers])
    head = ("run", "steps", "epochs", "best epoch", label("bleu1"), label("bleu4"), label("cider"), "loss")
    return table("The best epoch of each run by its own metric, on its validation images", head, rows, class_="scores")


def _settings(runs: Sequence[Run]) -> Html:
    """Return the settings in which the runs differ from the first, one row each."""
    keys: dict[str, dict[str, str]] = {}
    for run in runs[1:]:
        for key, value, first in differences(run.recipe, runs[0].recipe):
            row = keys.setdefault(key, dict.fromkeys((each.name for each in runs), _shown(first)))
            row[run.name] = _shown(value)
    if not keys:
        return tag("p", "All settings are the same.")
    rows = [[key, *values.values()] for key, values in keys.items()]
    columns = range(len(runs) + 1)
    head = ("setting", *(run.name for run in runs))
    return table("Settings in which they differ", head, rows, class_="differences", wide=columns)


def _shown(value: object) -> str:
    return ABSENT if value is None else str(value)


def _samples(runs: Sequence[Run]) -> Html:
    """Return what each run says of the same images, at its best epoch."""
    by_image: dict[str, list[Html]] = {}
    for run in runs:
        epoch, samples = run.best_samples() or (0, [])
        for sample in samples:
            shown = sample_figure(sample, *_picture(run.folder, sample), label=f"{run.name}, epoch {epoch}")
            by_image.setdefault(sample["image"], []).append(shown)
    if not by_image:
        return Html()
    groups = [tag("div", *figures, class_="same") for figures in by_image.values()]
    return section("samples", "Samples", tag("p", "At the best epoch of each run.", class_="muted"), *groups)


def _picture(folder: Path, sample: Line) -> tuple[str | None, tuple[int, int] | None]:
    """Return the word grid of a sample as a data URI, and its size."""
    if sample["overlay"] is None:
        return None, None
    try:
        picture = open_image(folder / sample["overlay"])
    except ImageError:
        return None, None
    picture.thumbnail((WIDEST, WIDEST))
    return jpeg(picture), picture.size
