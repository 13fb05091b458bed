"""Where every layer and head of a decoder looked for the words of captions that a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.captioning.caption import Caption
from captioner.datasets.vocabulary import PAD, START
from captioner.model.decoder import Decoder
from captioner.model.regions import Regions


@torch.no_grad()
def all_looks(
    decoder: Decoder, regions: Tensor | Regions, captions: Sequence[Sequence[Sequence[int]]], grid: tuple[int, int]
) -> list[list[NDArray[np.float32]]]:
    """Return the weights (T, layers, heads, rows, columns) of all layers and heads for the captions of each image.

    Regions are (B, L, D), `captions` the word ids of each of the B images' captions, without markers.
    """
    count = max(map(len, captions), default=0)
    longest = max((len(words) for each in captions for words in each), default=0)
    ids = torch.full((len(captions), count, max(longest, 1) + 1), PAD, device=regions.device)  # (B, N, T + 1)
    ids[:, :, 0] = START
    for image, each in enumerate(captions):
        for place, words in enumerate(each):
            ids[image, place, 1 : len(words) + 1] = torch.tensor(words, device=ids.device)
    looks = decoder.all_looks(regions, ids).float().cpu().numpy()  # (B, N, T, layers, heads, L)
    looks = looks.reshape(*looks.shape[:-1], *grid)
    return [
        [looks[image, place, : len(words)].copy() for place, words in enumerate(each)]
        for image, each in enumerate(captions)
    ]


def with_heads(caption: Caption, looks: NDArray[np.float32]) -> Caption:
    """Return a caption that knows the looks (T, layers, heads, rows, columns), of which it may see a part only."""
    rows, columns = caption.attention.shape[1:]
    return replace(caption, heads=looks[..., :rows, :columns])
