"""Images as programs hold them: files, bytes, Pillow images, arrays and tensors.

An array is (height, width, 3) and a tensor (3, height, width), red, green and blue; either holds uint8, 0..255, or
floats, 0..1.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from captioner.captions import ImageSource
from captioner.image_formats import one_line
from captioner.images import ImageError, Prepared, Preprocessing, to_rgb

ImageInput = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any] | torch.Tensor


def to_source(image: ImageInput) -> ImageSource:
    """Return an array or tensor as a Pillow image, and anything else as it is; raise ValueError for no image."""
    if isinstance(image, str | os.PathLike | bytes | Image.Image):
        return image
    if isinstance(image, torch.Tensor):
        return _from_array(image, "tensor", "(3, height, width)", 0)
    if isinstance(image, np.ndarray):
        return _from_array(image, "array", "(height, width, 3)", 2)
    raise ImageError(f"{type(image).__name__} is no image; give a path, bytes, a Pillow image, an array or a tensor")


def _from_array(image: NDArray[Any] | torch.Tensor, kind: str, layout: str, channels: int) -> Image.Image:
    shape = tuple(image.shape)
    if len(shape) != 3 or shape[channels] != 3 or 0 in shape:
        raise ImageError(f"the {kind} has the shape {shape}; an image is {layout}")
    values = image.detach().cpu().permute(1, 2, 0) if isinstance(image, torch.Tensor) else image  # (height, width, 3)
    is_float = values.is_floating_point() if isinstance(values, torch.Tensor) else values.dtype.kind == "f"
    if is_float:
        pixels = values.float().numpy() if isinstance(values, torch.Tensor) else values
        if not 0 <= pixels.min() <= pixels.max() <= 1:  # false for what is not a number
            raise ImageError(f"the {kind} holds {pixels.min():.4g} to {pixels.max():.4g}; floats are from 0 to 1")
        return Image.fromarray((pixels * 255).round().astype(np.uint8))
    pixels = np.asarray(values)
    if pixels.dtype != np.uint8:
        raise ImageError(f"the {kind} holds {pixels.dtype}; an image is uint8, 0 to 255, or floats, 0 to 1")
    return Image.fromarray(np.ascontiguousarray(pixels))


def prepare_picture(source: ImageSource, preprocessing: Preprocessing) -> Prepared:
    """Return any image upright and fitted; raise `ImageError` where it cannot be."""
    if not isinstance(source, Image.Image):
        return preprocessing.read(source)
    if 0 in source.size:
        raise ImageError(f"the image has {source.width} x {source.height} pixels")
    try:
        return preprocessing.apply(to_rgb(ImageOps.exif_transpose(source)))
    except OSError as error:  # Pillow decodes late
        raise ImageError(f"the image cannot be decoded: {one_line(error)}") from None
