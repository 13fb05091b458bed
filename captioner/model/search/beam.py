"""Beam search: batched over images and beams, on the decoder's step.

The K beams of an image are K captions of it to the decoder, so its regions are shared and projected once, and beams
that continue the same one share what does not depend on their words. An image whose best captions are certain leaves
the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START
from captioner.model.decoder import Decoder
from captioner.model.regions import Regions
from captioner.model.search.hypotheses import BackPointers, Choice, Finished, Hypothesis
from captioner.model.search.next_words import ContentWords, NotFinite, next_word_scores, nothing, top_totals
from captioner.model.search.sampling import sample
from captioner.model.search_settings import SearchConfig

__all__ = ["Hypothesis", "beam_search", "nothing", "search"]

LEAVE = 8  # one image in so many must be finished before it pays to make the batch smaller


def search(
    decoder: Decoder,
    regions: Tensor | Regions,
    config: SearchConfig,
    best: int = 1,
    seeds: Sequence[int] | None = None,
    content: ContentWords | None = None,
    check: Callable[[], None] = nothing,
) -> list[list[Hypothesis]]:
    """Return up to `best` captions of each of B images of regions (B, L, D), the best first, as `config` says.

    Sampling takes `seeds`, one for each image, and an image's captions depend on its own seed alone. A limit of content
    words takes those of the vocabulary. `check` is called before each word, and ends the search by raising. `NotFinite`
    says that the decoder's scores are no numbers.
    """
    if config.method == "sample":
        if seeds is None:
            raise ValueError("seeds is None; sampling needs one number for each image")
        return sample(decoder, regions, config, seeds, best, content, check)
    return beam_search(decoder, regions, config, best, content, check)


def beam_search(
    decoder: Decoder,
    regions: Tensor | Regions,
    config: SearchConfig,
    best: int = 1,
    content: ContentWords | None = None,
    check: Callable[[], None] = nothing,
) -> list[list[Hypothesis]]:
    """Return the `best` captions of each of B images of regions (B, L, D), the best first.

    Captions that ended come before those cut off, at the maximum length or where no word may follow. With groups, the
    best caption of each comes before the second best of any, and no caption comes twice. `check` is as for `search`.
    """
    if not 1 <= best <= config.beam:
        raise ValueError(f"best is {best}; a beam of {config.beam} gives 1 to {config.beam} captions")
    with torch.no_grad():
        beams = _Beams(decoder, regions, config, best, content)
        for _ in range(config.maximum_length + 1):  # no caption is longer, whatever the scores are
            if not len(beams.images):
                break
            check()
            beams.advance()
        return beams.found()


@dataclass(frozen=True)
class _GroupChoice:
    """How one group of k beams continues, and which of its captions end."""

    going: Choice  # (b, k)
    totals: Tensor  # (b, k) log probabilities of the captions so far, -inf for no beam
    ended: Tensor  # (b, k) log probabilities of the captions that end, -inf for none
    enders: Tensor  # (b, k), their beams

    @classmethod
    def join(cls, groups: Sequence[_GroupChoice]) -> _GroupChoice:
        """Return the choices of all groups, (b, K)."""
        tensors = ((group.totals, group.ended, group.enders) for group in groups)
        going = Choice.join([group.going for group in groups])
        return cls(going, *(torch.cat(parts, dim=1) for parts in zip(*tensors, strict=True)))


class _Beams:
    """A search under way: G groups of k beams, K in all, for each of b images; at first all beams are one."""

    def __init__(
        self, decoder: Decoder, regions: Tensor | Regions, config: SearchConfig, best: int, content: ContentWords | None
    ) -> None:
        self.decoder, self.config, self.best, self.content = decoder, config, best, content
        self.width = config.beam // config.groups
        self.inputs, self.state = decoder.start(regions)  # (b, 1, H)
        self.images = torch.arange(len(regions), device=regions.device)  # (b,), those still in the batch
        self.parents = self.images.new_zeros(len(regions), 1)  # (b, K), the state that each beam continues
        self.words = torch.full_like(self.parents, START)  # (b, K), which it reads next
        self.history = self.parents.new_empty(len(regions), 1, 0)  # (b, K, t), which it has said
        dtype = torch.promote_types(regions.dtype, torch.float32)
        self.totals = torch.zeros_like(self.parents, dtype=dtype)  # (b, K) log probabilities, -inf for no beam
        self.ended = self.parents.new_zeros(len(regions), config.groups)  # (b, G) captions
        leaders = (len(regions), config.groups, min(best, self.width))
        self.leaders = self.totals.new_full(leaders, -math.inf)  # (b, G, n) best scores of captions that ended
        self.pointers = BackPointers(len(regions))
        self.finished: list[Finished] = []

    def advance(self) -> None:
        """Read the word of each beam, choose the beams to continue, and let images go that are finished."""
        step, logits = self.decoder.read(self.inputs, self.state, self.words, self.parents)  # (b, K, V)
        scores = next_word_scores(logits, self.history, self.config, self.content)  # (b, K, V)
        best = scores.amax(dim=-1)  # (b, K)
        stuck = best.isneginf()  # (b, K), beams that no word may follow
        if not bool((best > -math.inf).all()):
            if bool(best.isnan().any()):
                raise NotFinite
            beams = torch.arange(stuck.shape[1], device=stuck.device).expand_as(self.parents)  # (b, K)
            self._finish(self.totals.masked_fill(~stuck, -math.inf), beams, ended=False)
        groups: list[_GroupChoice] = []
        for group in range(self.config.groups):
            groups.append(self._choose(group, scores, groups))
        chosen = _GroupChoice.join(groups)  # (b, K)
        self._finish(chosen.ended, chosen.enders, ended=True)
        self.pointers.add(self.images, chosen.going, step.alpha, step.beta, step.fixations)
        parents, self.words = chosen.going.parents, chosen.going.words
        # Before the first end of all, nothing is certain, and no image is finished.
        self.totals = self._certain(chosen.totals, chosen.ended) if self.finished else chosen.totals
        # A beam that is none must not ask for a look of its own.
        self.parents = parents.where(self.totals > -math.inf, parents[:, :1])
        history = self.history.gather(1, parents.unsqueeze(-1).expand(*parents.shape, self.history.shape[2]))
        self.history = torch.cat([history, self.words.unsqueeze(-1)], dim=2)  # (b, K, t + 1)
        self.state = step.state
        if self.finished:
            self._leave()

    def _choose(self, group: int, scores: Tensor, before: list[_GroupChoice]) -> _GroupChoice:
        """Return how a group continues, by the scores (b, K, V) of the words to follow each beam.

        `before` are the choices of the groups before it.
        """
        count = scores.shape[1] // self.config.groups or 1  # beams of this group; at first all groups have but one
        first = group * count if scores.shape[1] > 1 else 0
        beams = slice(first, first + count)
        # Twice as many as beams: each may end only once, so that all of them continue. What other groups said costs,
        # and each of these words may put one continuation of each beam behind others.
        others = sum(other.totals.shape[1] for other in before)
        wanted = 2 * self.width + others * count  # c
        totals, places = top_totals(self.totals[:, beams], scores[:, beams], wanted)  # (b, c)
        parents, words = first + places // scores.shape[2], places % scores.shape[2]  # (b, c)
        if before:
            ranks = totals
            for other in before:
                said = other.going.words.masked_fill(other.totals.isneginf(), PAD).unsqueeze(1)  # (b, 1, k)
                ranks = ranks - self.config.diversity * (words.unsqueeze(-1) == said).sum(dim=-1)
            order = ranks.argsort(dim=1, descending=True, stable=True)[:, : 2 * self.width]  # (b, 2k)
            totals, parents, words = totals.gather(1, order), parents.gather(1, order), words.gather(1, order)
        # Only an end among as many as there are beams counts: what is better than it fills the others.
        ends = words == END  # (b, 2k)
        ended, enders = totals.masked_fill(~ends, -math.inf)[:, : self.width], parents[:, : self.width]
        # Beams that do not end, in order of their ranks; a stable sort puts them before those that do.
        totals = totals.masked_fill(ends, -math.inf)
        order = totals.isneginf().to(torch.uint8).argsort(dim=1, stable=True)[:, : self.width]  # (b, k)
        totals, parents, words = totals.gather(1, order), parents.gather(1, order), words.gather(1, order)
        log_probs = scores.flatten(1).gather(1, parents * scores.shape[2] + words)  # (b, k)
        return _GroupChoice(Choice(parents, words, log_probs), totals, ended, enders)

    def _certain(self, totals: Tensor, ended: Tensor) -> Tensor:
        """Return the totals (b, K) of beams, -inf for those of groups whose best captions are certain.

        They are when as many have ended (b, G, e) as there are beams, or when no beam can come among the best.
        """
        ended = ended.view(len(ended), self.config.groups, -1)  # (b, G, e)
        self.ended = self.ended + (ended > -math.inf).sum(dim=-1)
        scores = ended / (self.history.shape[2] + 1) ** self.config.length_power
        self.leaders, _ = torch.cat([self.leaders, scores], dim=-1).topk(self.leaders.shape[-1], dim=-1)
        grouped = totals.view(len(totals), self.config.groups, -1)  # (b, G, k)
        # More words only lower a log probability, and the longest caption divides it most.
        bound = grouped.amax(dim=-1) / (self.config.maximum_length + 1) ** self.config.length_power  # (b, G)
        certain = (self.ended >= self.width) | (bound <= self.leaders[..., -1])
        return grouped.masked_fill(certain.unsqueeze(-1), -math.inf).flatten(1)

    def _leave(self) -> None:
        """Let images go that have no beam left, once they are enough to make up for the copying."""
        staying = (self.totals > -math.inf).any(dim=1).nonzero().squeeze(1)  # (b,)
        if len(self.images) - len(staying) < len(self.images) / LEAVE and len(staying):
            return
        self.images = self.images[staying]
        if len(staying):
            self.inputs, self.state = self.inputs.select(staying), self.state.select(staying)
            self.parents, self.words, self.history = self.parents[staying], self.words[staying], self.history[staying]
            self.totals, self.ended, self.leaders = self.totals[staying], self.ended[staying], self.leaders[staying]

    def _finish(self, log_probs: Tensor, beams: Tensor, ended: bool) -> None:
        """Keep captions (b, K) that are finished, -inf for none, and the beams (b, K) whose words they are."""
        if not bool((log_probs > -math.inf).any()):
            return
        log_probs = self._by_group(self.pointers.widen(log_probs, self.images, -math.inf))  # (B, G, k)
        beams = self._by_group(self.pointers.widen(beams, self.images))  # (B, G, k)
        lengths = torch.full_like(beams, self.history.shape[2])
        by_marker = torch.full_like(beams, ended, dtype=torch.bool)
        self.finished.append(Finished(beams, lengths, log_probs, by_marker))

    def _by_group(self, beams: Tensor) -> Tensor:
        """Return (B, K) as (B, G, k); the one beam before the first word is in every group."""
        if beams.shape[1] == 1:
            return beams.unsqueeze(1).expand(-1, self.config.groups, -1)
        return beams.view(len(beams), self.config.groups, -1)

    def found(self) -> list[list[Hypothesis]]:
        """Return the best captions of each image."""
        if not self.pointers.images:
            return []
        if not self.finished:
            raise NotFinite
        power = self.config.length_power
        best = Finished.join(self.finished).best(power, self.leaders.shape[-1])  # (B, G, n)
        best = best.map(lambda tensor: tensor.transpose(1, 2)).best(power, self.config.groups)  # (B, n, G)
        found = self.pointers.hypotheses(best.map(lambda tensor: tensor.flatten(1)), power)
        if not all(found):  # log probabilities so low that they add up to none at all
            raise NotFinite
        return [_different(hypotheses)[: self.best] for hypotheses in found]


def _different(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses without those whose words came before."""
    first: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in hypotheses:
        first.setdefault(hypothesis.ids, hypothesis)
    return list(first.values())
