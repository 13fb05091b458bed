"""BLEU as sacrebleu computes it, of whole test sets and by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

try:
    from sacrebleu.metrics.bleu import BLEU
except ImportError:
    raise SystemExit("error: sacrebleu is missing; pip install 'captioner[translation]'") from None

EDGES = (8, 10, 12, 14, 17, 21)  # words at which a new group of lengths starts


@dataclass(frozen=True)
class Bleu:
    """A score, 0..100, and sacrebleu's signature, which says how it was computed."""

    score: float
    signature: str


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Return BLEU of translations, one reference each: cased, tokenised by sacrebleu."""
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the sentences with `shortest` to `longest` words in the source."""

    shortest: int
    longest: int
    sentences: int
    words: float  # on average
    bleu: float


def bleu_by_length(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], edges: Sequence[int] = EDGES
) -> list[LengthScore]:
    """Return BLEU of groups of sentences, by the words of the source; groups without a sentence are left out."""
    lengths = [len(source.split()) for source in sources]
    found = []
    for low, high in zip((0, *edges), (*edges, max(lengths, default=0) + 1), strict=True):
        places = [place for place, length in enumerate(lengths) if low <= length < high]
        if places:
            said, meant = ([texts[place] for place in places] for texts in (translations, references))
            inside = [lengths[place] for place in places]
            score = corpus_bleu(said, meant).score
            found.append(LengthScore(min(inside), max(inside), len(places), sum(inside) / len(inside), score))
    return found
