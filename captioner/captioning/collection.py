"""Captions of files, folders and archives: results come in the order of the images, as they are taken.

Decoding, encoding and searching run side by side in threads; what they hold at a time does not grow with the
collection.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.captioning.caption import Result
from captioner.captioning.captioner import Captioner, load
from captioner.captioning.options import CaptionOptions, CaptionSettings, make_options
from captioner.captioning.pipeline import caption_items
from captioner.images.finding import find_sources
from captioner.images.opening import ImageError
from captioner.images.patterns import expand_patterns
from captioner.images.preprocessing import Prepared, Preprocessing
from captioner.images.sources import Source

if TYPE_CHECKING:
    from typing_extensions import Unpack


def caption_images(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    model: Captioner | str | os.PathLike[str] | None = None,
    *,
    recursive: bool = False,
    n_best: int | None = None,
    **settings: Unpack[CaptionSettings],
) -> Iterator[Result]:
    """Caption the images in files, folders, tar archives and by glob patterns; yield a `Result` of each, in order.

    A result has the image's `name` and its `captions`, the best first, or the `error` that left it without: an image
    that cannot be read stops nothing. Images are found, read and captioned as results are taken, so that memory does
    not grow with the collection. Folders are searched for images, `recursive` with their subfolders. The `model` is a
    loaded one, or what `load` takes; `n_best` and the settings are those of `Captioner.caption`.
    """
    options = make_options(n_best=n_best, **settings)
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    captioner = model if isinstance(model, Captioner) else load(model)
    sources = find_sources(expand_patterns(os.fspath(path) for path in given), recursive=recursive)
    return caption_sources(captioner, sources, options)


def caption_sources(
    model: Captioner, sources: Iterable[Source], options: CaptionOptions | None = None, *, stamped: bool = False
) -> Iterator[Result]:
    """Yield what comes of each image, in order; sources are taken as they are needed, in the caller's thread.

    A caption's own `source` is the image's path where it has one. The sources of results have the stamps of the files
    that were read where they are asked for `stamped`.
    """
    options = options or CaptionOptions()

    # Others may know an image by its path, and read nothing of it; what is read twice then is read from memory.
    by_path = type(model.preprocessing) is not Preprocessing

    def prepare(source: Source) -> tuple[Source, Prepared]:
        opened: Path | bytes | None = None
        if stamped:
            source, opened = source.read()
        if opened is None or by_path:
            opened = source.open()
        return source, model.preprocessing.read(opened)

    items = ((source, options.image_seed(source.key)) for source in sources)
    for source, captions in caption_items(model, items, prepare, options):
        if isinstance(captions, ImageError):
            yield Result.failed(source, captions.reason)
        else:
            path = source.path if source.offset is None and source.contents is None else source.contents
            yield Result(source, tuple(replace(caption, source=path) for caption in captions))
