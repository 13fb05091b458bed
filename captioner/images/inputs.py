"""Images as programs hold them: files, bytes, Pillow images, arrays and tensors.

An array is (height, width, 3) and a tensor (3, height, width), red, green and blue; either holds uint8, 0..255, or
floats, 0..1.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.images.opening import ImageError, ImageSource, NotAnImageError, open_image
from captioner.images.preprocessing import Prepared, Preprocessing

if TYPE_CHECKING:
    from torch import Tensor

    ImageInput = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor


def to_source(image: ImageInput) -> ImageSource:
    """Return an array or tensor as a Pillow image, and anything else as it is; raise `ImageError` for no image."""
    if isinstance(image, str | os.PathLike | bytes | Image.Image):
        return image
    if isinstance(image, np.ndarray):
        return _from_array(image, "array", "(height, width, 3)")
    if hasattr(image, "detach"):  # a tensor, told without importing torch
        if image.ndim != 3:
            raise ImageError("image", f"the tensor has the shape {tuple(image.shape)}; an image is (3, height, width)")
        channels_last = image.detach().cpu().permute(1, 2, 0)  # (height, width, 3)
        array = (channels_last.float() if channels_last.is_floating_point() else channels_last).numpy()
        return _from_array(array, "tensor", "(3, height, width)", tuple(image.shape))
    kinds = "a path, bytes, a Pillow image, an array or a tensor"
    raise NotAnImageError("image", f"{type(image).__name__} is not an image; give {kinds}")


def _from_array(pixels: NDArray[Any], kind: str, layout: str, shape: tuple[int, ...] | None = None) -> Image.Image:
    """Return pixels (height, width, 3), which were given as an array or a tensor of `shape` and `layout`."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ImageError("image", f"the {kind} has the shape {shape or pixels.shape}; an image is {layout}")
    if pixels.dtype.kind == "f":
        if not 0 <= pixels.min() <= pixels.max() <= 1:  # false for what is not a number
            levels = f"{pixels.min():.4g} to {pixels.max():.4g}"
            raise ImageError("image", f"the {kind} holds {levels}; floats are from 0 to 1")
        return Image.fromarray((pixels * 255).round().astype(np.uint8))
    if pixels.dtype != np.uint8:
        raise ImageError("image", f"the {kind} holds {pixels.dtype}; an image is uint8, 0 to 255, or floats, 0 to 1")
    return Image.fromarray(np.ascontiguousarray(pixels))


def prepare_picture(source: ImageSource, preprocessing: Preprocessing) -> Prepared:
    """Return any image upright and fitted; raise `ImageError` where it cannot be."""
    if isinstance(source, Image.Image):
        return preprocessing.apply(open_image(source))
    return preprocessing.read(source)
