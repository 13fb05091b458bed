"""What a search finds, and the back pointers by which it is traced back word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.model.glimpse import Fixations


@dataclass(frozen=True)
class Hypothesis:
    """One caption: `ids` of its T words without markers, and how sure the decoder was.

    `log_prob` is that of all words and, where the caption `ended`, of the end marker; `score` ranks hypotheses. For
    each word `probabilities` (T,), the attention `alpha` (T, L) it was chosen under, and the mean gate `beta` (T,).
    Where a policy chose points to look at, `points` (T, G, 2) and their `extents` are those of `Fixations`.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool
    probabilities: Tensor
    alpha: Tensor
    beta: Tensor
    points: Tensor | None = None
    extents: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finished:
    """Captions that are complete: what it takes to rank them and to trace them back."""

    beams: Tensor  # (B, ..., n) whose words they are
    lengths: Tensor  # (B, ..., n) words
    log_probs: Tensor  # (B, ..., n) of the whole caption, -inf for none
    ended: Tensor  # (B, ..., n) bool: by an end marker, or else cut off

    def best(self, length_power: float, count: int) -> Finished:
        """Return the first `count` along the last dimension: those that ended, then those cut off, each by score."""
        scores = self.log_probs / (self.lengths + 1) ** length_power
        order = scores.argsort(dim=-1, descending=True, stable=True)  # (B, ..., n)
        rank = (~self.ended).long() + 2 * self.log_probs.isneginf()  # 0 ended, 1 cut off, 2 none
        order = order.gather(-1, rank.gather(-1, order).argsort(dim=-1, stable=True))[..., :count]
        return self.map(lambda tensor: tensor.gather(-1, order))

    def map(self, change: Callable[[Tensor], Tensor]) -> Finished:
        """Return captions whose tensors have all been changed alike."""
        return Finished(change(self.beams), change(self.lengths), change(self.log_probs), change(self.ended))

    @classmethod
    def join(cls, parts: Sequence[Finished]) -> Finished:
        """Return the captions of all parts, one after the other along the last dimension."""
        columns = ((part.beams, part.lengths, part.log_probs, part.ended) for part in parts)
        return cls(*(torch.cat(tensors, dim=-1) for tensors in zip(*columns, strict=True)))


@dataclass(frozen=True)
class Choice:
    """The words that one step chose: k beams became K."""

    parents: Tensor  # (B, K) the beam that each new beam continues
    words: Tensor  # (B, K)
    log_probs: Tensor  # (B, K) of the words

    def map(self, change: Callable[[Tensor], Tensor]) -> Choice:
        """Return a choice whose tensors have all been changed alike."""
        return Choice(change(self.parents), change(self.words), change(self.log_probs))

    @classmethod
    def join(cls, parts: Sequence[Choice]) -> Choice:
        """Return the choices of all parts, one after the other along the beams."""
        columns = ((part.parents, part.words, part.log_probs) for part in parts)
        return cls(*(torch.cat(tensors, dim=1) for tensors in zip(*columns, strict=True)))


@dataclass(frozen=True)
class _Link:
    """One step back: what was chosen, and where the k beams that it was chosen from looked."""

    choice: Choice
    alpha: Tensor  # (B, k, L)
    beta: Tensor  # (B, k)
    points: Tensor  # (B, k, 2G), G is 0 where no points are chosen


@dataclass(frozen=True)
class _Traced:
    """Captions read back from their ends; beyond a caption's length anything. Of one word there is no T."""

    ids: Tensor  # (B, n, T)
    log_probs: Tensor  # (B, n, T)
    alpha: Tensor  # (B, n, T, L)
    beta: Tensor  # (B, n, T)
    points: Tensor  # (B, n, T, 2G)

    @classmethod
    def join(cls, words: Sequence[_Traced]) -> _Traced:
        """Return the captions of which these are the words."""
        columns = ((word.ids, word.log_probs, word.alpha, word.beta, word.points) for word in words)
        return cls(*(torch.stack(tensors, dim=2) for tensors in zip(*columns, strict=True)))


class BackPointers:
    """The choices of a search for captions of B images, one step after the other."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.links: list[_Link] = []
        self.extents: tuple[float, ...] = ()

    def add(
        self, images: Tensor, choice: Choice, alpha: Tensor, beta: Tensor, fixations: Fixations | None = None
    ) -> None:
        """Note a step of the `images` (b,) still in the batch: what was chosen for each new beam (b, K).

        The attention alpha (b, k, L), the gates beta (b, k, G) and what fixations there are (b, k, ...) are those of
        the k beams from which it was chosen.
        """
        points = alpha[..., :0]  # (b, k, 0)
        if fixations is not None:
            points, self.extents = fixations.points.flatten(2), fixations.extents  # (b, k, 2G)
        widened = choice.map(lambda tensor: self.widen(tensor, images))
        looks = (self.widen(each, images) for each in (alpha, beta.mean(dim=-1), points))
        self.links.append(_Link(widened, *looks))

    def widen(self, rows: Tensor, images: Tensor, fill: float = 0) -> Tensor:
        """Return rows (b, ...) at the places of their images among all (B, ...), `fill` elsewhere."""
        if len(images) == self.images:
            return rows
        return rows.new_full((self.images, *rows.shape[1:]), fill).index_copy_(0, images, rows)

    def hypotheses(self, finished: Finished, length_power: float) -> list[list[Hypothesis]]:
        """Return the captions that are finished, up to n for each of B images in the order given."""
        traced = self._trace(finished.beams, finished.lengths)
        probabilities, words = traced.log_probs.exp(), traced.ids.tolist()
        found: list[list[Hypothesis]] = []
        numbers = (finished.lengths.tolist(), finished.log_probs.tolist(), finished.ended.tolist())
        for image, rows in enumerate(zip(*numbers, strict=True)):
            found.append([])
            for place, (length, log_prob, ended) in enumerate(zip(*rows, strict=True)):
                if log_prob == -torch.inf:
                    continue
                # Copies, so that a caption does not keep those of the whole batch in memory.
                tensors = (probabilities, traced.alpha, traced.beta, traced.points)
                sure, alpha, beta, points = (tensor[image, place, :length].clone() for tensor in tensors)
                chosen = points.view(length, points.shape[-1] // 2, 2) if self.extents else None  # (T, G, 2)
                said, score = tuple(words[image][place][:length]), log_prob / (length + 1) ** length_power
                looks = (alpha, beta, chosen, self.extents)
                found[image].append(Hypothesis(said, log_prob, score, ended, sure, *looks))
        return found

    def _trace(self, beams: Tensor, lengths: Tensor) -> _Traced:
        """Return the captions of so many words (B, n) that end in these beams (B, n)."""
        traced: list[_Traced] = []  # the last word first
        for length in range(int(lengths.max()), 0, -1):
            link = self.links[length - 1]
            going = lengths >= length  # (B, n)
            places = beams.where(going, 0)  # (B, n)
            choice = link.choice.map(lambda tensor, places=places: tensor.gather(1, places))  # type: ignore[misc]  # (B, n)
            alpha, points = (_of_parents(each, choice.parents) for each in (link.alpha, link.points))  # (B, n, ...)
            beta = link.beta.gather(1, choice.parents)  # (B, n)
            traced.append(_Traced(choice.words, choice.log_probs, alpha, beta, points))
            beams = choice.parents.where(going, beams)
        if not traced:  # every caption is empty
            alpha, points = (
                each[:, :1].expand(*beams.shape, -1).unsqueeze(2)[:, :, :0]
                for each in (self.links[0].alpha, self.links[0].points)
            )  # (B, n, 0, ...)
            blank = self.links[0].choice.log_probs.new_empty(*beams.shape, 0)  # (B, n, 0)
            return _Traced(blank.long(), blank, alpha, blank, points)
        return _Traced.join(traced[::-1])


def _of_parents(values: Tensor, parents: Tensor) -> Tensor:
    """Return what belongs to parents (B, n), (B, n, X), of values (B, k, X)."""
    return values.gather(1, parents.unsqueeze(-1).expand(*parents.shape, values.shape[-1]))
