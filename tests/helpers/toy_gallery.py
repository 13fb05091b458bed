"""Pictures, captions and hostile texts for pages."""

from __future__ import annotations

import numpy as np
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.images.preprocessing import Preprocessing
from helpers.toy_captions import GRID, SIDE, caption_of

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<!--<script>",
    '"\'><img src=x onerror="window.hacked = 2">',
    "{{entries}}\n{{script}} &lt; \u2028 \x00",
    "🐕 كلب יושב",
)


def random_caption(size: tuple[int, int], words: int = 3, seed: int = 0, fit: str = "squash") -> Caption:
    chance = np.random.default_rng(seed)
    attention = chance.dirichlet(np.full(GRID[0] * GRID[1], 0.3), words).reshape(words, *GRID)
    return caption_of(attention, Preprocessing(SIDE, fit).geometry(*size), seed=seed)


def picture(size: tuple[int, int], seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
