"""Captions sampled from the decoder: for self-critical training, and as a way to search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.model.decoder import Decoder
from captioner.model.kernels.word_losses import Drawing, row_blocks
from captioner.model.randomness import Looks, Randomness
from captioner.model.regions import Regions
from captioner.model.search.hypotheses import BackPointers, Choice, Finished, Hypothesis
from captioner.model.search.next_words import ContentWords, NotFinite, next_word_scores, nothing
from captioner.model.search_settings import SearchConfig

NEVER_DRAWN = (PAD, START, UNKNOWN)


@torch.no_grad()
def roll_out(
    decoder: Decoder,
    regions: Tensor | Regions,
    captions: int,
    maximum_length: int,
    randomness: Randomness | None = None,
    temperature: float = 1.0,
    looks: Looks | None = None,
) -> tuple[Tensor, Tensor]:
    """Return N captions of each image of regions (B, L, D), as `Decoder.forward` reads them: ids, and what to score.

    Ids (B, N, T + 1) begin with the start marker and are padded after the end marker; a caption that has not ended by
    its `maximum_length`th word is cut off there. The mask (B, N, T) is True where the next word is part of the caption,
    the end marker included. With randomness, words are as frequent as they are probable at the `temperature`, and the
    captions of an image stand in the order of their lengths, the longest first; without, each is the most probable, and
    the captions are all alike. With `looks`, where to look is sampled too, and captions stand in the order in which
    they were drawn: `Decoder.forward` looks at the same places with the same numbers from the first on.
    """
    drawing = Drawing(temperature, NEVER_DRAWN)
    different = captions if randomness is not None else 1
    inputs, state = decoder.start(regions, different if looks is not None else 1)
    caption_ids = torch.full((len(regions), different, maximum_length + 1), PAD, device=regions.device)  # (B, N, T + 1)
    caption_ids[:, :, 0] = START
    images = torch.arange(len(regions), device=regions.device)  # (b,), those still in the batch
    # (b, 1), then (b, N): before the first word all captions are one, unless they look at different places
    words = caption_ids[:, : state.tensors[0].shape[1], 0]
    finished = torch.zeros_like(caption_ids[:, :, 0], dtype=torch.bool)  # (b, N)
    length = 0
    while len(images) and length < maximum_length:
        step, logits = decoder.read(inputs, state, words, looks=looks.select(images) if looks is not None else None)
        state = step.state.expand(different)
        if randomness is None:
            words = drawing.scores(logits).argmax(dim=-1)  # (b, N)
        else:
            # Drawn for all images and captions each time, so that a caption's numbers do not depend on the others'.
            uniform = randomness.uniform(captions, device=regions.device)[images]  # (b, N)
            words = draw(logits, uniform, drawing)  # (b, N)
        words = words.masked_fill(finished, PAD)
        length += 1
        caption_ids[images, :, length] = words
        finished = finished | (words == END)
        going = (~finished.all(dim=1)).nonzero().squeeze(1)
        if len(going) < len(images):
            inputs, state, images = inputs.select(going), state.select(going), images[going]
            words, finished = words[going], finished[going]
    caption_ids = caption_ids[:, :, : length + 1]
    if randomness is None:
        caption_ids = caption_ids.expand(-1, captions, -1)
    elif looks is None:
        order = (caption_ids != PAD).sum(dim=-1).argsort(dim=1, descending=True, stable=True)  # (B, N)
        caption_ids = caption_ids.gather(1, order.unsqueeze(-1).expand(caption_ids.shape))
    return caption_ids, caption_ids[:, :, 1:] != PAD


@torch.no_grad()
def sample(
    decoder: Decoder,
    regions: Tensor | Regions,
    config: SearchConfig,
    seeds: Sequence[int],
    captions: int = 1,
    content: ContentWords | None = None,
    check: Callable[[], None] = nothing,
) -> list[list[Hypothesis]]:
    """Return N `captions` drawn for each of B images of regions (B, L, D), the best first; the same may come twice.

    Each image has a seed of its own, and its captions depend on nothing else. Log probabilities are those of the
    decoder, whatever temperature words were drawn at. `check` is as for `search`.
    """
    if captions < 1:
        raise ValueError(f"best is {captions}; it must be at least 1")
    if len(seeds) != len(regions):
        raise ValueError(f"there are {len(seeds)} seeds for {len(regions)} images; sampling needs one for each")
    if not len(regions):
        return []
    # All numbers at once: those of a caption's words are the same however many captions there are.
    shape = (captions, config.maximum_length + 1)
    uniform = torch.cat(
        [Randomness([seed], 1).uniform(*shape, device=regions.device) for seed in seeds]
    )  # (B, N, T + 1)
    inputs, state = decoder.start(regions)
    images = torch.arange(len(regions), device=regions.device)  # (b,), those still in the batch
    words = torch.full((len(regions), 1), START, device=regions.device)  # (b, 1), then (b, N)
    history = words.new_empty(len(regions), 1, 0)  # (b, 1, 0), then (b, N, t)
    beams = torch.arange(captions, device=regions.device).expand(len(regions), -1)  # (B, N)
    lengths, ended = torch.full_like(beams, -1), torch.zeros_like(beams, dtype=torch.bool)  # (B, N), -1: not finished
    log_probs = torch.zeros(
        beams.shape, dtype=torch.promote_types(regions.dtype, torch.float32), device=regions.device
    )  # (B, N)
    pointers = BackPointers(len(regions))
    for length in range(config.maximum_length + 1):
        check()
        step, logits = decoder.read(inputs, state, words)
        scores = next_word_scores(logits, history, config, content).expand(-1, captions, -1)  # (b, N, V)
        if bool(scores.amax(dim=-1).isnan().any()):
            raise NotFinite
        words = draw_words(scores, uniform[images, :, length], config)  # (b, N)
        taken = scores.gather(2, words.unsqueeze(-1)).squeeze(-1)  # (b, N), -inf where no word may follow
        parents = beams[: len(images)] if length else torch.zeros_like(words)  # (b, N)
        pointers.add(images, Choice(parents, words, taken), step.alpha, step.beta, step.fixations)
        going = lengths[images] < 0  # (b, N)
        ends, stuck = going & (words == END) & ~taken.isneginf(), going & taken.isneginf()
        log_probs[images] += taken.where(going & ~stuck, 0)
        lengths[images] = lengths[images].masked_fill(ends | stuck, length)
        ended[images] |= ends
        state = step.state.expand(captions)
        history = torch.cat([history.expand(-1, captions, -1), words.unsqueeze(-1)], dim=2)  # (b, N, t + 1)
        staying = (lengths[images] < 0).any(dim=1).nonzero().squeeze(1)
        if not len(staying):
            break
        if len(staying) < len(images):
            inputs, state, images = inputs.select(staying), state.select(staying), images[staying]
            words, history = words[staying], history[staying]
    found = Finished(beams, lengths, log_probs, ended).best(config.length_power, captions)
    return pointers.hypotheses(found, config.length_power)


def draw(logits: Tensor, uniform: Tensor, drawing: Drawing) -> Tensor:
    """Return words (B, N) drawn of logits (B, N, V), or of (B, 1, V) for all N captions, by numbers (B, N) in 0..1.

    The plain line: pick(drawing.scores(logits).softmax(dim=-1), uniform.unsqueeze(-1))
    """
    rows, numbers = logits.flatten(0, 1), uniform.view(logits.shape[0] * logits.shape[1], -1, 1)  # (R, V), (R, n, 1)
    words = torch.empty(numbers.shape[:2], dtype=torch.int64, device=logits.device)  # (R, n)
    for part in row_blocks(rows):
        scores = drawing.scores(rows[part])  # (r, V)
        scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
        words[part] = pick(scores.unsqueeze(1), numbers[part])
    return words.view(uniform.shape)


def draw_words(scores: Tensor, uniform: Tensor, config: SearchConfig) -> Tensor:
    """Return a word (B, N) of each row of log probabilities (B, N, V), by a number (B, N) in 0..1.

    Of the words as probable as the temperature makes them, the `top_k` most probable are left, and of these the fewest
    that add up to the share `top_p`. Where nothing may be said, the word is any.
    """
    scores = scores.masked_fill(scores.amax(dim=-1, keepdim=True).isneginf(), 0)
    probabilities = (scores / config.temperature).softmax(dim=-1)  # (B, N, V)
    if not config.top_k and config.top_p == 1:
        return pick(probabilities, uniform.unsqueeze(-1))
    count = min(config.top_k or scores.shape[-1], scores.shape[-1])
    best, words = probabilities.topk(count, dim=-1)  # (B, N, k)
    before = best.cumsum(dim=-1) - best  # (B, N, k), what better words add up to
    best = best.where(before < config.top_p * best.sum(dim=-1, keepdim=True), 0)
    return words.gather(-1, pick(best, uniform.unsqueeze(-1)).unsqueeze(-1)).squeeze(-1)


def pick(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return a word (...) of rows (..., V), which need not sum to one, by numbers (..., 1) in 0..1, the 1 excluded.

    A number u takes the first word up to which the row adds up to more than the share u of its sum.
    """
    sums = probabilities.cumsum(dim=-1).expand(*uniform.shape[:-1], -1).contiguous()  # (..., V)
    # u is at most 1 - 2^-24, so that the product is below the whole sum even after rounding; of a row of NaN, which
    # training has where it diverges, it is any word.
    words = torch.searchsorted(sums, uniform.to(sums.dtype) * sums[..., -1:], right=True).squeeze(-1)
    return words.clamp(max=sums.shape[-1] - 1)
