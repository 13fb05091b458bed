"""Score functions: how well each region fits a hidden state.

A score function's `prepare` turns the regions of a batch into keys, once; its `reader`, where it has one, is the linear
layer through which it reads the hidden state. Who reads a hidden state with several layers can so do it in one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.config import AttentionConfig
from captioner.model.extensions import load_extension
from captioner.model.kernels.additive import AdditiveKeys
from captioner.model.kernels.products import Linear
from captioner.model.kernels.shared_matrix import SharedMatrix

Keys = SharedMatrix | AdditiveKeys


class Score(nn.Module):
    """A score function without weights; `reader` is None where hidden states are taken as they are."""

    reader: nn.Linear | None

    def __init__(self) -> None:
        super().__init__()
        self.reader = None

    def prepare(self, regions: Tensor) -> Keys:
        """Return keys of regions (B, L, D), here the regions themselves."""
        return SharedMatrix(regions.transpose(1, 2))

    def forward(self, keys: Keys, query: Tensor) -> Tensor:
        """Return scores (B, N, L) for queries (B, N, A): hidden states, through the reader where there is one."""
        return keys(query)


class AdditiveScore(Score):
    """v . tanh(W region + U hidden), the paper's (Bahdanau et al., 2015)."""

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__()
        self.region = Linear(region_width, width, bias=False)
        self.reader = Linear(hidden_width, width)
        self.energy = Linear(width, 1, bias=False)  # a bias would cancel in the softmax

    def prepare(self, regions: Tensor) -> Keys:
        """Return W region, (B, L, A)."""
        return AdditiveKeys(self.region(regions), self.energy.weight[0])


class ConcatScore(AdditiveScore):
    """v . tanh(W [region; hidden]) (Luong et al., 2015).

    One matrix times two vectors end to end is two matrices times one vector each, so this is the additive score; what
    sets it apart is how it starts: as one matrix, scaled for both widths together.
    """

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__(region_width, hidden_width, width)
        bound = 1 / math.sqrt(region_width + hidden_width)
        assert self.reader is not None
        for parameter in (self.region.weight, self.reader.weight, self.reader.bias):
            nn.init.uniform_(parameter, -bound, bound)


class DotScore(Score):
    """hidden . region, divided by the root of their width where `scaled` (Vaswani et al., 2017)."""

    def __init__(self, region_width: int, hidden_width: int, scaled: bool) -> None:
        super().__init__()
        if region_width != hidden_width:
            raise ValueError(
                f"dot scores need regions and hidden states of one width, not {region_width} and {hidden_width}; "
                "project the regions, or choose general"
            )
        self.scale = 1 / math.sqrt(hidden_width) if scaled else 1.0

    def forward(self, keys: Keys, query: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        return keys(self.scale * query)


class GeneralScore(Score):
    """hidden . W region, bilinear (Luong et al., 2015)."""

    def __init__(self, region_width: int, hidden_width: int) -> None:
        super().__init__()
        self.region = Linear(region_width, hidden_width, bias=False)

    def prepare(self, regions: Tensor) -> Keys:
        """Return W region, (B, H, L)."""
        return SharedMatrix(self.region(regions).transpose(1, 2))


class CosineScore(Score):
    """The cosine between projections of region and hidden state, times a learned sharpness."""

    def __init__(self, region_width: int, hidden_width: int, width: int) -> None:
        super().__init__()
        self.region = Linear(region_width, width, bias=False)
        self.reader = Linear(hidden_width, width, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(10.0))  # cosines alone could not get far from uniform weights

    def prepare(self, regions: Tensor) -> Keys:
        """Return projected regions of length one, (B, A, L)."""
        return SharedMatrix(F.normalize(self.region(regions), dim=-1).transpose(1, 2))

    def forward(self, keys: Keys, query: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        return self.sharpness * keys(F.normalize(query, dim=-1))


class LocationScore(Score):
    """W hidden, one row per region: where to look follows from the hidden state alone.

    Where there are fewer regions than `regions`, they are the first of them.
    """

    def __init__(self, hidden_width: int, regions: int) -> None:
        super().__init__()
        self.reader = Linear(hidden_width, regions)

    def forward(self, keys: Keys, query: Tensor) -> Tensor:
        """Return scores (B, N, L)."""
        assert isinstance(keys, SharedMatrix)
        regions = keys.matrix.shape[-1]
        if regions > query.shape[-1]:
            raise ValueError(f"location scores are made for at most {query.shape[-1]} regions, not {regions}")
        return query if regions == query.shape[-1] else query[..., :regions]


def make_score(config: AttentionConfig, region_width: int, hidden_width: int, regions: int) -> Score:
    """Return the score function of `config` for L `regions` of `region_width` D and hidden states of width H."""
    makers: dict[str, Callable[[], Score]] = {
        "additive": lambda: AdditiveScore(region_width, hidden_width, config.width),
        "concat": lambda: ConcatScore(region_width, hidden_width, config.width),
        "dot": lambda: DotScore(region_width, hidden_width, scaled=False),
        "scaled-dot": lambda: DotScore(region_width, hidden_width, scaled=True),
        "general": lambda: GeneralScore(region_width, hidden_width),
        "cosine": lambda: CosineScore(region_width, hidden_width, config.width),
        "location": lambda: LocationScore(hidden_width, regions),
    }
    if config.score in makers:
        return makers[config.score]()
    extension = load_extension(config.score)
    if not (isinstance(extension, type) and issubclass(extension, Score)):
        raise ValueError(f"{config.score} is no score function; it must be a subclass of captioner.model.scores.Score")
    score: Score = extension(region_width, hidden_width, config.width)  # type: ignore[call-arg]
    return score
