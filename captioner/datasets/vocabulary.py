"""Words and their ids: split captions into words, encode them, and turn ids back into a readable sentence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from captioner.datasets.annotations import is_text, shown

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")

# What the tokenizer splits off the end of a word, and what `join_words` puts back.
CONTRACTIONS = frozenset({"'s", "'re", "'ve", "'ll", "'d", "'m", "n't"})
# Words that the tokenizer cuts in two without an apostrophe; "can not" is left as it reads well.
CUT_WORDS = {"cannot": (), "gonna": ("gon", "na"), "wanna": ("wan", "na"), "gotta": ("got", "ta"),
             "gimme": ("gim", "me"), "lemme": ("lem", "me")}  # fmt: skip
PLAIN_TEXT = re.compile(r"[a-z0-9 -]*[ .]*")


@cache
def _tokenizer() -> Any:
    # Imported here because nltk takes over a second, which no command that never tokenizes should pay.
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words without punctuation; "'s" and "n't" are words, hyphens stay inside one."""
    # A curly apostrophe would be split from its contraction, and a decomposed accent from its letter.
    text = unicodedata.normalize("NFC", caption).replace("\u2019", "'").replace("\u2018", "'").lower()
    pieces = _plain_pieces(text)
    if pieces is None:
        pieces = _tokenizer().tokenize(text)
    words = (word if word.isalnum() or word in CONTRACTIONS else _bare(word) for word in pieces)
    return [word for word in words if word]


def _plain_pieces(text: str) -> list[str] | None:
    """Split lower-case text at its spaces where the tokenizer would do just that, or return None."""
    # Nearly all captions are plain, and the tokenizer's thirty regular expressions make COCO's 600,000 a long wait.
    text = text.replace(", ", " ")
    if not PLAIN_TEXT.fullmatch(text) or "--" in text or any(word in text for word in CUT_WORDS):
        return None
    return text.rstrip(" .").split()


def _bare(word: str) -> str:
    """Strip punctuation and symbols from both ends; nothing is left of a word without letters or digits."""
    if not any(character.isalnum() for character in word):
        return ""
    # By category rather than by isalnum, which is false for the vowel signs that end words in many scripts.
    first, last = 0, len(word)
    while unicodedata.category(word[first])[0] in "PSC":
        first += 1
    while unicodedata.category(word[last - 1])[0] in "PSC":
        last -= 1
    return word[first:last]


def join_words(words: Iterable[str]) -> str:
    """Join words to a sentence and put contractions back: "the man 's dog" becomes "the man's dog"."""
    pieces: list[str] = []
    previous = ""
    for word in words:
        if previous and (word in CONTRACTIONS or (previous, word) in CUT_WORDS.values()):
            pieces[-1] += word
        else:
            pieces.append(word)
        previous = word
    return " ".join(pieces)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words a model knows, V of them; a word's id is its place in `entries`, and the four specials come first."""

    entries: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.entries[: len(SPECIALS)] != SPECIALS:
            found = ", ".join(map(shown, self.entries[: len(SPECIALS)])) or "nothing"
            raise ValueError(f"a vocabulary starts with {found}, expected {', '.join(SPECIALS)}")
        words = self.entries[len(SPECIALS) :]
        wrong = [word for word in words if not is_text(word) or not word or word.isspace()]
        if wrong:
            raise ValueError(f"a vocabulary holds {shown(wrong[0])}, expected words")
        repeated = [word for word, count in Counter(self.entries).items() if count > 1]
        if repeated:
            raise ValueError(f"a vocabulary holds {', '.join(map(shown, repeated[:5]))} more than once")
        # Without the specials: a caption that spells "<end>" must not end there.
        object.__setattr__(self, "_ids", {word: number for number, word in enumerate(words, start=len(SPECIALS))})

    @classmethod
    def build(cls, token_lists: Iterable[Iterable[str]], minimum_count: int) -> Vocabulary:
        """Take the words seen at least `minimum_count` (1 or more) times, the most frequent first, then by spelling."""
        if minimum_count < 1:
            raise ValueError(f"minimum_count is {minimum_count}, expected 1 or more")
        counts = Counter(word for tokens in token_lists for word in tokens if word not in SPECIALS)
        kept = [word for word, count in counts.items() if count >= minimum_count]
        return cls((*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))))

    def extended(self, other: Vocabulary) -> Vocabulary:
        """Return these words, with the same ids, and after them those of `other` that are new."""
        return Vocabulary((*self.entries, *(word for word in other.entries[len(SPECIALS) :] if word not in self)))

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, word: object) -> bool:
        """Tell whether a caption's word has an id of its own; the specials are no words."""
        return word in self._ids

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of a caption's T words between <start> and <end>, T + 2 of them in 0..V-1."""
        return [START, *(self._ids.get(word, UNKNOWN) for word in tokens), END]

    def words(self, ids: Iterable[int]) -> list[str]:
        """Return the words of ids (in 0..V-1) up to the first <end>, without <pad> and <start>."""
        words = []
        for number in map(int, ids):
            if not 0 <= number < len(self.entries):
                raise ValueError(f"word id {number} is outside 0..{len(self.entries) - 1}")
            if number == END:
                break
            if number not in (PAD, START):
                words.append(self.entries[number])
        return words

    def to_dict(self) -> dict[str, list[str]]:
        """Return what `from_dict` needs, ready for JSON."""
        return {"words": list(self.entries)}

    @classmethod
    def from_dict(cls, content: object) -> Vocabulary:
        """Rebuild a vocabulary from what `to_dict` returned, after checking it."""
        words = content.get("words") if isinstance(content, dict) else None
        if not isinstance(words, list):
            raise ValueError(f"a vocabulary is an object with a list 'words', found {type(content).__name__}")
        return cls(tuple(words))
