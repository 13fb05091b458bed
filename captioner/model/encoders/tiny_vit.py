"""TinyViT-5M: convolutions down to stride 8, then attention within windows (Wu et al., 2022, arXiv 2207.10666).

The trunk is a sequence of blocks, each from one feature map (B, D, rows, columns) to the next:

    stem             (B, 3, S, S) -> (B, 64, S/4, S/4)
    2 convolutions
    merging          -> (B, 128, S/8, S/8)
    2 window blocks
    merging          -> (B, 160, S/16, S/16)
    6 window blocks, the level "stride16"
    merging          -> (B, 320, S/32, S/32)
    2 window blocks, the level "stride32"

"stride16+32" joins both levels: the last merging puts the stride-16 map, averaged 2 x 2, before its own features, and
the window blocks after it let those 160 features pass by. So the trunk can be cut between any two blocks.

Batch norms are folded into the convolutions before them. Windows grow with the image, as in the authors' networks for
384 and 512 pixels: there are as many of them as at 224 pixels, and their position biases are resampled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = ("stride16", "stride32", "stride16+32")
SIZE = 224  # pixels that the weights were trained at
HUB = "tiny_vit_5m_224.dist_in22k"  # the weights in timm's model hub
STEM_WIDTH = 64
DEPTHS = (2, 2, 6, 2)
# Attention stages: width, heads, side of a window at 224 pixels, windows along a side of the map.
STAGES = ((128, 4, 7, 4), (160, 5, 14, 1), (320, 10, 7, 1))
EXPANSION = 4
BATCH_NORM_EPSILON = 1e-5


def build_trunk(level: str = "stride32") -> nn.Sequential:
    """Return the network up to `level`, its weights random: (B, 3, S, S) -> (B, D, rows, columns), D 160, 320, 480."""
    if level not in LEVELS:
        raise ValueError(f"tinyvit-5m has no layer {level}; choose from {', '.join(LEVELS)}")
    blocks: list[nn.Module] = [Stem(), *(Convolutions(STEM_WIDTH) for _ in range(DEPTHS[0]))]
    width = STEM_WIDTH
    for index, (outputs, heads, window, count) in enumerate(STAGES):
        if level == "stride16" and index == len(STAGES) - 1:
            break
        joins = level == "stride16+32" and index == len(STAGES) - 1
        blocks.append(Merging(width, outputs, joins=joins))
        passing = width if joins else 0
        blocks += [WindowBlock(outputs, heads, window, count, passing) for _ in range(DEPTHS[index + 1])]
        width = outputs
    return nn.Sequential(*blocks)


class Stem(nn.Module):
    """Two convolutions of stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, STEM_WIDTH // 2, 3, 2, 1)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(STEM_WIDTH // 2, STEM_WIDTH, 3, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, 64, S/4, S/4) of images (B, 3, S, S)."""
        features: Tensor = self.conv2(self.act(self.conv1(images)))
        return features


class Convolutions(nn.Module):
    """Expand, filter depthwise, project; with a skip, and an activation after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = EXPANSION * width
        self.conv1 = nn.Conv2d(width, hidden, 1)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.conv3 = nn.Conv2d(hidden, width, 1)
        self.act = nn.GELU()

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, D, rows, columns), the shape that comes in."""
        expanded = self.act(self.conv1(features))  # (B, 4D, rows, columns)
        projected = self.conv3(self.act(self.conv2(expanded)))  # (B, D, rows, columns)
        activated: Tensor = self.act(features + projected)
        return activated


class Merging(nn.Module):
    """Halve the map; where it `joins` levels, the averages of the four cells that become one stay beside the result."""

    def __init__(self, inputs: int, outputs: int, *, joins: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 2, 1, groups=outputs)
        self.conv3 = nn.Conv2d(outputs, outputs, 1)
        self.act = nn.GELU()
        # Odd maps: the cells of the last row and column are averages of the two or one there are.
        self.average = nn.AvgPool2d(2, ceil_mode=True) if joins else None

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, outputs, rows/2, columns/2), and before them the inputs' averages where levels are joined."""
        merged: Tensor = self.conv3(self.act(self.conv2(self.act(self.conv1(features)))))
        if self.average is None:
            return merged
        return torch.cat([self.average(features), merged], dim=1)  # (B, inputs + outputs, rows/2, columns/2)


class WindowBlock(nn.Module):
    """Attention within windows, a depthwise convolution that connects them, and an MLP.

    The first `passing` features of a map are not the block's: they come out as they came in.
    """

    def __init__(self, width: int, heads: int, window: int, count: int, passing: int = 0) -> None:
        super().__init__()
        self.width, self.passing = width, passing
        self.attn = WindowAttention(width, heads, window, count)
        self.local_conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.mlp = MLP(width)

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, passing + D, rows, columns), the shape that comes in."""
        if self.passing:
            passing, rest = features[:, : self.passing], features[:, self.passing :]
            return torch.cat([passing, self.transform(rest)], dim=1)
        return self.transform(features)

    def transform(self, features: Tensor) -> Tensor:
        """Return what the block makes of its own features (B, D, rows, columns)."""
        mixed = self.local_conv(features + self.attn(features))  # (B, D, rows, columns)
        cells: Tensor = mixed.flatten(2).transpose(1, 2)  # (B, rows * columns, D)
        cells = cells + self.mlp(cells)
        return cells.transpose(1, 2).reshape(features.shape)


class MLP(nn.Module):
    """Two layers over the features of each cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, EXPANSION * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(EXPANSION * width, width)

    def forward(self, cells: Tensor) -> Tensor:
        """Return (..., D), the shape that comes in."""
        changed: Tensor = self.fc2(self.act(self.fc1(self.norm(cells))))
        return changed


class WindowAttention(nn.Module):
    """Self-attention of cells within `count` x `count` windows, biased by how far apart two cells are.

    `window` is the side in cells for which the biases are stored: (heads, window * window), one for each distance in
    rows and columns.
    """

    def __init__(self, width: int, heads: int, window: int, count: int) -> None:
        super().__init__()
        self.heads, self.window, self.count = heads, window, count
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)  # of each head in turn: query, key, value
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, D, rows, columns), the shape that comes in."""
        batch, width, rows, columns = features.shape
        side = self.side(rows, columns)
        bottom, right = -rows % side, -columns % side
        # Zeros below and to the right fill the last windows, and are attended to, as in training.
        padded = F.pad(features, (0, right, 0, bottom))  # (B, D, down * side, across * side)
        down, across = (rows + bottom) // side, (columns + right) // side
        tiles = padded.view(batch, width, down, side, across, side).permute(0, 2, 4, 3, 5, 1)
        cells = tiles.reshape(batch * down * across, side * side, width)  # (W, N, D)
        heads = (
            self.qkv(self.norm(cells)).reshape(*cells.shape[:2], self.heads, -1).transpose(1, 2)
        )  # (W, heads, N, 3d)
        query, key, value = heads.chunk(3, dim=-1)  # (W, heads, N, d) each
        attended = F.scaled_dot_product_attention(query, key, value, self.biases(side))  # (W, heads, N, d)
        projected = self.proj(attended.transpose(1, 2).flatten(2))  # (W, N, D)
        tiles = projected.view(batch, down, across, side, side, width).permute(0, 5, 1, 3, 2, 4)
        whole: Tensor = tiles.reshape(batch, width, down * side, across * side)
        return whole[:, :, :rows, :columns]

    def side(self, rows: int, columns: int) -> int:
        """Return the side of the windows of a map: an equal share of it, never below 1."""
        return max(1, -(-max(rows, columns) // self.count))

    def biases(self, side: int) -> Tensor:
        """Return what is added to the scores of cells of a window (heads, N, N), N = side * side."""
        table = self.attention_biases.view(self.heads, self.window, self.window)  # (heads, window, window)
        if side != self.window:
            table = F.interpolate(table[None], (side, side), mode="bicubic", align_corners=False)[0]
        places = torch.arange(side, device=table.device)
        apart = (places[:, None] - places[None, :]).abs()  # (side, side)
        by_rows = table[:, apart]  # (heads, side, side, side): of two rows, and a distance in columns
        biases: Tensor = by_rows[:, :, :, apart]  # (heads, row, other row, column, other column)
        return biases.permute(0, 1, 3, 2, 4).reshape(self.heads, side * side, side * side)


def convert(stored: Mapping[str, Tensor], level: str) -> dict[str, Tensor]:
    """Return weights with timm's names as those of the trunk up to `level`, batch norms folded into convolutions.

    What comes after the level is left out. Names of the trunk itself, as checkpoints have them, are taken as they are.
    """
    if any(re.match(r"\d+\.", name) for name in stored):
        return dict(stored)
    starts = {"patch_embed": 0}
    place = 1
    for stage, depth in enumerate(DEPTHS[: 3 if level == "stride16" else 4]):
        if stage:
            starts[f"stages.{stage}.downsample"] = place
            place += 1
        for block in range(depth):
            starts[f"stages.{stage}.blocks.{block}"] = place
            place += 1
    weights: dict[str, Tensor] = {}
    for name, value in fold_batch_norms(stored).items():
        match = re.fullmatch(r"(patch_embed|stages[._]\d+\.(?:downsample|blocks\.\d+))\.(.+)", name)
        start = starts.get(match[1].replace("stages_", "stages.")) if match else None
        if match and start is not None:
            weights[f"{start}.{match[2]}"] = value
    return weights


def fold_batch_norms(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with every pair NAME.conv, NAME.bn as one convolution NAME with a bias."""
    folded = {name: value for name, value in stored.items() if not re.search(r"\.(conv\.weight|bn\.\w+)$", name)}
    for name in stored:
        if not name.endswith(".conv.weight"):
            continue
        owner = name.removesuffix(".conv.weight")
        weight, shift, mean, variance = (
            stored[f"{owner}.bn.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / (variance + BATCH_NORM_EPSILON).sqrt()
        folded[f"{owner}.weight"] = stored[name] * scale[:, None, None, None]
        folded[f"{owner}.bias"] = shift - mean * scale
    return folded
