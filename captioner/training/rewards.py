"""Rewards of sampled captions: CIDEr-D against the captions of the training images, and on request BLEU and repeats."""

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


class Rewards:
    """Scores captions of the images of a corpus; `longest` is how many words they may have.

    A reward is CIDEr-D, 0..10, and `bleu_weight` times the mean of BLEU-1 to BLEU-4 of the caption on its own, 0..1,
    minus `repeat_cost` for each content word that is said again ("a table with a table").
    The end marker counts as a word, of references too: without it, a caption that breaks off before a rare word, as
    "a dog on the", would lose nothing by it.
    """

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary,
        longest: int,
        bleu_weight: float = 0.0,
        repeat_cost: float = 0.0,
    ) -> None:
        self.vocabulary, self.longest = vocabulary, longest
        self.bleu_weight, self.repeat_cost = bleu_weight, repeat_cost
        self.groups = torch.tensor(content_groups(vocabulary.entries))  # (V,), 0 for words of no content
        self.cider = CiderD(
            [[" ".join([*words, SPECIALS[END]]) for words in image.tokenized()] for image in corpus.images]
        )

    def score(self, caption_ids: Tensor, images: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """Return the reward (B, N) of captions (B, N, T + 1) of images (B,) of the corpus."""
        batch, captions = caption_ids.shape[:2]
        texts = [
            " ".join([*self.vocabulary.words(ids), *([SPECIALS[END]] if END in ids else [])])
            for ids in caption_ids.flatten(0, 1).tolist()
        ]
        owners = np.repeat(np.asarray(images), captions).tolist()
        scores = self.cider.score(texts, owners)
        if self.bleu_weight:
            references = [self.cider.references[owner] for owner in owners]
            scores = scores + self.bleu_weight * bleu(texts, references).captions.mean(axis=1)
        reward = torch.from_numpy(scores).float().view(batch, captions)
        return reward - self.repeat_cost * self.repeats(caption_ids) if self.repeat_cost else reward

    def repeats(self, caption_ids: Tensor) -> Tensor:
        """Return how many content words (B, N) of captions (B, N, T + 1) were said before."""
        said, _ = self.groups[caption_ids.cpu()].sort(dim=-1)  # (B, N, T + 1)
        return ((said[..., 1:] == said[..., :-1]) & (said[..., 1:] > 0)).sum(dim=-1).float()
