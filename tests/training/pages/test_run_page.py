"""The page of a run and that of several, also in a browser: whole, alone, in the colours of the system."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.browser import PHONE, browser, watched_page  # noqa: F401
from helpers.toy_training import Recorder, at_step, read_log, run_toy, toy_recipe, write_toy_data
from PIL import Image

from captioner.training.pages import run_page
from captioner.training.pages.comparison import load_runs, write_comparison
from captioner.training.pages.line_chart import LEFT, WIDTH
from captioner.training.pages.run_page import Length, RunPage, png_size
from captioner.training.recipe import Recipe, to_yaml

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRICKY = "a <b>dog</b> & 'cat' {{body}}"


def make_run(folder: Path, epochs: int = 3, **changes: Any) -> tuple[Path, Recipe]:
    """Write the settings and the log of a run of so many epochs of two steps, with a word grid of one image."""
    recipe = replace(toy_recipe(folder / "data", epochs=4), **changes)
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text(to_yaml(recipe))
    with (folder / "log.jsonl").open("w") as log:
        for epoch in range(1, epochs + 1):
            for step in (2 * epoch - 1, 2 * epoch):
                numbers = {"loss": 5.0 - step, "cross_entropy": 4.0 / step, "rate": 1e-4, "captions_per_second": 20.0}
                log.write(json.dumps({"step": step, "epoch": epoch, **numbers}) + "\n")
            overlay = f"overlays/epoch-{epoch:03d}/00.png"
            (folder / overlay).parent.mkdir(parents=True)
            Image.new("RGB", (600, 200), (200, 60 * epoch, 0)).save(folder / overlay)
            sample = {
                "image": "a.jpg",
                "caption": f"epoch {epoch} {TRICKY}",
                "references": [TRICKY],
                "overlay": overlay,
            }
            scores = {"bleu1": 30.0, "bleu4": (5.0, 9.0, 7.0)[epoch - 1], "cider": 40.0, "validation_loss": 3.0}
            log.write(json.dumps({"step": 2 * epoch, "epoch": epoch, **scores, "samples": [sample]}) + "\n")
    return folder, recipe


def test_the_page_tells_how_far_a_run_is(tmp_path: Path) -> None:
    folder, recipe = make_run(tmp_path / "my <run>")
    page = RunPage(folder, recipe, Length(4, 8))
    page.log({"step": 7, "epoch": 4, "loss": 1.0, "cross_entropy": 0.5, "rate": 1e-4})
    page.write("training")
    text = (folder / "run.html").read_text(encoding="utf-8")
    plain = " ".join(re.sub("<[^>]*>", " ", text.partition("<main")[2]).split())
    assert "my &lt;run&gt; training" in plain
    assert "epoch 4 of 4 step 7 of 8 best BLEU-4 9.0, epoch 2" in plain
    assert re.search(r"time left about \d+ s", plain)
    assert 'data-refresh="10"' in text
    assert "epoch 3 a &lt;b&gt;dog&lt;/b&gt; &amp; &#x27;cat&#x27; {{body}}" in plain
    assert "epochs: 4" in plain
    page.write("finished")
    text = (folder / "run.html").read_text(encoding="utf-8")
    assert "data-refresh" not in text.partition("<script>")[0]
    assert "time left" not in text
    assert not list(folder.glob("*.unfinished"))


def test_the_page_is_written_now_and_then_and_after_each_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(run_page.time, "monotonic", lambda: now)
    folder, recipe = make_run(tmp_path / "run", epochs=0)
    page = RunPage(folder, recipe, Length(4, 8))
    assert "Nothing is logged yet" in (folder / "run.html").read_text(encoding="utf-8")
    written: list[str] = []
    monkeypatch.setattr(RunPage, "write", lambda self, state: written.append(state))
    page.log({"step": 1, "epoch": 1, "loss": 2.0})
    assert written == []
    now += 11.0
    page.log({"step": 2, "epoch": 1, "loss": 2.0})
    assert written == ["training"]
    page.written = now
    page.log({"step": 2, "epoch": 1, "bleu4": 2.0})
    assert len(written) == 2


@pytest.mark.usefixtures("quick")
def test_training_writes_it_and_says_how_it_ended(tmp_path: Path) -> None:
    recipe = toy_recipe(write_toy_data(tmp_path / "data"), epochs=1, validation={"overlays": 1, "beam": 1})
    page = tmp_path / "run" / "run.html"
    _, recorder = run_toy(recipe, tmp_path / "run", stop=at_step(2))
    assert recorder.said == [f"{page} shows how it goes"]
    assert "stopped; --resume continues it" in page.read_text(encoding="utf-8")
    run_toy(recipe, tmp_path / "run", resume=True)
    text = page.read_text(encoding="utf-8")
    assert ">finished<" in text
    assert "4 of 4" in text
    overlay = read_log(tmp_path / "run")[-1]["samples"][0]["overlay"]
    width, height = png_size(tmp_path / "run" / overlay) or (0, 0)
    assert f'src="{overlay}"' in text
    assert f'width="{width}" height="{height}"' in text

    def fail(recorder: Recorder) -> bool:
        if recorder.steps:
            raise OSError("no space left")
        return False

    with pytest.raises(OSError, match="no space"):
        run_toy(replace(recipe, epochs=2), tmp_path / "run", resume=True, stop=fail)
    assert ">ended with an error<" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("context", [{"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}, PHONE])
def test_the_page_in_a_browser(tmp_path: Path, browser: Browser, context: dict[str, Any]) -> None:  # noqa: F811
    folder, recipe = make_run(tmp_path / "run")
    RunPage(folder, recipe, Length(4, 8)).write("finished")
    url = (folder / "run.html").as_uri()
    with watched_page(browser, url, allowed=(folder.as_uri(), "data:"), **context) as watched:
        page = watched.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shown = page.locator(".epoch:visible .said")
        assert shown.inner_text() == f"epoch 3 {TRICKY}"
        page.locator(".epochs input").fill("0")
        assert shown.inner_text() == f"epoch 1 {TRICKY}"
        picture = page.locator(".epoch:visible img")
        picture.scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('.epoch:not([hidden]) img').naturalWidth === 600")
        page.reload()  # as it does itself while training goes
        assert shown.inner_text() == f"epoch 1 {TRICKY}"
        chart = page.locator(".curves").first
        assert chart.locator("output").first.inner_text() == "0.667"
        drawing = chart.locator("svg")
        width = drawing.evaluate("svg => svg.clientWidth")
        drawing.hover(position={"x": LEFT / WIDTH * width + 2, "y": 50})
        assert chart.locator("output").first.inner_text() == "4.000"
        assert chart.locator(".at").inner_text() == "step 1"


def test_runs_are_compared(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    one, recipe = make_run(tmp_path / "a" / "run")
    two, _ = make_run(tmp_path / "b" / "run", epochs=2, seed=7, decoder=replace(recipe.decoder, hidden=9))
    assert [run.name for run in load_runs([one, two])] == ["run", "run-2"]
    write_comparison([one, two], tmp_path / "compare.html")
    with watched_page(
        browser, (tmp_path / "compare.html").as_uri(), viewport={"width": 1280, "height": 900}
    ) as watched:
        rows = watched.page.locator("table").first.locator("tbody tr").all_inner_texts()
        assert [row.split("\t")[:4] for row in rows] == [["run", "6", "3", "2"], ["run-2", "4", "2", "2"]]
        settings = watched.page.locator("table").nth(1).locator("tbody tr").all_inner_texts()
        assert [row.split("\t")[0] for row in settings] == ["data.0.root", "data.0.features", "seed", "decoder.hidden"]
        assert settings[3].split("\t") == ["decoder.hidden", "12", "9"]
        assert watched.page.locator(".curves").count() >= 5
        assert watched.page.locator(".curves").first.locator(".legend li").count() == 2
        assert watched.page.locator(".example img").count() == 2
    (tmp_path / "empty").mkdir()
    for folder, message in (("empty", "holds no training run"), ("gone", "is not there")):
        with pytest.raises(
            ValueError, match=rf"{folder} {message}; expected a folder with settings.yaml and log.jsonl"
        ):
            load_runs([one, tmp_path / folder])
