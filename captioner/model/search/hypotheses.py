"""What a search finds, and the trail by which it is traced back word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One caption: `ids` of its T words without markers, and how sure the decoder was.

    `log_prob` is that of all words and, where the caption `ended`, of the end marker; `score` ranks hypotheses. For
    each word `probabilities` (T,), the attention `alpha` (T, L) it was chosen under, and the mean gate `beta` (T,).
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool
    probabilities: Tensor
    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True)
class Ends:
    """Captions that are over: what it takes to rank them and to trace them back."""

    beams: Tensor  # (B, ..., n) whose words they are
    lengths: Tensor  # (B, ..., n) words
    log_probs: Tensor  # (B, ..., n) of the whole caption, -inf for none
    ended: Tensor  # (B, ..., n) bool: by an end marker, or else cut off

    def best(self, length_power: float, count: int) -> Ends:
        """Return the first `count` along the last dimension: those that ended, then those cut off, each by score."""
        scores = self.log_probs / (self.lengths + 1) ** length_power
        order = scores.argsort(dim=-1, descending=True, stable=True)  # (B, ..., n)
        rank = (~self.ended).long() + 2 * self.log_probs.isneginf()  # 0 ended, 1 cut off, 2 none
        order = order.gather(-1, rank.gather(-1, order).argsort(dim=-1, stable=True))[..., :count]
        return self.map(lambda tensor: tensor.gather(-1, order))

    def map(self, change: Callable[[Tensor], Tensor]) -> Ends:
        """Return ends whose tensors have all been changed alike."""
        return Ends(change(self.beams), change(self.lengths), change(self.log_probs), change(self.ended))

    @classmethod
    def join(cls, parts: Sequence[Ends]) -> Ends:
        """Return all ends of some parts, end to end along the last dimension."""
        columns = ((part.beams, part.lengths, part.log_probs, part.ended) for part in parts)
        return cls(*(torch.cat(tensors, dim=-1) for tensors in zip(*columns, strict=True)))


@dataclass(frozen=True)
class _Choice:
    """The words that one step chose: k beams became K."""

    parents: Tensor  # (B, K) the beam that each new beam goes on from
    words: Tensor  # (B, K)
    log_probs: Tensor  # (B, K) of the words
    alpha: Tensor  # (B, k, L) that a beam looked with before any word was chosen
    beta: Tensor  # (B, k)


class Trail:
    """The choices of a search for captions of B images, one step after the other."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.choices: list[_Choice] = []

    def add(
        self, images: Tensor, parents: Tensor, words: Tensor, log_probs: Tensor, alpha: Tensor, beta: Tensor
    ) -> None:
        """Note a step of the `images` (b,) still in the batch: for each new beam (b, K) its parent and its word.

        The attention alpha (b, k, L) and the gates beta (b, k, G) are those of the k beams from which they were chosen.
        """
        tensors = (parents, words, log_probs, alpha, beta.mean(dim=-1))
        self.choices.append(_Choice(*(self.widen(tensor, images) for tensor in tensors)))

    def widen(self, rows: Tensor, images: Tensor, fill: float = 0) -> Tensor:
        """Return rows (b, ...) at the places of their images among all (B, ...), `fill` elsewhere."""
        if len(images) == self.images:
            return rows
        return rows.new_full((self.images, *rows.shape[1:]), fill).index_copy_(0, images, rows)

    def hypotheses(self, ends: Ends, length_power: float) -> list[list[Hypothesis]]:
        """Return the captions that ended so, up to n for each of B images in the order given."""
        ids, log_probs, alpha, beta = self._trace(ends.beams, ends.lengths)
        probabilities, words = log_probs.exp(), ids.tolist()
        found: list[list[Hypothesis]] = []
        numbers = (ends.lengths.tolist(), ends.log_probs.tolist(), ends.ended.tolist())
        for image, rows in enumerate(zip(*numbers, strict=True)):
            found.append([])
            for place, (length, log_prob, ended) in enumerate(zip(*rows, strict=True)):
                if log_prob == -torch.inf:
                    continue
                # Copies, so that a caption does not keep those of the whole batch in memory.
                own = (tensor[image, place, :length].clone() for tensor in (probabilities, alpha, beta))
                score = log_prob / (length + 1) ** length_power
                found[image].append(Hypothesis(tuple(words[image][place][:length]), log_prob, score, ended, *own))
        return found

    def _trace(self, beams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ids, log probabilities and beta (B, n, T), and alpha (B, n, T, L); beyond a caption's end anything."""
        steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for length in range(int(lengths.max()), 0, -1):
            choice = self.choices[length - 1]
            going = lengths >= length  # (B, n)
            own = beams.where(going, 0)  # (B, n)
            parents = choice.parents.gather(1, own)  # (B, n)
            alpha = choice.alpha.gather(1, parents.unsqueeze(-1).expand(*own.shape, choice.alpha.shape[-1]))
            steps.append(
                (choice.words.gather(1, own), choice.log_probs.gather(1, own), choice.beta.gather(1, parents), alpha)
            )
            beams = parents.where(going, beams)
        if not steps:  # every caption is empty
            alpha = self.choices[0].alpha[:, :1].expand(*beams.shape, -1)  # (B, n, L)
            blank = self.choices[0].log_probs.new_empty(*beams.shape, 0)  # (B, n, 0)
            return blank.long(), blank, alpha.unsqueeze(2)[:, :, :0], blank
        ids, log_probs, beta, alpha = (torch.stack(tensors[::-1], dim=2) for tensors in zip(*steps, strict=True))
        return ids, log_probs, alpha, beta
