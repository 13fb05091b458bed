"""The words' part of the LSTM's gates, for as long as a batch is searched."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.model.kernels.shared_matrix import take_rows


class WordGates:
    """A linear layer's outputs for words, each computed when the word first turns up; a search says few, and often.

    It lasts no longer than the weights stay as they are: who starts a batch makes a new one.
    """

    def __init__(self, embedding: nn.Embedding, layer: nn.Linear) -> None:
        self.embedding, self.layer = embedding, layer
        self.table = layer.weight.new_empty(embedding.num_embeddings, layer.out_features)  # (V, 4H)
        self.known = torch.zeros(len(self.table), dtype=torch.bool, device=self.table.device)  # (V,)

    def __call__(self, words: Tensor) -> Tensor:
        """Return the gates (..., 4H) of words (...)."""
        new = torch.unique(words[~self.known[words]])
        if len(new):
            self.table[new] = self.layer(self.embedding(new)).to(self.table.dtype)
            self.known[new] = True
        return take_rows(self.table, words)
