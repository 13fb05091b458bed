"""Systems side by side: their names, their captions and the images that all have captioned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_judge import ToyJudge
from helpers.toy_report import GOOD, look

from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.scoring import EvaluationSplit, Evaluator
from captioner.evaluation.systems import (
    Submission,
    System,
    captioned_by_all,
    describe_model,
    name_systems,
    read_submission,
)

IMAGES = tuple(
    CaptionedImage(f"{number}.jpg", Path("x"), number, "val", (text, f"{text} there"), None)
    for number, text in enumerate(GOOD)
)
SPLIT = EvaluationSplit("toy", "metadata", Path(), "val", IMAGES, IMAGES, (), digest="0")
SYSTEM = System("toy", Path("out"))


def test_each_system_has_a_name_and_a_folder() -> None:
    models = [Path("runs/one/best"), Path("runs/one/last"), Path("runs/two"), Path("runs/one")]
    results = [Path("theirs.json"), Path("other/captions.json")]
    systems = name_systems(models, results, Path("out"))
    assert [own.name for own in systems] == ["one", "one-last", "two", "one-2", "theirs", "other"]
    assert [own.folder for own in systems] == [Path("out") / own.name for own in systems]
    assert [own.model for own in systems] == [*models, None, None]
    assert [own.results for own in systems] == [*[None] * 4, *results]


@pytest.mark.parametrize("given", [([Path("runs/one")], []), ([], [Path("theirs.json")])])
def test_a_system_alone_has_the_whole_folder(given: tuple[list[Path], list[Path]]) -> None:
    (system,) = name_systems(*given, Path("out"))
    assert system.folder == Path("out")


def test_results_are_told_by_their_file_and_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps([{"image_id": number, "caption": text} for number, text in enumerate(GOOD)]))
    found = read_submission(System("theirs", tmp_path, results=path), SPLIT)
    assert found.texts == {f"{number}.jpg": text for number, text in enumerate(GOOD)}
    assert found.about["file"] == "theirs.json"
    assert found.captions is None
    path.write_text(path.read_text() + " ")
    assert read_submission(found.system, SPLIT).about["checksum"] != found.about["checksum"]
    with pytest.raises(ValueError, match="toy has no file of results"):
        read_submission(SYSTEM, SPLIT)


def test_captions_are_scored_in_the_order_of_the_images() -> None:
    judge: Any = ToyJudge()
    evaluator = Evaluator(judge, SPLIT, resamples=10)
    captions = {f"{number}.jpg": look(text, number) for number, text in reversed(list(enumerate(GOOD)))}
    texts = {name: caption.text for name, caption in captions.items()}
    found = Submission(SYSTEM, texts, {"checksum": "1"}, captions).evaluate(evaluator)
    assert (found.name, found.kind, found.texts, found.about) == ("toy", "model", GOOD, {"checksum": "1"})
    assert found.captions == tuple(captions[image.file_name] for image in IMAGES)
    others = Submission(SYSTEM, texts, {}).evaluate(evaluator)
    assert (others.kind, others.captions, others.scores) == ("results", None, found.scores)


def test_images_that_one_has_not_captioned_are_left_out_for_all() -> None:
    texts = {image.file_name: "a dog" for image in IMAGES}
    some = {name: text for name, text in texts.items() if name != "1.jpg"}
    whole, part = Submission(SYSTEM, texts, {}), Submission(SYSTEM, some, {})
    assert captioned_by_all(SPLIT, [whole]) is SPLIT
    split = captioned_by_all(SPLIT, [whole, part])
    assert [image.file_name for image in split.images] == ["0.jpg", "2.jpg", "3.jpg"]
    assert split.left_out == ("1.jpg",)
    with pytest.raises(ValueError, match="none of the 4 images"):
        captioned_by_all(SPLIT, [whole, Submission(SYSTEM, {}, {})])


def test_a_model_is_told_by_its_checksum_and_its_encoder() -> None:
    identity = {"encoder": "lite0", "layer": "stride32", "weights": "01ab", "preprocessing": {"size": 64}}
    assert describe_model("23cd", identity) == {"checksum": "23cd", "encoder": "lite0 stride32 at 64 (01ab)"}
