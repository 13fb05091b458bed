"""Image captioning with visible attention, after Show, Attend and Tell (Xu et al., 2015).

`load` returns a model, a `Captioner`, whose `caption` method returns a `Caption` for each image. An image that cannot
be read raises `ImageError`, a ValueError. `caption_images` takes files, folders and archives of any size, and yields
the captions of each image, or its error. `evaluate` scores models on a data set.

The letters of every shape in this package:
    B images   N captions per image   L regions   D region features   T steps
    V words    E embedding            H hidden    K beams             S pixels on a side
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from captioner.captioning.caption import Caption as Caption
    from captioner.captioning.captioner import Captioner as Captioner
    from captioner.captioning.captioner import load as load
    from captioner.captioning.collection import caption_images as caption_images
    from captioner.evaluation.evaluate import evaluate as evaluate
    from captioner.images.opening import ImageError as ImageError

__version__ = "0.2.0"
__all__ = ["Caption", "Captioner", "ImageError", "caption_images", "evaluate", "load"]

# Found when they are asked for: torch takes seconds to import, and most commands can do without.
_HOMES = {
    "Caption": "captioning.caption",
    "Captioner": "captioning.captioner",
    "ImageError": "images.opening",
    "caption_images": "captioning.collection",
    "evaluate": "evaluation.evaluate",
    "load": "captioning.captioner",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
