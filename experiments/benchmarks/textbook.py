"""The paper's decoder as it is usually written in PyTorch: what the training benchmark compares with.

A row for each caption, with its own copy of the image's regions; the regions projected anew at every step; an
`nn.LSTMCell` that reads word and context end to end; every row read up to the longest caption of the batch, and the
words scored at every position, of which a mask then leaves out the padding. The mathematics is that of
`captioner.model.decoder`, from whose weights it is made.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.decoder import Decoder
from captioner.model.scores import AdditiveScore


class TextbookDecoder(nn.Module):
    """A decoder with the layers of `decoder`, its LSTM's weights copied into an `nn.LSTMCell`.

    It takes soft additive attention on regions as they come, tanh of the mean region as initial states, the paper's
    deep output, and no dropout.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        config, attention = decoder.config, decoder.attention.config
        score = decoder.attention.score
        plain = not config.regions and not config.normalise and not config.dropout and not attention.heads
        if not (plain and config.deep_output and attention.mode == "soft" and isinstance(score, AdditiveScore)):
            raise ValueError(f"{config} with {attention} is not the paper's decoder on regions as they come")
        self.region, self.query, self.energy = score.region, score.reader, score.energy
        self.initial_hidden, self.initial_memory = decoder.initial_hidden, decoder.initial_memory
        self.gate, self.embedding = decoder.gate, decoder.embedding
        self.output_hidden, self.output_context = decoder.output_hidden, decoder.output_context
        self.output = decoder.output
        words, context = decoder.from_word, decoder.from_context
        self.cell = nn.LSTMCell(words.in_features + context.in_features, config.hidden).to(words.weight.dtype)
        with torch.no_grad():
            self.cell.weight_ih.copy_(torch.cat((words.weight, context.weight), dim=1))  # (4H, E + D)
            self.cell.weight_hh.copy_(decoder.from_hidden.weight)
            self.cell.bias_ih.copy_(words.bias)
            self.cell.bias_hh.zero_()

    def forward(self, regions: Tensor, caption_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (C, T, V) and alpha (C, T, L) of captions (C, T + 1) on their own regions (C, L, D)."""
        assert self.initial_hidden is not None
        assert self.initial_memory is not None
        assert self.output_context is not None
        mean = regions.mean(dim=1)  # (C, D)
        hidden, memory = self.initial_hidden(mean), self.initial_memory(mean)  # (C, H)
        embedded = self.embedding(caption_ids[:, :-1])  # (C, T, E)
        logits, alphas = [], []
        for word in embedded.unbind(dim=1):
            context, alpha = self.attend(regions, hidden)
            if self.gate is not None:
                context = self.gate(hidden).sigmoid() * context
            hidden, memory = self.cell(torch.cat((word, context), dim=1), (hidden, memory))
            logits.append(self.output(word + self.output_hidden(hidden) + self.output_context(context)))
            alphas.append(alpha)
        return torch.stack(logits, dim=1), torch.stack(alphas, dim=1)

    def attend(self, regions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context (C, D) and the weights (C, L) of one look at regions (C, L, D)."""
        assert self.query is not None
        pairs = torch.tanh(self.region(regions) + self.query(hidden).unsqueeze(1))  # (C, L, A)
        alpha = self.energy(pairs).squeeze(2).softmax(dim=1)  # (C, L)
        return (regions * alpha.unsqueeze(2)).sum(dim=1), alpha

    def loss(self, regions: Tensor, caption_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the paper's loss of captions (C, T + 1), their words to predict being where mask (C, T) is True.

        The mean over captions of the summed cross entropy and the summed doubly stochastic penalty, equation 14.
        """
        logits, alpha = self(regions, caption_ids)
        words = F.cross_entropy(logits.flatten(0, 1), caption_ids[:, 1:].flatten(), reduction="none")  # (C T,)
        looks = (alpha * mask.unsqueeze(2)).sum(dim=1)  # (C, L)
        total: Tensor = (words * mask.flatten()).sum() + (1 - looks).square().sum()
        return total / len(mask)
