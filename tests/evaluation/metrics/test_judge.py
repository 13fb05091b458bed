"""The judge: raw captions scored as the COCO evaluation scores them, with Java and without, and resampled exactly."""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from helpers.cases import MORE
from helpers.holding import PATIENCE, kill_when_asked
from helpers.real_java import TRICKY, java_on_path, needs_java, official_tokens
from pycocoevalcap.bleu.bleu import Bleu as OfficialBleu
from pycocoevalcap.cider.cider import Cider as OfficialCider
from pycocoevalcap.meteor.meteor import Meteor as OfficialMeteor
from pycocoevalcap.rouge.rouge import Rouge as OfficialRouge

from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics.java import Java, JavaError
from captioner.evaluation.metrics.judge import INSTALL, PTB, Judge, Scores

CASES = 1000 * MORE
KEYS = ["bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider"]
WORDS = ("a", "the", "dog", "dogs", "cat", "man", "men's", "runs", "running", "sits", "on", "in", "grass", "lawn",
         "red", "big", "with", "ball,", "couch.", "sofa!")  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(patience=PATIENCE) as own:
        own.start()
        yield own


class Shared:
    """The judge's own process of METEOR as the COCO evaluation's class uses one, to spare a second start."""

    def __init__(self, judge: Judge) -> None:
        assert judge._meteor is not None
        assert judge._meteor.program._running is not None
        self.running = judge._meteor.program._running
        self.stdin = self.stdout = self

    def write(self, line: bytes) -> None:
        self.running.send(line.decode())

    def readline(self) -> bytes:
        return self.running.lines.get(timeout=PATIENCE) or b""

    def flush(self) -> None: ...

    close = kill = wait = flush


@pytest.fixture
def meteor(judge: Judge) -> OfficialMeteor:
    judge.start()
    own = object.__new__(OfficialMeteor)
    own.lock, own.meteor_p = threading.Lock(), Shared(judge)
    return own


@pytest.fixture
def plain() -> Judge:
    return Judge(None)


def random_captions(chance: random.Random, count: int) -> list[str]:
    return [" ".join(chance.choices(WORDS, k=chance.choice([0, 1, 2, 5, 9]))) for _ in range(count)]


def check_against_the_official(
    judge: Judge, meteor: OfficialMeteor, candidates: list[str], references: list[list[str]]
) -> Scores:
    """Score both ways, from the raw captions on, and compare all scores of the set and of each image."""
    ours = judge.score(candidates, references)
    tokens = iter(official_tokens([text for own in references for text in own]))
    truth = {index: [next(tokens) for _ in own] for index, own in enumerate(references)}
    results = {index: [text] for index, text in enumerate(official_tokens(candidates))}
    assert ours.references == tuple(map(tuple, truth.values()))
    assert ours.candidates == tuple(text for (text,) in results.values())
    with redirect_stdout(io.StringIO()):
        corpus, each = OfficialBleu(4).compute_score(truth, results)
        for metric in (meteor, OfficialRouge(), OfficialCider()):
            score, scores = metric.compute_score(truth, results)
            corpus.append(score)
            each.append(scores)
    assert list(ours.corpus) == list(ours.images) == KEYS
    for name, score, scores in zip(KEYS, corpus, each, strict=True):
        assert ours.corpus[name] == pytest.approx(100 * score, abs=1e-6), name
        np.testing.assert_allclose(ours.images[name], 100 * np.array(scores), atol=1e-6, rtol=0, err_msg=name)
    return ours


@needs_java
def test_equals_the_coco_evaluation_on_random_captions(judge: Judge, meteor: OfficialMeteor) -> None:
    assert judge.tokenizer == PTB
    assert judge.missing is None
    chance = random.Random(0)
    references = [random_captions(chance, chance.choice([1, 2, 5])) for _ in range(CASES)]
    check_against_the_official(judge, meteor, random_captions(chance, CASES), references)


@needs_java
def test_equals_the_coco_evaluation_on_tricky_captions(judge: Judge, meteor: OfficialMeteor) -> None:
    references = [[TRICKY[(place + step) % len(TRICKY)] for step in (1, 2, 5)] for place in range(len(TRICKY))]
    check_against_the_official(judge, meteor, list(TRICKY), references)
    # The same words exactly: no penalty on its own, nor a share in that of all.
    check_against_the_official(judge, meteor, ["a dog runs", "a cat"], [["A dog runs."], ["the red cat", "a cat sits"]])


@needs_java
@pytest.mark.skipif("CAPTIONER_FLICKR8K" not in os.environ, reason="CAPTIONER_FLICKR8K names no Flickr8k folder")
def test_equals_the_coco_evaluation_on_flickr8k(judge: Judge) -> None:
    with java_on_path():
        meteor = OfficialMeteor()
    captions = [list(image.captions) for image in load_dataset(Path(os.environ["CAPTIONER_FLICKR8K"])).split("test")]
    others = [own[1:] for own in captions]
    check_against_the_official(judge, meteor, [own[0] for own in captions], others)


@needs_java
def test_one_start_of_java_serves_many_scores(judge: Judge) -> None:
    first = judge.score(["A dog!"], [["a dog", "a cat"]])
    pids = [part.program.pid for part in (judge._ptb, judge._meteor) if part]
    again = judge.score(["A dog!", "a man"], [["a dog", "a cat"], ["a man"]])
    assert first.corpus["meteor"] == again.images["meteor"][0] == 100.0
    assert [part.program.pid for part in (judge._ptb, judge._meteor) if part] == pids
    assert None not in pids


@needs_java
def test_meteor_of_a_resample_is_that_of_a_set_of_its_own(judge: Judge) -> None:
    chance = random.Random(4)
    references, candidates = [random_captions(chance, 2) for _ in range(12)], random_captions(chance, 12)
    candidates[5] = references[5][0] = "a perfect one"
    rows = np.array([[0, 1, 1, 5], [5, 5, 5, 5], [5, 8, 9, 11]])
    found = judge.score(candidates, references).resample(rows)["meteor"]
    for score, row in zip(found, rows, strict=True):
        anew = judge.score([candidates[index] for index in row], [references[index] for index in row])
        assert score == pytest.approx(anew.corpus["meteor"], abs=1e-9)


@needs_java
def test_java_killed_in_the_middle_of_scoring(judge: Judge) -> None:
    assert judge._meteor is not None
    judge.score(["a dog"], [["a dog"]])
    kill_when_asked(judge._meteor.program)
    with pytest.raises(JavaError, match=r"^METEOR was killed by SIGKILL, 0 of 2 lines came$"):
        judge.score(["a dog", "a cat"], [["a dog"], ["two dogs"]])


def test_without_java_the_rest_is_scored_and_said_so(plain: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.evaluation.metrics.judge.find_java", lambda: Java(None, "none on PATH"))
    with Judge() as judge:
        assert judge.tokenizer == "captioner's own, since no Java was found"
        assert judge.missing is not None
        assert judge.missing.startswith("no METEOR and no PTB tokenizer, since no Java was found (none on PATH);")
        assert INSTALL in judge.missing
        scores = judge.score(["A man's dog, running!"], [["a man 's dog running", "a cat"]])
    assert list(scores.corpus) == list(scores.images) == [name for name in KEYS if name != "meteor"]
    assert scores.candidates == ("a man 's dog running",)
    assert scores.corpus["bleu4"] == pytest.approx(100.0)
    assert "meteor" not in scores.resample(np.zeros((2, 3), dtype=np.int64))
    assert plain.missing == "no METEOR and no PTB tokenizer, since Java is switched off"


def test_without_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.evaluation.metrics.judge.find_java", lambda: Java(Path("/usr/bin/java")))
    monkeypatch.setattr("captioner.evaluation.metrics.judge.find_jars", lambda: None)
    judge = Judge()
    assert judge.tokenizer == "captioner's own, since pycocoevalcap is not installed"
    assert judge.missing is not None
    assert INSTALL in judge.missing


def test_meteor_cannot_run_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captioner.evaluation.metrics.judge.find_java", lambda: Java(Path("/usr/bin/java")))
    for folder, complete in (("/opt/a b", False), ("/opt/\u00e9", False), ("/opt/x_1-2.3+y~/C:/(z)", True)):
        monkeypatch.setattr("captioner.evaluation.metrics.judge.find_jars", lambda folder=folder: Path(folder))
        judge = Judge()
        assert judge.tokenizer == PTB
        assert (judge.missing is None) == complete
        assert complete or folder in str(judge.missing)


def test_a_runtime_that_was_asked_for_must_start(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"^the Java runtime .*/java does not start: No such file or directory$"):
        Judge(tmp_path / "java")


def test_resamples_are_scored_as_sets_of_their_own(plain: Judge) -> None:
    chance = random.Random(3)
    references = [random_captions(chance, chance.choice([2, 5])) for _ in range(60)]
    candidates = random_captions(chance, 60)
    scores = plain.score(candidates, references)
    rows = np.random.default_rng(0).integers(0, 60, (20, 60))
    found = scores.resample(rows)
    for number, row in enumerate(rows):
        anew = plain.score([candidates[index] for index in row], [references[index] for index in row])
        for name in ("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l"):
            assert found[name][number] == pytest.approx(anew.corpus[name], abs=1e-9)
        # In the whole set an n-gram is as rare as it is, however often its image was drawn.
        assert found["cider"][number] == pytest.approx(scores.images["cider"][row].mean())
    whole = scores.resample(np.arange(60)[None])
    for name, score in scores.corpus.items():
        assert whole[name] == pytest.approx([score])
    assert scores.resample(rows[:, :7])["cider"].shape == (20,)


def test_lists_are_tokenised_once(plain: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "captioner.evaluation.metrics.judge.own_tokenize", lambda text: asked.append(text) or text.split()
    )
    references = [["a dog", "the dog"], ["a cat"]]
    plain.score(["one", "two"], references)
    first = len(asked)
    plain.score(["three", "four"], references)
    assert asked[first:] == ["three", "four"]
    words = plain.tokenize(["a b"])
    words.append("mine")
    assert plain.tokenize(["a b"]) == ["a b"]


def test_wrong_numbers_of_captions_are_said_so(plain: Judge) -> None:
    with pytest.raises(ValueError, match="there are no captions to score"):
        plain.score([], [])
    with pytest.raises(ValueError, match="1 captions for 2 images"):
        plain.score(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="image 1 has no reference captions"):
        plain.score(["a", "b"], [["a"], []])
    scores = plain.score(["a", "b"], [["a"], ["b"]])
    for rows in (np.zeros(3, dtype=np.int64), np.array([[2]]), np.array([[-1]]), np.zeros((0, 2), dtype=np.int64)):
        with pytest.raises(ValueError, match=r"no \(R, any\) image numbers in 0\.\.1"):
            scores.resample(rows)
