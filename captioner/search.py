"""Search for captions: batched over images and beams, on the decoder's own step.

The K beams of an image are K captions of it to the decoder, so its regions are shared and projected once. An image
whose best captions are certain leaves the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.config import SearchConfig
from captioner.decoder import Decoder, State, Step
from captioner.vocabulary import END, PAD, START, UNKNOWN

_Look = tuple[Tensor, Tensor, Tensor]  # behind a word: its log probability, alpha (..., L), the mean of beta


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
class _Past:
    """One step of the search, kept to trace captions back: what each beam was before its choice."""

    rows: dict[int, int]  # of each image in this step's batch
    parents: Tensor  # (B, K) the beam each new beam goes on from
    log_probs: Tensor  # (B, K) of the word that each new beam took
    alpha: Tensor  # (B, K, L) by parent
    beta: Tensor  # (B, K) by parent


@torch.no_grad()
def greedy_search(decoder: Decoder, regions: Tensor, config: SearchConfig) -> list[Hypothesis]:
    """Return the caption (B of them) that takes the best next word each time, whatever `beam` is."""
    scene, state = decoder.start(regions)
    words = torch.full((len(regions), 1), START, device=regions.device)  # (B, 1)
    history = words.new_empty(len(regions), 1, 0)  # (B, 1, t)
    looks: list[_Look] = []
    for _ in range(config.maximum_length + 1):
        step = decoder.step(scene, state, words)
        state = step.state
        log_probs, words = _next_word_scores(step, history, config).max(dim=-1)  # (B, 1)
        history = torch.cat([history, words[:, :, None]], dim=2)
        looks.append((log_probs[:, 0], step.alpha[:, 0], step.beta[:, 0].mean(dim=-1)))
        if bool((history == END).any(dim=2).all()):
            break
    return [_greedy_hypothesis(row, history[row, 0].tolist(), looks, config) for row in range(len(regions))]


def _greedy_hypothesis(row: int, ids: list[int], looks: list[_Look], config: SearchConfig) -> Hypothesis:
    ended = END in ids
    words = ids.index(END) if ended else config.maximum_length
    own = [(log_probs[row], alpha[row], beta[row]) for log_probs, alpha, beta in looks[: words + ended]]
    log_prob = float(sum(log_prob for log_prob, _, _ in own))
    return _hypothesis(ids[:words], log_prob, ended, own[:words], looks[0][1][0], config)


@torch.no_grad()
def beam_search(decoder: Decoder, regions: Tensor, config: SearchConfig, best: int = 1) -> list[list[Hypothesis]]:
    """Return the `best` captions of each of B images of regions (B, L, D), the best first.

    Captions that ended come before those cut off at the maximum length, which are kept only where too few ended.
    """
    if not 1 <= best <= config.beam:
        raise ValueError(f"best is {best}; a beam of {config.beam} gives 1 to {config.beam} captions")
    scene, state = decoder.start(regions, config.beam)
    beams, device = config.beam, regions.device
    images = list(range(len(regions)))  # those still in the batch
    words = torch.full((len(images), beams), START, device=device)  # (B, K)
    history = words.new_empty(len(images), beams, 0)  # (B, K, t)
    totals = torch.full((len(images), beams), -math.inf, device=device, dtype=regions.dtype)  # (B, K)
    totals[:, 0] = 0.0  # all beams start alike, so only one of them may go on
    past: list[_Past] = []
    finished: list[list[Hypothesis]] = [[] for _ in images]
    for length in range(config.maximum_length + 1):
        step = decoder.step(scene, state, words)
        scores = _next_word_scores(step, history, config)  # (B, K, V)
        # Twice as many as beams: each may end only once, so that K of them go on.
        tops, flat = (totals.unsqueeze(-1) + scores).flatten(1).topk(min(2 * beams, scores[0].numel()), dim=1)
        parents, words = flat // scores.shape[-1], flat % scores.shape[-1]  # (B, 2K)
        taken = scores.flatten(1).gather(1, flat)  # (B, 2K)
        rows = {image: row for row, image in enumerate(images)}
        look = _Past(rows, parents, taken, step.alpha, step.beta.mean(dim=-1))
        _collect_ended(finished, [*past, look], images, tops, words, history, config)
        if length == config.maximum_length:
            break
        # Beams that do not end, in order of their totals; a stable sort puts them before those that do.
        over = (words == END) | tops.isneginf()
        order = over.to(torch.uint8).argsort(dim=1, stable=True)[:, :beams]  # (B, K)
        parents, words, taken = (tensor.gather(1, order) for tensor in (parents, words, taken))
        totals = tops.gather(1, order).masked_fill(over.gather(1, order), -math.inf)
        past.append(_Past(rows, parents, taken, step.alpha, look.beta))
        history = torch.cat([_follow(history, parents), words.unsqueeze(-1)], dim=2)
        state = State(_follow(step.state.hidden, parents), _follow(step.state.memory, parents), step.state.step)
        if length + 1 == config.maximum_length:
            _collect_cut_off(finished, past, images, totals, history, config, best)
        keep = [row for row, image in enumerate(images) if not _is_certain(finished[image], totals[row], config, best)]
        if not keep:
            break
        if len(keep) < len(images):
            index = torch.tensor(keep, device=device)
            images = [images[row] for row in keep]
            scene, state = scene.select(index), state.select(index)
            words, history, totals = words[index], history[index], totals[index]
    return [_ranked(hypotheses)[:best] for hypotheses in finished]


def _next_word_scores(step: Step, history: Tensor, config: SearchConfig) -> Tensor:
    """Return log probabilities (B, K, V) of the next word after `history` (B, K, t), what may not be said at -inf."""
    scores = step.logits.log_softmax(dim=-1)
    banned = [PAD, START] if config.unknown else [PAD, START, UNKNOWN]
    scores[..., banned] = -math.inf
    length = history.shape[2]
    if length < config.minimum_length:
        scores[..., END] = -math.inf
    if length == config.maximum_length:  # only the end may follow
        ended = scores[..., END].clone()
        scores = torch.full_like(scores, -math.inf)
        scores[..., END] = ended
    span = config.no_repeat
    if span and length >= span:
        starts = history.unfold(2, span, 1)  # (B, K, t - span + 1, span), all that was said
        said = (starts[..., : span - 1] == history[:, :, None, length - span + 1 :]).all(dim=-1)
        # A word that never completes a repetition keeps its score; adding nothing is adding zero.
        repeats = torch.zeros_like(scores).scatter_add(2, starts[..., -1], said.to(scores.dtype))
        scores = scores.masked_fill(repeats > 0, -math.inf)
    return scores


def _collect_ended(
    finished: list[list[Hypothesis]],
    past: list[_Past],
    images: list[int],
    tops: Tensor,
    words: Tensor,
    history: Tensor,
    config: SearchConfig,
) -> None:
    """Add the captions that end at this step among the K best candidates; a worse end does not count."""
    ends = ((words == END) & ~tops.isneginf())[:, : config.beam]  # (B, K)
    for row, column in ends.nonzero().tolist():
        beam = int(past[-1].parents[row, column])
        ids = history[row, beam].tolist()
        finished[images[row]].append(_trace(past, images[row], beam, ids, float(tops[row, column]), True, config))


def _collect_cut_off(
    finished: list[list[Hypothesis]],
    past: list[_Past],
    images: list[int],
    totals: Tensor,
    history: Tensor,
    config: SearchConfig,
    best: int,
) -> None:
    """Add the captions of full length that have not ended, for images of which too few have."""
    for row, image in enumerate(images):
        if len(finished[image]) >= best:
            continue
        for beam, total in enumerate(totals[row].tolist()):
            if total > -math.inf:
                ids = history[row, beam].tolist()
                finished[image].append(_trace(past, image, beam, ids, total, False, config))


def _trace(
    past: list[_Past], image: int, beam: int, ids: list[int], log_prob: float, ended: bool, config: SearchConfig
) -> Hypothesis:
    """Go back from a beam to the start, collecting what each word was chosen under."""
    looks = []
    for step in reversed(past[: len(ids)]):
        row = step.rows[image]
        parent = int(step.parents[row, beam])
        looks.append((step.log_probs[row, beam], step.alpha[row, parent], step.beta[row, parent]))
        beam = parent
    return _hypothesis(ids, log_prob, ended, looks[::-1], past[0].alpha[0, 0], config)


def _hypothesis(
    ids: list[int], log_prob: float, ended: bool, looks: list[_Look], alpha: Tensor, config: SearchConfig
) -> Hypothesis:
    """Return a caption with the look behind each of its words; `alpha` (L,) is any, the shape of those of no word."""
    log_probs, alphas, betas = zip(*looks, strict=True) if looks else ((), (), ())
    blank = alpha.new_empty(0)
    return Hypothesis(
        tuple(ids),
        log_prob,
        log_prob / (len(ids) + 1) ** config.length_power,
        ended,
        torch.stack(log_probs).exp() if looks else blank,
        torch.stack(alphas) if looks else alpha.new_empty(0, len(alpha)),
        torch.stack(betas) if looks else blank,
    )


def _is_certain(finished: list[Hypothesis], totals: Tensor, config: SearchConfig, best: int) -> bool:
    """Tell whether the search is over for an image: K captions ended, or no live beam can come among its best."""
    ended = sorted((hypothesis.score for hypothesis in finished if hypothesis.ended), reverse=True)
    if len(ended) < best:
        return False
    if len(ended) >= config.beam:
        return True
    # More words only lower a log probability, and the longest caption divides it most.
    bound: float = totals.max().item() / (config.maximum_length + 1) ** config.length_power
    return bound <= ended[best - 1]


def _ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.ended, -hypothesis.score, hypothesis.ids))


def _follow(tensor: Tensor, parents: Tensor) -> Tensor:
    """Return what each new beam (B, K) inherits from its parent: (B, K, ...) reordered along K."""
    return tensor.gather(1, parents.unsqueeze(-1).expand(*parents.shape, tensor.shape[-1]))
