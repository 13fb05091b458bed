"""Words out of captions, ids out of words, and back."""

from __future__ import annotations

import json
import random

import pytest

from captioner.datasets import vocabulary as vocabulary_module
from captioner.datasets.vocabulary import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary, join_words, tokenize


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A Dog , running .", "a dog running"),
        ("A dog runs. The cat sleeps.", "a dog runs the cat sleeps"),
        ("The man's dog doesn't bark", "the man 's dog does n't bark"),
        ("The man\u2019s dog doesn\u2019t bark", "the man 's dog does n't bark"),
        ("THEY'RE here, WE'LL go", "they 're here we 'll go"),
        ("the dogs' tails", "the dogs tails"),
        ("a well-known black-and-white photo - old", "a well-known black-and-white photo old"),
        ('He said "hello" (twice)!?', "he said hello twice"),
        ("'quoted' words \u201ccurly\u201d \u2018ones\u2019", "quoted words curly ones"),
        ("50% off, $5 -- #1 & more...", "50 off 5 1 more"),
        ("at 3.5 miles, 1,000 people", "at 3.5 miles 1,000 people"),
        ("a cafe\u0301 and caf\xe9", "a caf\xe9 and caf\xe9"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 !", "\u0939\u093f\u0928\u094d\u0926\u0940"),
        ("tabs\tand\nnew lines", "tabs and new lines"),
        ("<end> of <pad>", "end of pad"),
        ("I cannot go", "i can not go"),
        (" . , ! ", ""),
        ("", ""),
    ],
)
def test_tokenize(caption, expected):
    assert tokenize(caption) == expected.split()


def test_shortcut_for_plain_text_agrees_with_the_tokenizer(monkeypatch):
    words = ["dog", "a", "cannot", "gonna", "non-stop", "-", "--", "x--y", "3", "1,000", "men,", ",", ".", "end.", "..",
             "u.s.", "wanna", "cannot-do", "3,", "a,b", "it's", "-5"]  # fmt: skip
    generator = random.Random(0)
    captions = [" ".join(generator.choices(words, k=generator.randint(0, 6))) for _ in range(2000)]
    shortcut = [tokenize(caption) for caption in captions]
    taken = sum(vocabulary_module._plain_pieces(caption) is not None for caption in captions)
    assert 100 < taken < 1900
    monkeypatch.setattr(vocabulary_module, "_plain_pieces", lambda text: None)
    assert shortcut == [tokenize(caption) for caption in captions]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("the man 's dog", "the man's dog"),
        ("it does n't move", "it doesn't move"),
        ("they 're sure we 'll go", "they're sure we'll go"),
        ("'s dog", "'s dog"),
        ("we 're gon na win", "we're gonna win"),
        ("", ""),
    ],
)
def test_join_words(words, sentence):
    assert join_words(words.split()) == sentence


@pytest.mark.parametrize("caption", ["The man's dog doesn't bark.", "They're gonna say: we'd won!", "A well-known cat"])
def test_joined_words_are_split_the_same_way_again(caption):
    assert tokenize(join_words(tokenize(caption))) == tokenize(caption)


def small_vocabulary() -> Vocabulary:
    return Vocabulary.build([["b", "a", "b"], ["c", "a", "b", "d"], ["'s", "'s", "'s", "'s"]], minimum_count=2)


def test_build_sorts_by_count_then_word_and_drops_rare_words():
    vocabulary = small_vocabulary()
    assert vocabulary.entries == (*SPECIALS, "'s", "b", "a")
    assert len(vocabulary) == 7
    assert "a" in vocabulary
    assert "c" not in vocabulary
    shuffled = Vocabulary.build([["z", "y"], ["y", "z"], ["x", "x"]], minimum_count=1)
    assert shuffled.entries[4:] == ("x", "y", "z")


def test_specials_have_the_first_ids():
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    assert SPECIALS == ("<pad>", "<start>", "<end>", "<unk>")


def test_words_to_ids_and_back():
    vocabulary = small_vocabulary()
    ids = vocabulary.encode(["b", "'s", "zebra", "a"])
    assert ids == [START, 5, 4, UNKNOWN, 6, END]
    assert vocabulary.words(ids) == ["b", "'s", "<unk>", "a"]
    assert join_words(vocabulary.words(ids)) == "b's <unk> a"


def test_words_stop_at_the_first_end_and_skip_padding():
    vocabulary = small_vocabulary()
    assert vocabulary.words([PAD, START, 5, PAD, 6, END, 5, END, PAD]) == ["b", "a"]
    assert vocabulary.words([5, 6]) == ["b", "a"]
    assert vocabulary.words([]) == []


@pytest.mark.parametrize("number", [-1, 7])
def test_id_outside_the_vocabulary_is_an_error(number):
    with pytest.raises(ValueError, match=rf"{number} is outside 0\.\.6"):
        small_vocabulary().words([START, number])


def test_words_that_look_like_specials_never_become_them():
    vocabulary = Vocabulary.build([["<end>", "a", "<pad>", "<start>", "<unk>"]] * 3, minimum_count=1)
    assert vocabulary.entries == (*SPECIALS, "a")
    assert vocabulary.encode(SPECIALS) == [START, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, END]
    assert "<end>" not in vocabulary


def test_json_round_trip():
    vocabulary = small_vocabulary()
    again = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert again == vocabulary
    assert again.encode(["a", "b"]) == vocabulary.encode(["a", "b"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "a list 'words', found list"),
        ({}, "a list 'words'"),
        ({"words": "abc"}, "a list 'words'"),
        ({"words": ["a", "b"]}, "starts with 'a', 'b', expected <pad>"),
        ({"words": ["<start>", "<pad>", "<end>", "<unk>"]}, "expected <pad>, <start>, <end>, <unk>"),
        ({"words": [*SPECIALS, "a", "b", "a"]}, "'a' more than once"),
        ({"words": [*SPECIALS, "<end>"]}, "'<end>' more than once"),
        ({"words": [*SPECIALS, 5]}, "holds 5, expected words"),
        ({"words": [*SPECIALS, ["x"]]}, "expected words"),
        ({"words": [*SPECIALS, ""]}, "expected words"),
        ({"words": [*SPECIALS, None]}, "holds None, expected words"),
    ],
)
def test_from_dict_checks_what_it_gets(content, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        Vocabulary.from_dict(content)


def test_minimum_count_must_be_positive():
    with pytest.raises(ValueError, match="minimum_count is 0"):
        Vocabulary.build([["a"]], minimum_count=0)


def test_an_extended_vocabulary_keeps_its_ids() -> None:
    first = Vocabulary((*SPECIALS, "a", "dog"))
    extended = first.extended(Vocabulary((*SPECIALS, "the", "a", "cat")))
    assert extended.entries == (*SPECIALS, "a", "dog", "the", "cat")
    assert extended.encode(["a", "dog"]) == first.encode(["a", "dog"])
    assert first.extended(first) == first
