"""What the pages of runs share: one HTML file with style and script in it, charts of curves, samples, settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from types import ModuleType

from captioner.evaluation import report
from captioner.evaluation.report.html import Html, escape, fill_template, policy_hash, quote, tag
from captioner.evaluation.tables import LABELS
from captioner.training.log import Line
from captioner.training.pages.line_chart import Curve, Points, line_chart
from captioner.training.pages.series import RunCurves

# Each chart: its title, digits (0: 1.00e-04), and its curves by their tags.
CHARTS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("Cross entropy", 3, {"train/cross_entropy": "training", "validation/loss": "validation"}),
    ("Scores of validation captions", 1, {f"validation/{key}": LABELS[key] for key in ("bleu1", "bleu4", "cider")}),
    ("Reward of sampled captions", 3, {"train/reward": "reward", "train/baseline": "baseline"}),
    ("Learning rate", 0, {"train/rate": "learning rate"}),
    ("Entropy of attention", 3, {"train/attention_entropy": "nats"}),
    (
        "Attention",
        3,
        {"validation/movement": "movement from word to word", "train/residual": "doubly stochastic residual"},
    ),
    ("Perplexity of validation references", 1, {"validation/perplexity": "perplexity"}),
)


def make_page(title: str, body: Html) -> str:
    """Return a page that holds its style and script, and may show pictures beside it."""
    script = _read("run_page.js")
    policy = (
        f"default-src 'none'; img-src data: file: 'self'; style-src 'unsafe-inline'; script-src {policy_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return fill_template(
        _read("report.html", report),
        policy=policy,
        title=escape(title),
        style=_read("report.css", report) + _read("run_page.css"),
        body=body,
        script=f"<script>{script}</script>\n",
    )


def run_charts(curves: RunCurves) -> list[Html]:
    """Return the charts of one run that have something to show; of several data sets each has its curves."""
    found = []
    for title, digits, names in CHARTS:
        lines = [Curve(label, points, place) for place, (label, points) in enumerate(_named(curves, names))]
        found.append(line_chart(title, lines, steps=curves.step, digits=digits))
    return [chart for chart in found if chart is not None]


def compared_charts(runs: Mapping[str, RunCurves]) -> list[Html]:
    """Return a chart of each number, with the curves of all runs in it."""
    found = []
    steps = max(curves.step for curves in runs.values())
    for title, digits, names in CHARTS:
        for label in names.values():
            lines = [
                Curve(f"{run} {name.removeprefix(label).strip(', ')}".strip(), points, place)
                for place, (run, curves) in enumerate(runs.items())
                for name, points in _named(curves, {tag: text for tag, text in names.items() if text == label})
            ]
            heading = title if len(names) == 1 else f"{title}: {label}"
            found.append(line_chart(heading, lines, steps=steps, digits=digits))
    return [chart for chart in found if chart is not None]


def _named(curves: RunCurves, names: Mapping[str, str]) -> list[tuple[str, Points]]:
    """Return the curves of these tags with their names; validation/cider stands for validation/SET/cider too."""
    found: list[tuple[str, Points]] = []
    for wanted, label in names.items():
        place, _, key = wanted.partition("/")
        for name, series in curves.series.items():
            if name == wanted:
                found.append((label, series.points()))
            elif name.startswith(f"{place}/") and name.endswith(f"/{key}"):
                found.append((f"{label}, {name[len(place) + 1 : -len(key) - 1]}", series.points()))
    return found


def sample_figure(sample: Line, picture: str | None, size: tuple[int, int] | None = None, *, label: str = "") -> Html:
    """Return a sample caption with its word grid, whose address is `picture`, and what people said."""
    width, height = size or (None, None)
    alt = f"Where the model looked for each word of: {sample['caption']}"
    missing = tag("p", f"{sample['image']} could not be read", class_="problem")
    lazy = None if picture and picture.startswith("data:") else "lazy"
    shown = tag("img", src=picture, alt=alt, width=width, height=height, loading=lazy) if picture else missing
    references = (tag("li", quote(text)) for text in sample["references"])
    words = tag(
        "div",
        *([tag("p", label, class_="muted")] if label else []),
        tag("p", quote(sample["caption"]), class_="said"),
        tag("ul", *references, class_="references"),
        tag("p", sample["image"], class_="file muted"),
    )
    return tag("article", shown, words, class_="example")


def _read(name: str, room: str | ModuleType = __package__) -> str:
    return (resources.files(room) / name).read_text(encoding="utf-8")
