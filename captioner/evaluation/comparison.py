"""Evaluations side by side, with the paper's scores and people's: one table as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.evaluation.coco_results import RESULTS, write_image_scores, write_results
from captioner.evaluation.metrics.bootstrap import SIGNIFICANT, Difference, Interval
from captioner.evaluation.scoring import Evaluation, Protocol
from captioner.evaluation.tables import ABSENT, LABELS, Table, escape_markdown, json_text, label
from captioner.files import printable, write_whole

if TYPE_CHECKING:
    from captioner.evaluation.analysis.analysis import Analysis

PAPER_METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")
PAPER = {
    "Flickr8k": {"soft": (67.0, 44.8, 29.9, 19.5, 18.93), "hard": (67.0, 45.7, 31.4, 21.3, 20.30)},
    "Flickr30k": {"soft": (66.7, 43.4, 28.8, 19.1, 18.49), "hard": (66.9, 43.9, 29.6, 19.9, 18.46)},
    "COCO": {"soft": (70.7, 49.2, 34.4, 24.3, 23.90), "hard": (71.8, 50.4, 35.7, 25.0, 23.04)},
}
TEST_IMAGES = {"Flickr8k": 1000, "Flickr30k": 1000, "COCO": 5000}


@dataclass(frozen=True)
class PaperRows:
    """What the paper reports on a data set: scores in per cent by row, and how its images differ from ours."""

    rows: dict[str, dict[str, float]]
    note: str | None


def find_paper_rows(data: str, format: str, split: str, images: int) -> PaperRows | None:
    """Return the paper's rows for a data set by its name and format; None where the paper has none.

    The note tells where our `split` of so many `images` is not the test set that the paper's scores are of.
    """
    known = _known_name(data, format)
    if known is None:
        return None
    rows = {
        f"Xu et al. (2015), {mode}": dict(zip(PAPER_METRICS, scores, strict=True))
        for mode, scores in PAPER[known].items()
    }
    # The official lists of Flickr8k have Karpathy's test images; the other two have no test captions of their own.
    theirs = "the official" if known == "Flickr8k" else "Karpathy's"
    is_theirs = format == "karpathy" or (known == "Flickr8k" and format == "flickr8k")
    if is_theirs and split == "test" and images == TEST_IMAGES[known]:
        return PaperRows(rows, None)
    ours = f"{images:,} images of {split}" + ("" if is_theirs else f" as {format} has it")
    note = f"the paper's scores are on {theirs} test split of {known} ({TEST_IMAGES[known]:,} images), the others on "
    return PaperRows(rows, note + ours)


def _known_name(data: str, format: str) -> str | None:
    # "COCO 2017", "flickr8k (Karpathy)"; the name of a user's folder, in the other formats, proves little.
    if format == "captions-txt":
        return next((known for known in PAPER if data.lower() == known.lower()), None)
    names = PAPER if format != "metadata" else ()
    return next((known for known in names if data.lower().split()[0] == known.lower()), None)


METRICS, COMPARISON = "metrics.json", "comparison"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Evaluations of the same images; all are compared with the first.

    `humans` and the `paper`'s rows stand beside them, uncompared. `missing` tells what could not be computed;
    `analysis` is what was found beyond scores.
    """

    protocol: Protocol
    evaluations: tuple[Evaluation, ...]
    humans: Evaluation | None = None
    paper: PaperRows | None = None
    missing: str | None = None
    analysis: Analysis | None = None

    @property
    def rows(self) -> tuple[Evaluation, ...]:
        """All evaluations, people's last."""
        return self.evaluations if self.humans is None else (*self.evaluations, self.humans)

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The scores in per cent, by the name of the row and of the metric."""
        return {row.name: row.scores for row in self.rows}

    @property
    def intervals(self) -> dict[str, dict[str, Interval]]:
        """The intervals of the scores, by the name of the row and of the metric."""
        return {row.name: row.intervals() for row in self.rows}

    def __str__(self) -> str:
        return self.to_text()

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain values for JSON."""
        rows = [row.to_dict() for row in self.rows]
        for row, evaluation in list(zip(rows, self.evaluations, strict=False))[1:]:
            differences = evaluation.against(self.evaluations[0])
            row["against"] = {
                "name": self.evaluations[0].name,
                "differences": {name: _plain(each) for name, each in differences.items()},
            }
        return {"protocol": asdict(self.protocol), "rows": rows, **self._beside()}

    def of(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return what is known of one of the evaluations, in plain values for JSON."""
        return {**evaluation.to_dict(), "protocol": asdict(self.protocol), **self._beside()}

    def _beside(self) -> dict[str, Any]:
        return {"paper": None if self.paper is None else asdict(self.paper), "missing": self.missing}

    def to_text(self) -> str:
        """Return the tables and the protocol for a terminal."""
        tables = [self.scores_table(), self.differences_table(), self.diversity_table()]
        sections = [
            *(table.to_text() for table in tables if table is not None),
            "\n".join(self.notes()),
            Table(self.protocol_lines(), wide=(0, 1)).to_text(),
        ]
        return "\n\n".join(sections) + "\n"

    def to_markdown(self) -> str:
        """Return the tables and the protocol as Markdown."""
        tables = [self.scores_table(), self.differences_table(), self.diversity_table()]
        sections = [
            f"## {escape_markdown(self._title())}",
            *(table.to_markdown() for table in tables if table is not None),
            "\n".join(f"- {escape_markdown(note)}" for note in self.notes()),
            Table((("protocol", ""), *self.protocol_lines()), wide=(0, 1)).to_markdown(),
        ]
        return "\n\n".join(sections) + "\n"

    def _title(self) -> str:
        return f"{printable(self.protocol.data)}, {printable(self.protocol.split)}"

    def metrics(self) -> list[str]:
        """Return the names of the scores that there are, in the order of the columns."""
        found = dict.fromkeys(name for row in self.rows for name in row.scores)
        return [*(name for name in LABELS if name in found), *(name for name in found if name not in LABELS)]

    def scores_table(self) -> Table:
        """Return scores with half the width of their intervals, ours, then people's, then the paper's."""
        metrics = self.metrics()
        rows = [self._head(self._title())]
        for row in self.rows:
            intervals, differs = row.intervals(), self._differing(row)
            marks = {name: f"±{each.margin:.1f}{'*' * (name in differs)}" for name, each in intervals.items()}
            rows.append((printable(row.name), *(_cell(row.scores.get(name), marks.get(name, "")) for name in metrics)))
        for name, scores in (self.paper.rows if self.paper else {}).items():
            rows.append((name, *(_cell(scores.get(metric)) for metric in metrics)))
        return Table(rows)

    def _head(self, title: str) -> tuple[str, ...]:
        return (title, *map(label, self.metrics()))

    def _differing(self, evaluation: Evaluation) -> set[str]:
        """Return the scores in which an evaluation differs from the first."""
        if evaluation not in self.evaluations[1:]:
            return set()
        differences = evaluation.against(self.evaluations[0])
        return {name for name, each in differences.items() if each.is_significant}

    def differences_table(self) -> Table | None:
        """Return how the others differ from the first, their intervals and p values; None where there is but one."""
        if len(self.evaluations) < 2:
            return None
        first, *others = self.evaluations
        level = _per_cent(self.protocol.level)
        show: Mapping[str, Callable[[Difference], str]] = {
            "": lambda difference: f"{difference.value:+.1f}",
            f"  {level} from": lambda difference: f"{difference.interval.low:+.1f}",
            f"  {level} to": lambda difference: f"{difference.interval.high:+.1f}",
            "  p": lambda difference: f"{difference.p:.3f}",
        }
        rows = [self._head(f"against {printable(first.name)}")]
        for other in others:
            found = other.against(first)
            for part, cell in show.items():
                cells = (cell(found[name]) if name in found else ABSENT for name in self.metrics())
                rows.append((part or printable(other.name), *cells))
        return Table(rows)

    def diversity_table(self) -> Table:
        """Return how much each system's captions differ."""
        head = ("diversity", "distinct", "novel", "repetitive", "vocabulary", "mean length", "commonest", "which is")
        rows = [head]
        for evaluation in self.rows:
            diversity = evaluation.diversity
            rows.append(
                (
                    printable(evaluation.name),
                    f"{diversity.distinct / diversity.captions:.1%}",
                    ABSENT if diversity.novel is None else f"{diversity.novel / diversity.captions:.1%}",
                    f"{diversity.repetitive / diversity.captions:.1%}",
                    f"{diversity.vocabulary:,}",
                    f"{diversity.mean_length:.1f}",
                    f"{diversity.commonest_count / diversity.captions:.1%}",
                    printable(diversity.commonest),
                )
            )
        return Table(rows, wide=(0, len(head) - 1))

    def notes(self) -> list[str]:
        """Return what a reader of the scores should know, one line each."""
        protocol = self.protocol
        notes = [f"scores are in per cent; ± is half the width of the {_per_cent(protocol.level)} bootstrap interval"]
        if len(self.evaluations) > 1:
            first = printable(self.evaluations[0].name)
            notes.append(f"* differs from {first} at p < {SIGNIFICANT}, each score by itself (paired bootstrap)")
        if self.missing:
            notes.append(f"missing: {self.missing}")
        if self.humans is not None:
            turns = self.humans.about["turns"]
            notes.append(
                f"humans: one reference of each image scored against the others, averaged over {turns} turns; "
                "people have one reference fewer than the systems"
            )
        if self.paper is not None and self.paper.note:
            notes.append(self.paper.note)
        if protocol.left_out:
            some = ", ".join(map(printable, protocol.left_out[:5]))
            notes.append(f"unreadable images, left out: {len(protocol.left_out):,} ({some})")
        return notes

    def protocol_lines(self) -> list[tuple[str, str]]:
        """Return the protocol as names and values, and where each row's captions are from."""
        protocol = self.protocol
        fewest, most = protocol.references
        part = "" if protocol.images == protocol.split_images else f" of {protocol.split_images:,}"
        lines = [
            (
                "data",
                f"{printable(protocol.data)}, split {printable(protocol.split)} "
                f"(format {protocol.format}, digest {protocol.digest})",
            ),
            ("images", f"{protocol.images:,}{part}"),
            ("references", f"{fewest} per image" if fewest == most else f"{fewest} to {most} per image"),
            ("novelty", f"against {protocol.training_captions:,} training captions"),
            ("tokenizer", protocol.tokenizer),
        ]
        if protocol.search is not None:
            settings = (f"{name.replace('_', ' ')} {value}" for name, value in protocol.search.items())
            lines.append(("search", ", ".join(settings)))
        lines += [
            ("bootstrap", f"{protocol.resamples:,} resamples of the images, seed {protocol.seed}"),
            ("code", protocol.code),
        ]
        for system in self.evaluations:
            facts = (f"{name} {printable(str(value))}" for name, value in system.about.items())
            lines.append((printable(system.name), ", ".join(facts)))
        return lines


def _per_cent(share: float) -> str:
    return f"{100 * share:g} %"


def _cell(score: float | None, mark: str = "") -> str:
    return ABSENT if score is None else f"{score:.1f} {mark}".rstrip()


def _plain(difference: Difference) -> dict[str, Any]:
    interval = difference.interval
    return {"difference": difference.value, "interval": [interval.low, interval.high], "p": difference.p}


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write comparison.txt, comparison.md and comparison.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{COMPARISON}.txt", comparison.to_text())
    write_whole(folder / f"{COMPARISON}.md", comparison.to_markdown())
    write_whole(folder / f"{COMPARISON}.json", json_text(comparison.to_dict()))


def write_evaluation(folder: Path, evaluation: Evaluation, comparison: Comparison) -> None:
    """Write what is known of one evaluation: metrics.json, captions.json, images.jsonl and images.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / METRICS, json_text(comparison.of(evaluation)))
    write_results(folder / RESULTS, evaluation.images, evaluation.texts)
    write_image_scores(folder, evaluation.images, evaluation.texts, evaluation.image_scores)
