"""A report one can send: one HTML page that holds all it shows, and its figures as files beside it.

The page asks nothing of any network, runs no script, works from a file and prints well.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from captioner.captioning.records import refuse_link
from captioner.evaluation.analysis.analysis import Analysis
from captioner.evaluation.comparison import Comparison
from captioner.evaluation.report.attention import attention_section, lengths_section
from captioner.evaluation.report.errors import errors_section
from captioner.evaluation.report.examples import examples_section
from captioner.evaluation.report.html import Html, escape, fill_template, join, tag
from captioner.evaluation.report.inline_charts import Charts
from captioner.evaluation.report.scores import diversity_section, protocol_section, scores_section
from captioner.evaluation.report.summary import summarise
from captioner.files import write_whole

REPORT = "report.html"
# Pictures that the page holds itself, its own style, and nothing else; charts carry styles of their own.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_CONTENTS = {
    "scores": "Scores",
    "protocol": "Protocol",
    "lengths": "Quality by length",
    "attention": "Attention",
    "diversity": "Diversity",
    "examples": "Captions",
    "errors": "Errors",
}


def write_report(folder: Path, comparison: Comparison, analysis: Analysis, *, title: str | None = None) -> Path:
    """Write report.html and figures/ into a folder, and return the path of the page.

    The page is written last and whole or not at all. An image that cannot be read is named in its place.
    """
    if not comparison.rows:
        raise ValueError("there are no evaluations to report; expected at least one system, or people")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT
    refuse_link(path)
    charts = Charts(folder)
    protocol = comparison.protocol
    shown = title or f"Captions of {protocol.data}, {protocol.split}"
    body = join(
        [
            _head(shown, comparison),
            tag("div", summarise(comparison, analysis), class_="summary"),
            _contents(),
            scores_section(comparison),
            protocol_section(comparison),
            lengths_section(analysis.curves, charts),
            attention_section(analysis, charts),
            diversity_section(comparison),
            examples_section(comparison.evaluations, folder),
            errors_section(comparison, analysis),
        ],
        "\n",
    )
    write_whole(path, _page(shown, body))
    return path


def _head(title: str, comparison: Comparison) -> Html:
    protocol = comparison.protocol
    names = [tag("bdi", system.name) for system in comparison.evaluations]
    facts = [join(names, ", "), f"{protocol.images:,} images", protocol.code]
    return tag("header", tag("h1", tag("bdi", title)), tag("p", join(filter(None, facts), " · "), class_="muted"))


def _contents() -> Html:
    links = (tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in _CONTENTS.items())
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _page(title: str, body: Html) -> str:
    style, main = _read("report.css"), tag("main", "\n", body, "\n")
    return fill_template(_read("report.html"), policy=_POLICY, title=escape(title), style=style, body=main, script="")


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
