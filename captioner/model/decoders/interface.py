"""What every decoder looks like from outside: one step, shared by teacher forcing, sampling and beam search.

Batches are image-major: N captions of each of B images, which share the image's regions and what is computed of them.
Nothing is random unless randomness is given: it makes a step one of training, with dropout and sampled regions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from captioner.model.attention import Attention
from captioner.model.config import DecoderConfig
from captioner.model.glimpse import Fixations
from captioner.model.kernels.products import Linear
from captioner.model.randomness import Looks, Randomness
from captioner.model.regions import Regions


class DecoderInputs(ABC):
    """What every step of a batch of images needs: their regions, and the weights that steps share."""

    @abstractmethod
    def select(self, index: Tensor) -> DecoderInputs:
        """Return the inputs of some images only."""


@dataclass(frozen=True)
class State:
    """What a decoder keeps of the words of each caption so far; which tensors, each decoder knows."""

    tensors: tuple[Tensor, ...]  # each (B, N, ...)
    step: int = 0  # words read so far

    def first(self, captions: int) -> State:
        """Return the state of the first captions of each image only."""
        return self._map(lambda tensor: tensor[:, :captions])

    def select(self, index: Tensor) -> State:
        """Return the state of some images only."""
        return self._map(lambda tensor: tensor[index])

    def expand(self, captions: int) -> State:
        """Return the state of so many captions of each image, where there is one that all of them continue."""
        return self._map(lambda tensor: tensor.expand(-1, captions, *tensor.shape[2:]))

    def _map(self, change: Callable[[Tensor], Tensor]) -> State:
        return State(tuple(map(change, self.tensors)), self.step)


@dataclass(frozen=True)
class EmbeddedWords:
    """Words as a decoder reads them: (B, N, ...), or (B, N, T, ...) of whole captions."""

    vectors: Tensor  # (..., E), their embeddings
    projected: Tensor  # (..., X), what the first layer makes of them: an LSTM's, their part of its gates


@dataclass(frozen=True)
class Step:
    """What comes of reading one word: where the decoder looked, what it saw there, and the state after.

    With T steps joined, as teacher forcing does, each tensor is (B, N, T, ...), and the state is the last.
    """

    state: State
    hidden: Tensor  # (B, N, H), what the next word is scored by
    context: Tensor  # (B, N, R), gated
    alpha: Tensor  # (B, N, L)
    beta: Tensor  # (B, N, G): G is 1, or the context's width where the gate is a vector
    chosen: Tensor | None  # (B, N), the region that was sampled, where one was
    fixations: Fixations | None = None  # the points that a policy chose, where there is one


@dataclass(frozen=True)
class Outputs:
    """The steps of teacher forcing, T of them; what lies beyond a caption's end is zero."""

    logits: Tensor  # (B, N, T, V), or (W, V) of the W words that a mask told to score
    alpha: Tensor  # (B, N, T, L)
    beta: Tensor  # (B, N, T, G)
    chosen: Tensor | None  # (B, N, T)
    expected: Tensor | None  # (B, 1, 1) bool: images whose context was an expectation, where others' was one region
    fixations: Fixations | None = None  # (B, N, T, ...)


class Decoder(nn.Module, ABC):
    """A caption's words from regions (B, L, D), one after the other; V words."""

    config: DecoderConfig
    attention: Attention | None  # None where the decoder has attention of a kind of its own
    embedding: nn.Embedding  # (V, E)
    output: nn.Linear  # (V, E), of the same weights where they are tied

    @abstractmethod
    def start(
        self, regions: Tensor | Regions, captions: int = 1, randomness: Randomness | None = None
    ) -> tuple[DecoderInputs, State]:
        """Return what `step` needs of regions (B, L, D), and the state before the first word of N captions each."""

    @abstractmethod
    def embed(
        self, words: Tensor, inputs: DecoderInputs | None = None, randomness: Randomness | None = None
    ) -> EmbeddedWords:
        """Return words (B, N), or whole captions (B, N, T), as `step` and `logits` read them.

        With `inputs`, what is made of a word comes from a table of theirs, where nothing is learned.
        """

    @abstractmethod
    def step(
        self,
        inputs: DecoderInputs,
        state: State,
        words: Tensor,
        randomness: Randomness | None = None,
        *,
        parents: Tensor | None = None,
        captions: int | None = None,
    ) -> Step:
        """Look at the regions and read one word of each caption. `logits` scores the next word.

        `words` (B, N, X) are projected, see `embed`. With `parents` (B, K), K captions of each image continue the N
        states that these name, and share what does not depend on the word. Samples are drawn for `captions` of each
        image (default: N), of which those here are the first.
        """

    @abstractmethod
    def logits(
        self, words: EmbeddedWords, step: Step, randomness: Randomness | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return scores (..., V) of the word that follows a step, or T steps joined.

        With a mask (B, N, T) the rows (W, V) are those of the W words where it is True.
        """

    @abstractmethod
    def forward(
        self,
        regions: Tensor | Regions,
        caption_ids: Tensor,
        randomness: Randomness | None = None,
        mask: Tensor | None = None,
    ) -> Outputs:
        """Read captions (B, N, T + 1) and score each next word, all but the last word of each being read.

        With a mask (B, N, T), only words where it is True are scored, and little else is read.
        """

    def all_looks(self, regions: Tensor | Regions, caption_ids: Tensor) -> Tensor:
        """Return the weights of every layer and head for the T words of captions, (B, N, T, layers, heads, L).

        A decoder that looks once for each word has one of each: alpha.
        """
        outputs: Outputs = self(regions, caption_ids)
        return outputs.alpha[:, :, :, None, None]

    def read(
        self,
        inputs: DecoderInputs,
        state: State,
        words: Tensor,
        parents: Tensor | None = None,
        looks: Looks | None = None,
    ) -> tuple[Step, Tensor]:
        """Read words (B, N) as a search does: return the step, and the scores (B, N, V) of the words to follow.

        `parents` are those of `step`. With `looks`, where to look is sampled.
        """
        embedded = self.embed(words, inputs)
        step = self.step(inputs, state, embedded.projected, looks, parents=parents)
        return step, self.logits(embedded, step)

    def _dropout(self, values: Tensor, randomness: Randomness | None, mask: Tensor | None = None) -> Tensor:
        return randomness.dropout(values, self.config.dropout, mask) if randomness is not None else values


def projection(config: DecoderConfig, region_width: int) -> nn.Sequential:
    """Return what regions (B, L, D) go through first, to (B, L, R)."""
    layers = nn.Sequential()
    if config.regions:
        layers.append(Linear(region_width, config.regions))
    if config.normalise:
        layers.append(nn.LayerNorm(config.regions or region_width))
    return layers
