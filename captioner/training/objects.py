"""What training knows of the objects in its images: their boxes, and where they lie on the regions of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.datasets.coverage import covered_shares
from captioner.datasets.dataset import CaptionedImage
from captioner.datasets.instances import instance_files, read_instances
from captioner.datasets.object_names import CATEGORIES, find_mentions
from captioner.datasets.vocabulary import Vocabulary
from captioner.images.preprocessing import Preprocessing
from captioner.training.batches import Indices

RARE = 0.01  # about how probable it is that some object of one category lies on a region
_PLACES = {category: place for place, category in enumerate(CATEGORIES)}


@dataclass(frozen=True)
class Boxes:
    """The boxes of objects in the I images of a corpus, in arrays that stay small for a million of them."""

    sizes: NDArray[np.float32]  # (I, 2), width and height of the image that was annotated; 0 where none was
    starts: Indices  # (I,), where the boxes of each image start
    counts: Indices  # (I,)
    corners: NDArray[np.float32]  # (n, 4): left, top, right, bottom
    categories: NDArray[np.uint8]  # (n,), places in CATEGORIES

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether an image was annotated (I,)."""
        return self.sizes[:, 0] > 0

    def count_absent(self, image: int, words: Sequence[str]) -> int:
        """Return how many objects are named that have no box in an image; 0 where nobody has looked for them."""
        if self.sizes[image, 0] == 0:
            return 0
        start = int(self.starts[image])
        there = set(self.categories[start : start + int(self.counts[image])].tolist())
        return sum(_PLACES[mention.category] not in there for mention in find_mentions(words))


def read_boxes(sets: Sequence[tuple[Path, Sequence[CaptionedImage]]]) -> Boxes:
    """Return the boxes of the images of each data set, one set after the other, from the files under its root.

    What is known of an image of a set without such files is nothing.
    """
    count = sum(len(images) for _, images in sets)
    sizes = np.zeros((count, 2), np.float32)
    starts, counts = np.zeros(count, np.int64), np.zeros(count, np.int64)
    corners, categories = array("f"), array("B")
    first = 0
    for root, images in sets:
        places = {image.image_id: place for place, image in enumerate(images, start=first)}
        for path in instance_files(root, images):  # one at a time: JSON takes many times the memory of arrays
            for image_id, image in read_instances([path], places).images.items():
                place = places[image_id]
                boxed = [each for each in image.instances if each.category in _PLACES]
                sizes[place] = image.width, image.height
                starts[place], counts[place] = len(categories), len(boxed)
                categories.extend(_PLACES[each.category] for each in boxed)
                corners.extend(edge for each in boxed for edge in each.box)
        first += len(images)
    edges = np.array(corners, np.float32).reshape(-1, 4)
    return Boxes(sizes, starts, counts, edges, np.array(categories, np.uint8))


@dataclass(frozen=True)
class BatchObjects:
    """The objects of b images as M maps, each of where the objects of one category lie on one image."""

    known: Tensor  # (b,) bool: images that were annotated
    coverage: Tensor  # (M, L), the share of each region, 0..1
    rows: Tensor  # (M,), their images, 0..b-1
    categories: Tensor  # (M,), places in CATEGORIES
    named: Tensor  # (b, N, T), the map of what each word to predict names, -1 for none

    def to(self, device: str) -> BatchObjects:
        """Return them on a device."""
        return BatchObjects(*(getattr(self, each.name).to(device) for each in fields(self)))

    def targets(self) -> Tensor:
        """Return the share (b, L, C), 0..1, of each region that each category covers."""
        shape = (len(self.known), len(CATEGORIES), self.coverage.shape[1])
        covered = self.coverage.new_zeros(shape).index_put_((self.rows, self.categories), self.coverage)  # (b, C, L)
        return covered.transpose(1, 2)


class ObjectFinder:
    """Finds the objects of batches on a grid (rows, columns) of regions, and the words that name them."""

    def __init__(
        self, boxes: Boxes, vocabulary: Vocabulary, preprocessing: Preprocessing, grid: tuple[int, int]
    ) -> None:
        self.boxes, self.vocabulary, self.grid = boxes, vocabulary, grid
        self.ways = (preprocessing, replace(preprocessing, flip=True))

    def find(self, images: Indices, mirrored: NDArray[np.bool_], caption_ids: Indices) -> BatchObjects:
        """Return the objects of images (b,) of the corpus, seen flipped where `mirrored` (b,).

        The words to predict are those of captions (b, N, T + 1) but for the first, the start marker.
        """
        coverage: list[NDArray[np.float64]] = []
        rows, categories = [], []
        named = np.full((*caption_ids.shape[:2], caption_ids.shape[2] - 1), -1, np.int64)  # (b, N, T)
        for row, (image, flipped) in enumerate(zip(images.tolist(), mirrored.tolist(), strict=True)):
            maps: dict[int, int] = {}
            for category, covered in self._cover(image, flipped):
                maps[category] = len(coverage)
                coverage.append(covered.ravel())
                rows.append(row)
                categories.append(category)
            if not maps:
                continue
            for column, ids in enumerate(caption_ids[row].tolist()):
                for mention in find_mentions(self.vocabulary.words(ids)):
                    named[row, column, mention.start : mention.end] = maps.get(_PLACES[mention.category], -1)
        regions = self.grid[0] * self.grid[1]
        return BatchObjects(
            torch.from_numpy(self.boxes.known[images]),
            torch.from_numpy(np.array(coverage, np.float32).reshape(-1, regions)),
            torch.tensor(rows, dtype=torch.int64),
            torch.tensor(categories, dtype=torch.int64),
            torch.from_numpy(named),
        )

    def _cover(self, image: int, flipped: bool) -> list[tuple[int, NDArray[np.float64]]]:
        """Return each category that has a box in what the network sees of an image, with its map (rows, columns)."""
        boxes, start = self.boxes, int(self.boxes.starts[image])
        end = start + int(boxes.counts[image])
        if start == end:
            return []
        preprocessing = self.ways[flipped]
        geometry = preprocessing.geometry(*boxes.sizes[image].astype(int).tolist())
        filled = preprocessing.filled(geometry) or self.grid
        rest = tuple((0, side - there) for side, there in zip(self.grid, filled, strict=True))  # cells of padding
        categories, corners = boxes.categories[start:end], boxes.corners[start:end]
        found = []
        for category in sorted(set(categories.tolist())):
            covered = covered_shares(corners[categories == category], geometry, filled)
            if covered.any():
                found.append((category, np.pad(covered, rest)))
        return found


class RegionClassifier(nn.Module):
    """Says which of C categories lie on each region: a second task, whose weights no model keeps.

    Its weights start at zero, so that an encoder that is trained feels it only once it has learned something.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, len(CATEGORIES))
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, float(np.log(RARE / (1 - RARE))))

    def forward(self, regions: Tensor) -> Tensor:
        """Return logits (B, L, C) of regions (B, L, D), whose scale is another with each encoder."""
        logits: Tensor = self.linear(F.layer_norm(regions, regions.shape[-1:]))
        return logits
