"""The report's file: what it holds, that nothing in it can act, and its figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_report import BAD, GOOD, HOSTILE, REFERENCES, compare

from captioner.evaluation.analysis.analysis import Analysis, analyse
from captioner.evaluation.report.examples import choose_examples, examples_section
from captioner.evaluation.report.html import Html, quote, tag, visible
from captioner.evaluation.report.inline_charts import Charts, inline_svg
from captioner.evaluation.report.report import REPORT, write_report
from captioner.evaluation.report.summary import find_best

SECTIONS = ["scores", "protocol", "lengths", "attention", "diversity", "examples", "errors"]
VOID = {"meta", "link", "img", "br", "hr"}
CHARTS = {"lengths-bleu4", "lengths-cider", "attention-positions", "attention-classes"}


class Page(HTMLParser):
    """What a browser would make of a page: its elements in order, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, {key: value or "" for key, value in attributes}))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, {key: value or "" for key, value in attributes}))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name, f"</{name}> closes another element"

    def handle_data(self, text: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", text))

    def all(self, name: str) -> list[dict[str, str]]:
        return [attributes for own, attributes in self.elements if own == name]

    def text(self, *names: str) -> str:
        return "".join(text for name, text in self.texts if not names or name in names)


def read(folder: Path) -> Page:
    page = Page((folder / REPORT).read_text(encoding="utf-8"))
    assert not page.open
    return page


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path]:
    """The report of two models, people and the paper."""
    folder = tmp_path_factory.mktemp("two")
    comparison = compare(folder / "images", {"good": GOOD, "bad": BAD})
    write_report(folder / "report", comparison, analyse(comparison))
    return read(folder / "report"), folder / "report"


def test_all_sections_are_there_in_order(two: tuple[Page, Path]) -> None:
    page, _ = two
    sections = page.all("section")
    assert [own["id"] for own in sections] == SECTIONS
    assert [own["href"] for own in page.all("a")] == [f"#{name}" for name in SECTIONS]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {own["aria-labelledby"] for own in sections} <= set(ids)


def test_headings_are_in_order(two: tuple[Page, Path]) -> None:
    levels = [int(name[1]) for name, _ in two[0].elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_page_asks_for_nothing(two: tuple[Page, Path]) -> None:
    page, folder = two
    text = (folder / REPORT).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", re.sub(r"base64,[\w+/=]*", "", text))
    assert not page.all("script")
    assert [own["href"] for own in page.all("link")] == ["data:,"]
    assert all(own["src"].startswith("data:image/jpeg;base64,") for own in page.all("img"))
    policy = next(own["content"] for own in page.all("meta") if own.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_tables_tell_what_their_cells_are(two: tuple[Page, Path]) -> None:
    page, _ = two
    tables = page.all("table")
    assert len(tables) == len(page.all("caption")) > 8
    assert {own["scope"] for own in page.all("th")} == {"row", "col"}


def test_scores_with_intervals_people_and_the_paper(two: tuple[Page, Path]) -> None:
    page, _ = two
    shown = page.text("td", "strong", "small", "th", "bdi")
    assert all(name in shown for name in ("good", "bad", "humans, one left out", "Xu et al. (2015), hard"))
    assert all(text in shown for text in ("BLEU-4", "21.3"))
    assert re.search(r"\d+\.\d to \d+\.\d", shown)
    assert re.search("\N{MINUS SIGN}" + r"\d+\.\d\*", shown)  # the worse is significantly below the first


def test_the_summary_says_which_is_best_and_how_surely(two: tuple[Page, Path]) -> None:
    said = " ".join(two[0].text("p", "b", "bdi").split())
    assert "Two systems captioned 12 images of the val split of Flickr8k." in said
    assert re.search(r"good is the best of them with [\d.]+ CIDEr-D \(95% interval [\d.]+ to [\d.]+\)", said)
    assert re.search(r"above bad \(.*?\), more than chance explains \(p = 0\.039\)", said)
    assert "on other images" in said
    assert "Not all metrics are here" not in said


def test_figures_are_in_the_page_and_beside_it(two: tuple[Page, Path]) -> None:
    page, folder = two
    drawings = [own for own in page.all("div") if own.get("role") == "img"]
    assert len(drawings) == len(CHARTS)
    assert all(len(re.findall(r"\d+\.\d", own["aria-label"])) > 3 for own in drawings)
    assert all("good" in own["aria-label"] and "bad" in own["aria-label"] for own in drawings)
    files = {path.name for path in (folder / "figures").iterdir()}
    assert {f"{name}{suffix}" for name in CHARTS for suffix in (".svg", ".pdf")} <= files
    # Two captions of each group, of each model.
    assert {f"{prefix}{group}-{number}.png" for prefix in ("", "system-2-") for group in ("best", "median", "worst")
            for number in (1, 2)} <= files  # fmt: skip
    assert len(page.all("img")) == 12


def test_overlays_tell_each_word_and_where_it_looked(two: tuple[Page, Path]) -> None:
    told = [own["alt"] for own in two[0].all("img")]
    assert all(own.startswith("Where each word looked most") for own in told)
    assert re.search(r"dog \(0\.\d\d\) (top|middle|bottom) (left|centre|right)", " ".join(told))


def test_errors_with_examples(two: tuple[Page, Path]) -> None:
    page, _ = two
    assert "cat for dog" in page.text("th").replace("\n", "")
    marked = page.text("mark").lower()
    assert all(word in marked for word in ("cat", "dog"))


def test_one_system_without_attention(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {"file of others": GOOD}, humans=False, missing="no METEOR, no Java")
    write_report(tmp_path, comparison, analyse(comparison))
    page = read(tmp_path)
    said = page.text("p")
    assert "The attention of these captions is not known." in said
    assert "Not all metrics are here: no METEOR, no Java." in said
    assert {own["alt"] for own in page.all("img")} == {"The image, without attention"}
    assert [own["id"] for own in page.all("section")] == SECTIONS


def test_people_alone(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {})
    write_report(tmp_path, comparison, analyse(comparison))
    page = read(tmp_path)
    assert "No system was evaluated" in page.text("p")
    assert not page.all("img")
    with pytest.raises(ValueError, match="no evaluations"):
        write_report(tmp_path, compare(tmp_path / "images", {}, humans=False), Analysis())


def test_whatever_is_written_comes_out_as_text(tmp_path: Path) -> None:
    comparison = compare(
        tmp_path / "images",
        {HOSTILE[0]: HOSTILE, HOSTILE[1]: GOOD},
        references=[(text, *REFERENCES[number]) for number, text in enumerate(HOSTILE)],
        data=HOSTILE[2],
        names=[f"{number}{text}" for number, text in enumerate(HOSTILE * 3)],
    )
    write_report(tmp_path, comparison, analyse(comparison), title=HOSTILE[0])
    page = read(tmp_path)
    assert not page.all("script")
    assert {own["src"][:5] for own in page.all("img")} == {"data:"}
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert page.text("title") == HOSTILE[0]
    shown = page.text()
    for text in HOSTILE[:2]:
        assert text in shown
    assert all(text in shown for text in ("{{style}}", "\\x00", "كلب", "🐕"))


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {"good": GOOD})
    (tmp_path / "images" / "0.jpg").write_bytes(b"not an image")
    (tmp_path / "images" / "1.jpg").unlink()
    page = Page(examples_section(comparison.evaluations, tmp_path))
    problems = [text for name, text in page.texts if name == "p" and "cannot be shown" in text]
    assert sorted(problem.split()[0] for problem in problems) == ["0.jpg", "1.jpg"]
    assert len(page.all("img")) == 10


def test_a_model_that_says_nothing_at_times(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {"shy": ("", *GOOD[1:])})
    analysis = analyse(comparison)
    assert analysis.diagnostics["shy"].empty == 3
    assert analysis.errors["shy"].kinds["empty"].count == 3
    assert "∅" in Page(examples_section(comparison.evaluations, tmp_path)).text()


def test_grounding_where_the_data_set_has_boxes(tmp_path: Path) -> None:
    root = tmp_path / "coco"
    comparison = compare(
        root / "val2017", {"good": GOOD}, count=4, names=[f"val2017/{number}.jpg" for number in range(4)]
    )
    content = {
        "images": [{"id": number, "width": 60, "height": 40} for number in range(4)],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "person"}],
        "annotations": [
            {"image_id": 0, "category_id": 1, "bbox": [0, 0, 30, 20]},
            {"image_id": 1, "category_id": 2, "bbox": [10, 0, 30, 40]},
        ],
    }
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    assert not analyse(comparison).grounding
    analysis = analyse(comparison, root)
    assert analysis.grounding["good"].overall.words == 2
    write_report(tmp_path, comparison, analysis)
    page = read(tmp_path)
    assert "Grounding" in page.text("h3")
    assert "names an object, attention peaks inside" in page.text("p")
    assert any("uniform" in own.get("aria-label", "") and "Bar charts" in own["aria-label"] for own in page.all("div"))
    assert (tmp_path / "figures" / "attention-grounding.pdf").exists()


def test_the_same_report_each_time(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {"good": GOOD}, count=3)
    first = write_report(tmp_path / "a", comparison, analyse(comparison)).read_bytes()
    assert write_report(tmp_path / "b", comparison, analyse(comparison)).read_bytes() == first


def test_figures_of_an_earlier_report_go_and_others_stay(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("system-2-best-1.png", "attention-grounding.pdf", "mine.png", "best-of-all.png"):
        (figures / name).touch()
    Charts(tmp_path)
    assert {path.name for path in figures.iterdir()} == {"mine.png", "best-of-all.png"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    comparison = compare(tmp_path / "images", {"good": GOOD}, count=3)
    (tmp_path / REPORT).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symlink"):
        write_report(tmp_path, comparison, Analysis())


def test_the_best_is_the_one_of_the_highest_score(tmp_path: Path) -> None:
    comparison = compare(tmp_path, {"bad": BAD, "good": GOOD})
    assert find_best(comparison.evaluations).name == "good"


@pytest.mark.parametrize("count", range(1, 14))
def test_examples_are_apart_and_of_their_kind(count: int) -> None:
    scores = np.random.default_rng(count).permutation(count).tolist()
    found = choose_examples(scores, 4)
    places = [place for own in found.values() for place in own]
    assert len(places) == len(set(places))
    assert [scores[place] for place in found["best"]] == sorted(scores, reverse=True)[: len(found["best"])]
    assert [scores[place] for place in found["worst"]] == sorted(scores)[: len(found["worst"])]
    if count >= 12:
        assert [len(own) for own in found.values()] == [4, 4, 4]
        middle = [scores[place] for place in found["median"]]
        assert min(middle) <= np.median(scores) <= max(middle)


def test_parts_escape_all_that_is_not_html() -> None:
    assert tag("p", "<b>", Html("<i>x</i>"), class_="a", title='"&') == (
        '<p class="a" title="&quot;&amp;">&lt;b&gt;<i>x</i></p>'
    )
    assert tag("img", alt=None) == "<img>"
    assert visible("a\n\tb\x00\ud800") == "a b\\x00\\ud800"
    assert quote("A dog runs .", lambda word: word.startswith("dog")) == "<bdi>A <mark>dog</mark> runs.</bdi>"
    assert "∅" in quote(" ")


def test_a_chart_within_a_page_has_no_names_of_its_own() -> None:
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "x" "http://x"><svg width="1pt" viewBox="0 0 1 1" xmlns="http://y">'
        '<metadata>http://z</metadata><defs><path id="m1"/></defs><g id="unused"/><use xlink:href="#m1"/>'
        "<text style=\"font-size: 8px; font-family: 'DejaVu Sans', sans-serif; fill: #1a1a1a\">x</text></svg>"
    )
    assert inline_svg(svg, "k") == (
        '<svg viewBox="0 0 1 1" focusable="false"><defs><path id="k-m1"/></defs><g/><use href="#k-m1"/>'
        '<text style="font-size: 8px; fill: var(--chart-ink)">x</text></svg>'
    )
    with pytest.raises(ValueError, match="no SVG"):
        inline_svg("<p>", "k")
