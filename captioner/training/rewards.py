"""Rewards of sampled captions: CIDEr-D against the captions of the training images, on request with BLEU.

What a caption should not do has a price, also on request: say a word again, or name an object that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.datasets.vocabulary import END, SPECIALS, Vocabulary
from captioner.datasets.word_classes import content_groups
from captioner.evaluation.metrics.bleu_rouge_cider import CiderD, bleu
from captioner.training.batches import Corpus
from captioner.training.objects import Boxes
from captioner.training.settings import SelfCriticalConfig


class Rewards:
    """Scores captions of the images of a corpus; `longest` is how many words they may have.

    A reward is CIDEr-D, 0..10, and `bleu_weight` times the mean of BLEU-1 to BLEU-4 of the caption on its own, 0..1,
    minus `repeats` for each content word that is said again ("a table with a table"), minus `absent` for each object
    that is named and has none of the `boxes` of the image. `settings` have these weights.
    The end marker counts as a word, of references too: without it, a caption that breaks off before a rare word, as
    "a dog on the", would lose nothing by it.
    """

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary,
        longest: int,
        settings: SelfCriticalConfig | None = None,
        boxes: Boxes | None = None,
    ) -> None:
        self.vocabulary, self.longest, self.boxes = vocabulary, longest, boxes
        self.settings = settings or SelfCriticalConfig()
        self.groups = torch.tensor(content_groups(vocabulary.entries))  # (V,), 0 for words of no content
        self.cider = CiderD(
            [[" ".join([*words, SPECIALS[END]]) for words in image.tokenized()] for image in corpus.images]
        )

    def score(self, caption_ids: Tensor, images: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """Return the reward (B, N) of captions (B, N, T + 1) of images (B,) of the corpus."""
        settings = self.settings
        texts = [
            " ".join([*self.vocabulary.words(ids), *([SPECIALS[END]] if END in ids else [])])
            for ids in caption_ids.flatten(0, 1).tolist()
        ]
        owners = self._owners(caption_ids, images)
        scores = self.cider.score(texts, owners)
        if settings.bleu_weight:
            references = [self.cider.references[owner] for owner in owners]
            scores = scores + settings.bleu_weight * bleu(texts, references).captions.mean(axis=1)
        reward = torch.from_numpy(scores).float().view(caption_ids.shape[:2])
        if settings.repeats:
            reward = reward - settings.repeats * self.repeats(caption_ids)
        if settings.absent:
            reward = reward - settings.absent * self.absent(caption_ids, images)
        return reward

    def repeats(self, caption_ids: Tensor) -> Tensor:
        """Return how many content words (B, N) of captions (B, N, T + 1) were said before."""
        said, _ = self.groups[caption_ids.cpu()].sort(dim=-1)  # (B, N, T + 1)
        return ((said[..., 1:] == said[..., :-1]) & (said[..., 1:] > 0)).sum(dim=-1).float()

    def absent(self, caption_ids: Tensor, images: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """Return how many objects (B, N) captions (B, N, T + 1) name that have no box in their images (B,)."""
        assert self.boxes is not None
        owners = self._owners(caption_ids, images)
        named = [self.vocabulary.words(ids) for ids in caption_ids.flatten(0, 1).tolist()]
        counts = [self.boxes.count_absent(owner, words) for owner, words in zip(owners, named, strict=True)]
        return torch.tensor(counts, dtype=torch.float32).view(caption_ids.shape[:2])

    def _owners(self, caption_ids: Tensor, images: Sequence[int] | NDArray[np.int64]) -> list[int]:
        """Return the image of each of the captions (B, N, T + 1), one after the other."""
        owners: list[int] = np.repeat(np.asarray(images), caption_ids.shape[1]).tolist()
        return owners
