"""Words drawn from the decoder's own distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from captioner.decoder import Decoder
from captioner.draws import Draws
from captioner.vocabulary import END, PAD, START, UNKNOWN


@torch.no_grad()
def roll_out(
    decoder: Decoder, regions: Tensor, captions: int, maximum_length: int, draws: Draws | None = None
) -> tuple[Tensor, Tensor]:
    """Return N captions of each image of regions (B, L, D), as `Decoder.forward` reads them: ids, and what to score.

    Ids (B, N, T + 1) begin with the start marker and are padded after the end marker; a caption that has not ended by
    its `maximum_length`th word is cut off there. The mask (B, N, T) is True where the next word is part of the caption,
    the end marker included. With draws, words are as frequent as they are probable, and an image's captions stand in
    the order of their lengths, the longest first; without, each is the most probable, and the captions are all alike.
    """
    different = captions if draws is not None else 1
    scene, state = decoder.start(regions, different)
    caption_ids = torch.full((len(regions), different, maximum_length + 1), PAD, device=regions.device)  # (B, N, T + 1)
    caption_ids[:, :, 0] = START
    images = torch.arange(len(regions), device=regions.device)  # (b,), those still in the batch
    words = caption_ids[:, :, 0]  # (b, N)
    over = torch.zeros_like(words, dtype=torch.bool)  # (b, N)
    length = 0
    while len(images) and length < maximum_length:
        step = decoder.step(scene, state, words)
        logits, state = step.logits, step.state  # (b, N, V)
        logits[..., [PAD, START, UNKNOWN]] = -math.inf
        if draws is None:
            words = logits.argmax(dim=-1)  # (b, N)
        else:
            # Drawn for all images and captions each time, so that a caption's numbers do not depend on the others'.
            words = pick(logits.softmax(dim=-1), draws.uniform(captions, 1, device=regions.device)[images])  # (b, N)
        words = words.masked_fill(over, PAD)
        length += 1
        caption_ids[images, :, length] = words
        over = over | (words == END)
        going = (~over.all(dim=1)).nonzero().squeeze(1)
        if len(going) < len(images):
            scene, state, images = scene.select(going), state.select(going), images[going]
            words, over = words[going], over[going]
    caption_ids = caption_ids[:, :, : length + 1]
    if draws is None:
        caption_ids = caption_ids.expand(-1, captions, -1)
    else:
        order = (caption_ids != PAD).sum(dim=-1).argsort(dim=1, descending=True, stable=True)  # (B, N)
        caption_ids = caption_ids.gather(1, order.unsqueeze(-1).expand(caption_ids.shape))
    return caption_ids, caption_ids[:, :, 1:] != PAD


def pick(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return a word (...) of each row (..., V), which need not sum to one, by a number (..., 1) in 0..1, 1 excluded.

    A number u takes the first word up to which the row adds up to more than the share u of its sum.
    """
    sums = probabilities.cumsum(dim=-1)  # (..., V)
    # u is at most 1 - 2^-24, so that the product is below the whole sum even after rounding.
    return torch.searchsorted(sums, uniform.to(sums.dtype) * sums[..., -1:], right=True).squeeze(-1)
