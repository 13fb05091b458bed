"""The words that may come next: what the rules of a search leave of the decoder's scores, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.datasets.word_classes import content_groups
from captioner.model.search_settings import SearchConfig

CHUNK = 32  # scores of which only the best is looked at first


def nothing() -> None:
    """Do nothing: how a search is checked that nobody wants to end."""


class NotFinite(ValueError):
    """A decoder's scores are no numbers, so that no caption is better than another."""

    def __init__(self) -> None:
        super().__init__("the model's scores are not finite numbers; its weights are damaged, or far too large")


@dataclass(frozen=True)
class ContentWords:
    """The V words of a vocabulary in groups of which a caption may say one only so often: "dog" and "dogs"."""

    groups: Tensor  # (V,), 0 for words that say nothing of an image
    members: Tensor  # (G, m), the words of each group, filled up with PAD

    @classmethod
    def find(cls, words: Sequence[str], device: str = "cpu") -> ContentWords:
        """Return those among the words of a vocabulary, its markers included."""
        groups = content_groups(words)
        members: list[list[int]] = [[] for _ in range(max(groups) + 1)]
        for word, group in enumerate(groups):
            if group:
                members[group].append(word)
        most = max(1, *map(len, members))
        filled = [[*ids, *[PAD] * (most - len(ids))] for ids in members]
        return cls(torch.tensor(groups, device=device), torch.tensor(filled, device=device))

    def spent(self, history: Tensor, limit: int) -> Tensor:
        """Return the words (B, K, t * m) that captions (B, K, t) have said `limit` times; PAD stands for none."""
        said = self.groups[history]  # (B, K, t)
        times = (said.unsqueeze(-1) == said.unsqueeze(-2)).sum(dim=-1)  # (B, K, t)
        return self.members[said.masked_fill(times < limit, 0)].flatten(2)


def next_word_scores(
    logits: Tensor, history: Tensor, config: SearchConfig, content: ContentWords | None = None
) -> Tensor:
    """Return log probabilities (B, K, V) of the next word after `history` (B, K, t), what may not be said at -inf."""
    scores = logits.log_softmax(dim=-1)  # (B, K, V)
    length = history.shape[2]
    if length == config.maximum_length:  # only the end may follow
        ended = scores[..., END].clone()
        scores.fill_(-math.inf)[..., END] = ended
        return scores
    for word in (PAD, START, UNKNOWN):
        scores[..., word] = -math.inf
    if length < config.minimum_length:
        scores[..., END] = -math.inf
    span = config.no_repeat
    if span and length >= span:
        said = history.unfold(2, span, 1)  # (B, K, t - span + 1, span)
        again = (said[..., :-1] == history[:, :, None, length - span + 1 :]).all(dim=-1)  # (B, K, t - span + 1)
        image, beam, place = again.nonzero(as_tuple=True)
        scores[image, beam, said[image, beam, place, -1]] = -math.inf
    if config.content_limit:
        if content is None:
            raise ValueError(f"search content_limit is {config.content_limit}; it needs the words of the vocabulary")
        scores.scatter_(2, content.spent(history, config.content_limit), -math.inf)
    return scores


def top_totals(totals: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best sums of totals (B, k) and scores (B, k, V), or all, the best first, and their places.

    They all lie in the chunks whose own best are among the best, so that only these are added up and sorted. The plain
    line: (totals.unsqueeze(-1) + scores).flatten(1).topk(count, dim=1)
    """
    batch, beams, words = scores.shape
    chunks = words // CHUNK
    if beams * chunks <= count:
        sums = (totals.unsqueeze(-1) + scores).flatten(1)  # (B, k * V)
        return sums.topk(min(count, sums.shape[1]), dim=1)
    # A chunk is every C-th word: a maximum over rows is faster than one within them.
    whole = scores[..., : chunks * CHUNK].view(batch, beams, CHUNK, chunks)  # (B, k, 32, C)
    best = totals.unsqueeze(-1) + whole.amax(dim=-2)  # (B, k, C)
    _, best = best.flatten(1).topk(count, dim=1, sorted=False)  # (B, count)
    inside = torch.arange(0, chunks * CHUNK, chunks, device=scores.device)
    rest = torch.arange(chunks * CHUNK, words, device=scores.device)  # what makes no whole chunk
    firsts = torch.arange(0, beams * words, words, device=scores.device).unsqueeze(-1)  # (k, 1)
    candidates = (best // chunks * words + best % chunks).unsqueeze(-1) + inside  # (B, count, 32)
    candidates = torch.cat([candidates.flatten(1), (firsts + rest).flatten().expand(batch, -1)], dim=1)
    sums = totals.gather(1, candidates // words) + scores.flatten(1).gather(1, candidates)
    values, places = sums.topk(count, dim=1)  # (B, count)
    return values, candidates.gather(1, places)
