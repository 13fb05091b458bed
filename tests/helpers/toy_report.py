"""Evaluations of a few made-up images, with all that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.datasets.dataset import CaptionedImage
from captioner.evaluation.comparison import Comparison, find_paper_rows
from captioner.evaluation.scoring import EvaluationSplit, Evaluator
from captioner.images.preprocessing import Preprocessing
from helpers.toy_captions import GRID, SIDE, caption_of
from helpers.toy_judge import ToyJudge

SIZE = (60, 40)
REFERENCES = (
    ("a brown dog runs on the beach", "the dog runs along the sea", "a dog is running on the sand"),
    ("two men ride red bikes", "two men on bikes", "men riding red bicycles down a street"),
    ("a girl in a white dress sits on a chair", "a girl sits on a chair", "the girl is sitting on a wooden chair"),
    ("a child plays in the snow", "a child playing in the snow", "children play with snow"),
)
GOOD = ("a dog runs on the beach", "two men ride bikes", "a girl sits on a chair", "a child plays in the snow")
BAD = ("a cat sleeps on a", "a man rides a man", "a boy sits on a bench", "a child plays in the snow")
HOSTILE = (
    "</style></main><script>window.hacked = 1</script>",
    '"\'><img src=x onerror="window.hacked = 2">',
    "{{style}} & &lt; \x00\n\u2028 http://example.com/x.png",
    "🐕 كلب יושב \u202e backwards",
)


def write_images(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        coarse = noise.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).save(path)
    return paths


def look(text: str, seed: int) -> Caption:
    """Return a caption whose words looked here and there."""
    words = tuple(text.split())
    attention = np.random.default_rng(seed).dirichlet(np.full(GRID[0] * GRID[1], 0.3), len(words))
    return caption_of(attention.reshape(-1, *GRID), Preprocessing(SIDE, "squash").geometry(*SIZE), words or None, seed)


def compare(
    folder: Path,
    systems: dict[str, Sequence[str]],
    *,
    count: int = 12,
    humans: bool = True,
    references: Sequence[Sequence[str]] = REFERENCES,
    data: str = "Flickr8k",
    names: Sequence[str] = (),
    missing: str | None = None,
) -> Comparison:
    """Evaluate systems by name on `count` images, their captions and the references repeated as often as needed.

    A system whose name starts with "file" has no attention.
    """
    images = tuple(
        CaptionedImage(
            names[number % len(names)] if names else path.name,
            path,
            number,
            "val",
            tuple(references[number % len(references)]),
            None,
        )
        for number, path in enumerate(write_images(folder, count))
    )
    split = EvaluationSplit(data, "flickr8k", folder, "val", images, images, ("a child plays in the snow",), digest="0")
    judge: Any = ToyJudge()
    evaluator = Evaluator(judge, split, resamples=50)
    evaluations = []
    for name, captions in systems.items():
        texts = [captions[number % len(captions)] for number in range(count)]
        looks = None if name.startswith("file") else [look(text, seed) for seed, text in enumerate(texts)]
        evaluations.append(evaluator.evaluate(name, texts, captions=looks, about={"checksum": "0123"}))
    return Comparison(
        evaluator.protocol({"beam": 5}),
        tuple(evaluations),
        evaluator.evaluate_humans() if humans else None,
        find_paper_rows(data, "flickr8k", "val", count),
        missing,
    )
