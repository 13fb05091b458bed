"""What captions most often get wrong, by counting words: those no reference has, those most have, and slips of form.

A word is compared by its stem, so that "dogs" and "dog", "ran" and "running" are one; synonyms are not known, so that a
"puppy" that all references call a dog counts as an error. Only content words count, which leaves out articles,
prepositions, conjunctions, pronouns, adverbs, auxiliary verbs and words of place in a picture such as "side".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from captioner.datasets.word_classes import is_content, word_class

LISTED = 10  # words or pairs of a list
KINDS = {
    "unsupported": "has a content word that no reference has",
    "missed": "lacks a content word that more than half of the references have",
    "confused": "does both with two words of one class, such as two animals or two colours",
    "repeated": "has a word twice in a row, or a phrase of two words with a noun or a verb twice",
    "unfinished": "ends with a word that needs another, such as “a”, “with” or “and”",
    "short": "has fewer words than each of the references",
    "long": "has more words than each of the references",
    "empty": "has no words",
}
CONFUSED_CLASSES = ("person", "animal", "object", "place", "colour", "number", "verb")
_PHRASE_CLASSES = ("person", "animal", "object", "place", "abstract", "verb", "other")
# Not "in" and "on", with which sentences end well: "a man looks on".
_UNFINISHED_WORDS = """
    a an the and or but while as with of at from for into onto near next to toward towards beside between against like
    his her their its is are"""
_UNFINISHED = frozenset(_UNFINISHED_WORDS.split())
_IRREGULAR = {
    form: base
    for base, forms in {
        "man": "men", "woman": "women", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth",
        "leaf": "leaves", "knife": "knives", "goose": "geese", "calf": "calves", "run": "ran", "sit": "sat",
        "stand": "stood", "hold": "held", "ride": "rode ridden", "throw": "threw thrown", "catch": "caught",
        "lie": "lay lays laying laid lying lain", "wear": "wore worn", "swim": "swam swum", "swing": "swung",
        "leap": "leapt", "fly": "flew flown flies", "take": "took taken", "eat": "ate eaten", "drive": "drove driven",
        "fall": "fell fallen", "blow": "blew blown", "dig": "dug", "hang": "hung", "sleep": "slept", "speak": "spoke",
        "give": "gave given", "make": "made", "come": "came", "bite": "bit bitten", "hit": "hitting", "ski": "skis",
        "tie": "tying", "grey": "gray", "blond": "blonde",
    }.items()
    for form in forms.split()
}  # fmt: skip
_DOUBLED = "bdgmnprt"  # letters that a short verb doubles: "running", but "rolling"

Words = Sequence[str]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Tally:
    """How many captions have an error, and the place of one that has it, None where none does."""

    count: int
    example: int | None


@dataclass(frozen=True)
class WordCount:
    """A word that is wrong in `count` of the `cases` captions that it could be wrong in, one of them at `example`."""

    word: str
    count: int
    cases: int
    example: int


@dataclass(frozen=True)
class Confusion:
    """A word said in place of another of its class in `count` captions, one of them at `example`."""

    said: str
    expected: str
    word_class: str
    count: int
    example: int


@dataclass(frozen=True)
class CommonErrors:
    """The errors of `captions` captions: by kind (see KINDS), and the words and pairs of words they are made of.

    `unsupported` words are said where no reference has them, of all captions that say them; `missed` words are left out
    where more than half of the references have them, of all captions whose references do. The commonest come first.
    """

    captions: int
    kinds: dict[str, Tally]
    unsupported: tuple[WordCount, ...]
    missed: tuple[WordCount, ...]
    confusions: tuple[Confusion, ...]


def find_errors(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> CommonErrors:
    """Count the errors of captions, each against its image's references, all of them cut into lower-case words."""
    if len(captions) != len(references):
        raise ValueError(f"{len(captions)} captions for {len(references)} images; expected one for each")
    unsupported: _Wrongs[str] = _Wrongs()
    missed: _Wrongs[str] = _Wrongs()
    confusions: _Wrongs[tuple[str, str]] = _Wrongs()
    kinds: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for place, (caption, group) in enumerate(zip(captions, references, strict=True)):
        image = _Image(caption, group)
        for word in image.said:
            unsupported.add(word, place, wrong=word not in image.support, weight=0)
        for word, support in image.expected.items():
            missed.add(word, place, wrong=word not in image.said, weight=support)
        pairs = list(image.confusions())
        for pair in pairs:
            confusions.add(pair, place, wrong=True, weight=image.expected[pair[1]])
        found = {
            "unsupported": any(word not in image.support for word in image.said),
            "missed": any(word not in image.said for word in image.expected),
            "confused": bool(pairs),
            **_slips(caption, group),
        }
        for kind, is_so in found.items():
            if is_so:
                kinds[kind].append(place)
    names = _names(captions, references)
    return CommonErrors(
        len(captions),
        _tallies(kinds),
        tuple(WordCount(names[key], *numbers) for key, numbers in unsupported.top(LISTED)),
        tuple(WordCount(names[key], *numbers) for key, numbers in missed.top(LISTED)),
        tuple(
            Confusion(names[said], names[expected], word_class(names[said]), count, example)
            for (said, expected), (count, _, example) in confusions.top(LISTED)
        ),
    )


def _tallies(kinds: Mapping[str, Sequence[int]]) -> dict[str, Tally]:
    """Count the places of each kind, and give each an example of its own where that can be."""
    found: dict[str, Tally] = {}
    taken: set[int | None] = set()
    for kind, places in kinds.items():
        example = next((place for place in places if place not in taken), places[0] if places else None)
        taken.add(example)
        found[kind] = Tally(len(places), example)
    return found


class _Image:
    """The stems of content words of a caption, and in how many references each stem is."""

    def __init__(self, caption: Words, references: Sequence[Words]) -> None:
        self.said = {stem(word): word_class(word) for word in caption if is_content(word)}
        self.support: Counter[str] = Counter()
        self.classes: dict[str, str] = {}
        for reference in references:
            stems = {stem(word): word_class(word) for word in reference}
            self.support.update(stems.keys())
            self.classes |= stems
        content = {stem(word) for reference in references for word in reference if is_content(word)}
        # With a single reference, nothing is agreed upon.
        self.expected = {
            word: count
            for word, count in self.support.items()
            if word in content and count > max(len(references) / 2, 1)
        }

    def confusions(self) -> Iterable[tuple[str, str]]:
        """Yield words that no reference has with the word of their class that most references have instead."""
        missed = [word for word in self.expected if word not in self.said]
        for word, name in self.said.items():
            if word in self.support or name not in CONFUSED_CLASSES:
                continue
            likely = [other for other in missed if self.classes[other] == name]
            if likely:
                yield word, min(likely, key=lambda other: (-self.expected[other], other))


class _Wrongs(Generic[Key]):
    """Counts what is wrong by a key, out of all cases, and keeps an example of each, the one of most weight."""

    def __init__(self) -> None:
        self.cases: Counter[Key] = Counter()
        self.counts: Counter[Key] = Counter()
        self.examples: dict[Key, tuple[int, int]] = {}  # weight and place

    def add(self, key: Key, place: int, *, wrong: bool, weight: int) -> None:
        """Count a case, and whether it is wrong."""
        self.cases[key] += 1
        if wrong:
            self.counts[key] += 1
            if key not in self.examples or weight > self.examples[key][0]:
                self.examples[key] = weight, place

    def top(self, listed: int) -> list[tuple[Key, tuple[int, int, int]]]:
        """Return keys with how often they are wrong, of how many cases, and an example; the most often first."""
        order = sorted(self.counts.items(), key=lambda item: (-item[1], str(item[0])))
        return [(key, (count, self.cases[key], self.examples[key][1])) for key, count in order[:listed]]


def _slips(caption: Words, references: Sequence[Words]) -> dict[str, bool]:
    """Tell which errors of form a caption has; one without words is empty and nothing else."""
    lengths = [len(reference) for reference in references]
    return {
        "repeated": repeats(caption),
        "unfinished": bool(caption) and caption[-1] in _UNFINISHED,
        "short": 0 < len(caption) < min(lengths),
        "long": len(caption) > max(lengths),
        "empty": not caption,
    }


def repeats(caption: Words) -> bool:
    """Tell whether a word comes twice in a row, or a phrase of two words with a noun or a verb in it twice."""
    pairs = list(pairwise(caption))
    if any(first == second for first, second in pairs):
        return True
    telling = Counter(pair for pair in pairs if any(_is_telling(word) for word in pair))
    return any(count > 1 for count in telling.values())


def _is_telling(word: str) -> bool:
    return is_content(word) and word_class(word) in _PHRASE_CLASSES


def stem(word: str) -> str:
    """Return what the forms of a word have in common; good to compare by, not to be read."""
    word = _IRREGULAR.get(word, word)
    if word.endswith("ies") and len(word) > 4:
        word = word.removesuffix("ies") + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word.removesuffix("es")
    elif word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "us", "is", "'s")):
        word = word.removesuffix("s")
    elif word.endswith("ied") and len(word) > 4:
        word = word.removesuffix("ied") + "y"
    else:
        word = _without_ending(word)
    # "ride" and "riding" meet where neither has its "e".
    return word.removesuffix("e") if len(word) > 3 else word


def _without_ending(word: str) -> str:
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) > 2 and any(letter in "aeiouy" for letter in base):
            return base[:-1] if base[-1] == base[-2] and base[-1] in _DOUBLED else base
    return word


def _names(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> Mapping[str, str]:
    """Return the commonest form of each stem, the first by spelling of several that are equally common."""
    forms = Counter(word for caption in captions for word in caption)
    forms.update(word for group in references for reference in group for word in reference)
    names: dict[str, str] = {}
    for word, _ in sorted(forms.items(), key=lambda item: (-item[1], item[0])):
        names.setdefault(stem(word), word)
    return names
