"""DINOv2 ViT-S/14: a vision transformer on patches of 14 x 14 pixels (Oquab et al., 2023, arXiv 2304.07193).

The trunk is a sequence of blocks:

    patches      (B, 3, S, S) -> tokens: the class token, then the patches row by row, with their positions
    12 blocks    tokens -> tokens
    regions      tokens -> (B, D, rows, columns): the last norm, patches averaged or the class token joined on request

Tokens travel as a map of one row, (B, 384, 1, 1 + P), so that the trunk can be cut between any two blocks: what a
region cache stores of the lower part are 1 + P regions in a grid of one row, the class token first.

Levels: "stride14" are the patches, "stride28" the averages of 2 x 2 of them; "+class" puts the class token's features
after those of every region.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = ("stride14", "stride28", "stride14+class", "stride28+class")
SIZE = 224  # pixels; the weights were trained at 224 and finished at 518, of which the positions are
HUB = "vit_small_patch14_dinov2.lvd142m"  # the weights in timm's model hub
WIDTH, DEPTH, HEADS, EXPANSION = 384, 12, 6, 4
PATCH = 14  # pixels
POSITIONS = 37  # patches along a side for which positions are stored
EPSILON = 1e-6


def build_trunk(level: str = "stride14") -> nn.Sequential:
    """Return the network with random weights: (B, 3, S, S) -> (B, D, rows, columns), D 384, with class token 768."""
    if level not in LEVELS:
        raise ValueError(f"dinov2-small has no layer {level}; choose from {', '.join(LEVELS)}")
    regions = RegionMap(averaged=level.startswith("stride28"), joined=level.endswith("+class"))
    return nn.Sequential(Patches(), *(Block() for _ in range(DEPTH)), regions)


class Patches(nn.Module):
    """Images to tokens with positions, which are resampled for images of other than the weights' 37 x 37 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + POSITIONS**2, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, 384, 1, 1 + P) of images (B, 3, S, S)."""
        size = images.shape[-1]
        if size % PATCH:
            raise ValueError(
                f"size is {size}; dinov2-small needs a multiple of {PATCH}, such as {size // 14 * 14 or 14}"
            )
        patches = self.proj(images).flatten(2).transpose(1, 2)  # (B, P, 384)
        first, positions = self.positions(size // PATCH)
        tokens = torch.cat([first.expand(len(images), -1, -1), patches + positions], dim=1)  # (B, 1 + P, 384)
        return as_map(tokens)

    def positions(self, side: int) -> tuple[Tensor, Tensor]:
        """Return the class token with its position (1, 1, 384), and positions (1, P, 384) of side x side patches."""
        stored = self.pos_embed[:, 1:]  # (1, 37 * 37, 384)
        if side != POSITIONS:
            grid = stored.view(1, POSITIONS, POSITIONS, WIDTH).permute(0, 3, 1, 2)  # (1, 384, 37, 37)
            grid = F.interpolate(grid, (side, side), mode="bicubic", antialias=True)
            stored = grid.flatten(2).transpose(1, 2)  # (1, P, 384)
        return self.cls_token + self.pos_embed[:, :1], stored


class Block(nn.Module):
    """Attention among all tokens, then an MLP on each; what both add is scaled feature by feature."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, EPSILON)
        self.attn = Attention()
        self.ls1 = Scale()
        self.norm2 = nn.LayerNorm(WIDTH, EPSILON)
        self.mlp = MLP()
        self.ls2 = Scale()

    def forward(self, features: Tensor) -> Tensor:
        """Return tokens (B, 384, 1, 1 + P) of tokens."""
        tokens = features.flatten(2).transpose(1, 2)  # (B, 1 + P, 384)
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        tokens = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return as_map(tokens)


class Attention(nn.Module):
    """Self-attention of six heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)  # queries of all heads, then keys, then values
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (B, 1 + P, 384), the shape that comes in."""
        heads = (
            self.qkv(tokens).reshape(*tokens.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )  # (3, B, heads, 1 + P, d)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])  # (B, heads, 1 + P, d)
        projected: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """Two layers over the features of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, EXPANSION * WIDTH)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(EXPANSION * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (..., 384), the shape that comes in."""
        changed: Tensor = self.fc2(self.act(self.fc1(tokens)))
        return changed


class Scale(nn.Module):
    """One factor for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (..., 384), the shape that comes in."""
        return tokens * self.gamma


class RegionMap(nn.Module):
    """Tokens to the map of regions: the last norm; 2 x 2 patches averaged, the class token joined to each region."""

    def __init__(self, *, averaged: bool, joined: bool) -> None:
        super().__init__()
        self.averaged, self.joined = averaged, joined
        self.norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, 384 or 768, rows, columns) of tokens (B, 384, 1, 1 + P), P = rows * columns or four times that."""
        tokens: Tensor = self.norm(features.flatten(2).transpose(1, 2))  # (B, 1 + P, 384)
        side = self.side(tokens.shape[1])
        regions = tokens[:, 1:].transpose(1, 2).reshape(-1, WIDTH, side, side)  # (B, 384, side, side)
        if self.averaged:
            regions = F.avg_pool2d(regions, 2)
        if not self.joined:
            return regions
        first = tokens[:, 0, :, None, None].expand(-1, -1, *regions.shape[2:])  # (B, 384, rows, columns)
        return torch.cat([regions, first], dim=1)  # (B, 768, rows, columns)

    def side(self, tokens: int) -> int:
        """Return how many patches lie along a side of the image."""
        side = math.isqrt(tokens - 1)
        if self.averaged and side % 2:
            size = side * PATCH
            raise ValueError(f"size is {size}; dinov2-small at stride28 needs a multiple of 28, such as {size + PATCH}")
        return side


def as_map(tokens: Tensor) -> Tensor:
    """Return tokens (B, 1 + P, 384) as a map (B, 384, 1, 1 + P)."""
    return tokens.transpose(1, 2).unsqueeze(2)


def convert(stored: Mapping[str, Tensor], level: str) -> dict[str, Tensor]:
    """Return weights with timm's and the authors' names as those of the trunk, which are the same at every `level`.

    Names of the trunk itself, as checkpoints have them, are taken as they are.
    """
    if any(re.match(r"\d+\.", name) for name in stored):
        return dict(stored)
    weights: dict[str, Tensor] = {}
    for name, value in stored.items():
        if name in ("cls_token", "pos_embed"):
            weights[f"0.{name}"] = value
        elif name.startswith("patch_embed.proj."):
            weights[f"0.{name.removeprefix('patch_embed.')}"] = value
        elif match := re.fullmatch(r"blocks\.(\d+)\.(.+)", name):
            weights[f"{1 + int(match[1])}.{match[2]}"] = value
        elif name in ("norm.weight", "norm.bias"):
            weights[f"{1 + DEPTH}.{name}"] = value
    return weights
