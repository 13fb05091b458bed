"""What an encoder sees in an image: its regions over the original pixels, its ImageNet class and the evidence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image
from torchvision.models import ResNet18_Weights

from captioner.images.geometry import Box, Geometry
from captioner.images.opening import ImageError
from captioner.images.preprocessing import Prepared, read_ahead
from captioner.model.encoders.encoder import Encoder
from captioner.model.encoders.engines import make_engine

CLASSES_SHOWN = 3


@dataclass(frozen=True)
class Inspection:
    """One image through the encoder: where its regions lie, and what its classifier makes of it.

    `classes` are the most probable ImageNet classes with their probabilities; `evidence` (rows, columns) is what each
    region adds to the logit of the first.
    """

    geometry: Geometry
    classes: tuple[tuple[str, float], ...]
    evidence: NDArray[np.float32]


def inspect_images(paths: Iterable[str | os.PathLike[str]], encoder: Encoder) -> Iterator[Inspection | ImageError]:
    """Yield what the encoder sees in each image, or why the image was refused, in order."""
    names = ResNet18_Weights.DEFAULT.meta["categories"]
    with make_engine(encoder) as engine:
        for prepared in read_ahead(paths, encoder.preprocessing):
            if not isinstance(prepared, Prepared):
                yield prepared
                continue
            regions = torch.from_numpy(engine([prepared.pixels]))  # (1, L, D)
            with torch.inference_mode():
                logits = encoder.classify(regions)[0]  # (L, 1000)
            rows, columns = encoder.preprocessing.filled(prepared.geometry) or encoder.grid
            logits = logits.reshape(*encoder.grid, -1)[:rows, :columns]  # (rows, columns, 1000), without padding
            # The classifier is linear in the mean region, so its logit is the mean of those of the regions.
            probabilities, best = logits.flatten(0, 1).mean(dim=0).softmax(dim=0).topk(CLASSES_SHOWN)
            evidence = logits[..., best[0]].numpy()
            classes = tuple((names[index], float(value)) for index, value in zip(best, probabilities, strict=True))
            yield Inspection(prepared.geometry, classes, evidence)


def draw_inspection(image: Image.Image, inspection: Inspection, width: float = 8.0) -> Figure:
    """Return a figure `width` inches wide: the image under its regions, and under the evidence for its class."""
    geometry = inspection.geometry
    title_height = 0.35
    panel = (width - 0.1) / 2
    height = panel * geometry.height / geometry.width + title_height
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    share = 1 - title_height / height
    rows, columns = inspection.evidence.shape
    titles = (f"{rows} x {columns} regions", "{} {:.0%}".format(*inspection.classes[0]))
    left, top, right, bottom = geometry.box
    for index, title in enumerate(titles):
        axes = figure.add_axes((index * (panel + 0.1) / width, 0, panel / width, share))
        axes.imshow(image, extent=(0, geometry.width, geometry.height, 0), interpolation="bilinear")
        axes.set_title(title, fontsize=10, pad=6)
        axes.set_axis_off()
        if index == 0:
            for region in range(rows * columns):
                x, y, far_x, far_y = geometry.cell_box(region // columns, region % columns, (rows, columns))
                outline = Rectangle((x, y), far_x - x, far_y - y, fill=False, edgecolor="white", linewidth=0.6)
                axes.add_patch(outline)
        else:
            evidence = inspection.evidence[:, ::-1] if geometry.flipped else inspection.evidence
            axes.imshow(evidence, extent=(left, right, bottom, top), cmap="inferno", alpha=0.6, interpolation="bicubic")
        for x, y, far_x, far_y in _unseen(geometry):
            axes.add_patch(Rectangle((x, y), far_x - x, far_y - y, facecolor="black", alpha=0.6, linewidth=0))
        axes.set_xlim(0, geometry.width)
        axes.set_ylim(geometry.height, 0)
    return figure


def _unseen(geometry: Geometry) -> list[Box]:
    """Return the margins of the original that a crop cut off."""
    left, top, right, bottom = geometry.box
    width, height = float(geometry.width), float(geometry.height)
    return [(0.0, 0.0, width, top), (0.0, bottom, width, height), (0.0, top, left, bottom), (right, top, width, bottom)]
