"""RNNsearch (Bahdanau et al., 2015): a recurrent encoder of sentences before the package's attention and decoder.

To the decoder, a sentence is an image of L regions in a row, one for each piece, and its translation a caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pieces import Language
from sentences import LONGEST, Batch, encode_source, pad
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from captioner.datasets.vocabulary import PAD
from captioner.model.config import AttentionConfig, DecoderConfig
from captioner.model.decoder import make_decoder
from captioner.model.losses import word_losses
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions
from captioner.model.search.beam import Hypothesis, search
from captioner.model.search_settings import SearchConfig

SEARCH_BATCH = 64  # sentences


@dataclass(frozen=True)
class Sizes:
    """The sizes and parts of a translator; without `attention` the decoder sees the encoder's last states alone."""

    embedding: int = 192
    encoder: int = 192  # of each direction
    hidden: int = 320
    width: int = 192  # of the space in which additive and concat scores compare
    dropout: float = 0.3
    score: str = "additive"
    attention: bool = True


class SentenceEncoder(nn.Module):
    """A bidirectional GRU: the vector of a piece holds what stands before it and what stands after it."""

    def __init__(self, sizes: Sizes, words: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(words, sizes.embedding, padding_idx=PAD)
        self.recurrent = nn.GRU(sizes.embedding, sizes.encoder, batch_first=True, bidirectional=True)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()

    def forward(self, source: Tensor, randomness: Randomness | None = None) -> Regions:
        """Return the vectors (B, L, D) of sentences (B, L), missing where they are PAD; one alone without attention."""
        mask = source != PAD  # (B, L)
        embedded = self.embedding(source)  # (B, L, E)
        if randomness is not None:
            embedded = randomness.dropout(embedded, self.sizes.dropout)
        packed = pack_padded_sequence(embedded, mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        outputs, last = self.recurrent(packed)  # last is (2, B, H): the end read forwards, the start read backwards
        if not self.sizes.attention:
            return Regions(self._drop(last.transpose(0, 1).flatten(1).unsqueeze(1), randomness))  # (B, 1, D)
        vectors, _ = pad_packed_sequence(outputs, batch_first=True)  # (B, L, D)
        return Regions(self._drop(vectors, randomness), mask)

    def _drop(self, vectors: Tensor, randomness: Randomness | None) -> Tensor:
        return randomness.dropout(vectors, self.sizes.dropout) if randomness is not None else vectors


class Translator(nn.Module):
    """The encoder and the package's LSTM decoder with its attention, for V pieces of each language."""

    def __init__(self, sizes: Sizes, words: tuple[int, int]) -> None:
        super().__init__()
        self.encoder = SentenceEncoder(sizes, words[0])
        # Regions as wide as hidden states, which dot products need; the paper has no gate.
        decoder = DecoderConfig(
            sizes.embedding, sizes.hidden, sizes.hidden, normalise=True, gate="none", dropout=sizes.dropout
        )
        attention = AttentionConfig("soft" if sizes.attention else "none", sizes.score, sizes.width)
        self.decoder = make_decoder(decoder, attention, words[1], 2 * sizes.encoder, (1, LONGEST))

    def losses(
        self, batch: Batch, smoothing: float = 0.0, randomness: Randomness | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (W,) and the negative log likelihood (W,) of each of the W pieces to predict."""
        words = batch.words  # (B, 1, T)
        outputs = self.decoder(self.encoder(batch.source, randomness), batch.target, randomness, words)
        return word_losses(outputs.logits, batch.target[:, :, 1:][words], smoothing)

    def search(self, sources: Sequence[Sequence[int]], beam: int, length_power: float) -> list[Hypothesis]:
        """Return the best translation of each sentence, in their order; similar lengths are searched together."""
        config = SearchConfig(beam=beam, length_power=length_power, maximum_length=LONGEST, no_repeat=0)
        found: dict[int, Hypothesis] = {}
        order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
        for start in range(0, len(order), SEARCH_BATCH):
            places = order[start : start + SEARCH_BATCH]
            source = pad([sources[place] for place in places])  # (B, L)
            with torch.no_grad():
                best = search(self.decoder, self.encoder(source), config)
            found |= {place: hypotheses[0] for place, hypotheses in zip(places, best, strict=True)}
        return [found[place] for place in range(len(sources))]


def translate(
    translator: Translator,
    languages: tuple[Language, Language],
    sentences: Sequence[str],
    *,
    beam: int = 5,
    length_power: float = 1.0,
) -> list[str]:
    """Return the translations of sentences."""
    sources = [encode_source(text, languages[0]) for text in sentences]
    return [languages[1].decode(each.ids) for each in translator.search(sources, beam, length_power)]
