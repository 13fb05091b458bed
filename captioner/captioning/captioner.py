"""A trained model that captions images: one call for one image or for a list. `collection.py` takes whole folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from captioner.captioning.all_looks import all_looks, with_heads
from captioner.captioning.caption import Caption
from captioner.captioning.options import CaptionOptions, CaptionSettings, make_options
from captioner.captioning.pipeline import caption_items
from captioner.datasets.vocabulary import Vocabulary, join_words
from captioner.images.geometry import Geometry
from captioner.images.inputs import prepare_picture, to_source
from captioner.images.opening import ImageError, ImageSource
from captioner.images.preprocessing import Prepared
from captioner.model.bundled import find_model, model_name
from captioner.model.checkpoint import Checkpoint, load_checkpoint
from captioner.model.confidence import Calibration, find_calibration
from captioner.model.encoders.engines import TorchEngine, make_engine
from captioner.model.encoders.region_cache import grid_mask
from captioner.model.regions import Regions
from captioner.model.search.beam import Hypothesis, nothing, search
from captioner.model.search.next_words import ContentWords
from captioner.processes import choose_device

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from captioner.images.inputs import ImageInput


class Captioner:
    """A trained model, ready to caption; it may be used from several threads at once.

    `digest` tells the model from all others, `encoder_identity` its encoder, `name` is what people call it, if
    anything, and `grid` the (rows, columns) of its attention. `encodes_in_torch` tells whether torch runs the encoder,
    and not threads of ONNX Runtime's. With a `calibration`, the first caption of a beam has a confidence. It can be
    pickled, to the same kind of device, and takes its weights along.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str = "auto",
        engine: str = "auto",
        threads: int | None = None,
        progress: bool = False,
        name: str | None = None,
        allow_download: bool = False,
        calibration: Calibration | None = None,
    ) -> None:
        """Build the model of a checkpoint, which may have a `name` and a `calibration`.

        `device`, `engine` and `threads` are those of `make_engine`. Where the checkpoint comes without its encoder's
        weights and they are not on this machine, `allow_download` gets them, and `progress` shows that on stderr.
        """
        self.device = choose_device(device)
        self.digest = checkpoint.digest
        self.encoder_identity = checkpoint.encoder_identity
        self.name = name
        self.calibration = calibration
        self.vocabulary = checkpoint.vocabulary
        self._checkpoint = checkpoint  # to be pickled, with what it takes to build the model again
        self._settings = {"engine": engine, "threads": threads, "allow_download": allow_download}
        encoder = checkpoint.build_encoder(progress=progress, allow_download=allow_download)
        self.preprocessing = encoder.preprocessing
        self.grid = encoder.grid
        self._engine = make_engine(encoder, engine, device=self.device, threads=threads)
        self.encodes_in_torch = isinstance(self._engine, TorchEngine)
        self.decoder = checkpoint.build_decoder().to(self.device)

    @cached_property
    def _content(self) -> ContentWords:
        return ContentWords.find(self.vocabulary.entries, self.device)

    def __repr__(self) -> str:
        rows, columns = self.grid
        mode = self._checkpoint.attention.mode
        return f"Captioner({self.name or self.digest!r}, attention={mode}, grid={rows}x{columns}, device={self.device})"

    def close(self) -> None:
        """End the encoder's threads; the model cannot be used afterwards."""
        self._engine.close()

    def __reduce__(self) -> tuple[Callable[..., Captioner], tuple[Checkpoint, dict[str, Any]]]:
        about = {"device": self.device, "name": self.name, "calibration": self.calibration}
        return _rebuild, (self._checkpoint, {**self._settings, **about})

    # A text is a sequence of texts too; it is one image.
    @overload
    def caption(  # type: ignore[overload-overlap]
        self, images: ImageInput, *, n_best: None = None, heads: bool = False, **settings: Unpack[CaptionSettings]
    ) -> Caption: ...

    @overload
    def caption(  # type: ignore[overload-overlap]
        self, images: ImageInput, *, n_best: int, heads: bool = False, **settings: Unpack[CaptionSettings]
    ) -> list[Caption]: ...

    @overload
    def caption(
        self,
        images: Sequence[ImageInput],
        *,
        n_best: None = None,
        heads: bool = False,
        **settings: Unpack[CaptionSettings],
    ) -> list[Caption]: ...

    @overload
    def caption(
        self, images: Sequence[ImageInput], *, n_best: int, heads: bool = False, **settings: Unpack[CaptionSettings]
    ) -> list[list[Caption]]: ...

    def caption(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        n_best: int | None = None,
        heads: bool = False,
        **settings: Unpack[CaptionSettings],
    ) -> Caption | list[Caption] | list[list[Caption]]:
        """Return the caption of an image, or the list of those of a list of images.

        An image is a path, the bytes of a file, a Pillow image, an array (height, width, 3) or a tensor
        (3, height, width), of uint8, 0..255, or floats, 0..1. The first that cannot be read raises `ImageError`.
        `n_best` gives a list of so many captions for each image, the best first, fewer where groups of beams find the
        same. The settings of the search (see `SearchConfig`) are `beam` and `groups`, or `sample=True` with
        `temperature`, `top_k`, `top_p` and `seed`. `batch_size` is how many images are encoded at a time. With
        `heads=True` a caption has the weights of every layer and head too.
        """
        options = make_options(n_best=n_best, heads=heads, **settings)
        several = isinstance(images, Sequence) and not isinstance(images, str | bytes)
        given: Sequence[ImageInput] = images if several else [images]  # type: ignore[assignment, list-item]
        items = ((to_source(image), options.image_seed(b"%d" % place)) for place, image in enumerate(given))
        found: list[list[Caption]] = []
        for source, captions in caption_items(self, items, self._prepare_picture, options):
            if isinstance(captions, ImageError):
                raise captions
            found.append([replace(caption, source=source) for caption in captions])
        if n_best is None:
            return [captions[0] for captions in found] if several else found[0][0]
        return found if several else found[0]

    def _prepare_picture(self, source: ImageSource) -> tuple[ImageSource, Prepared]:
        return source, prepare_picture(source, self.preprocessing)

    def encode(self, prepared: Sequence[Prepared]) -> Tensor:
        """Return the regions (B, L, D) of B prepared images, on the model's device."""
        return torch.from_numpy(self._engine([image.pixels for image in prepared])).to(self.device)

    def find_captions(
        self,
        regions: Tensor,
        geometries: Sequence[Geometry],
        options: CaptionOptions,
        seeds: Sequence[int],
        check: Callable[[], None] = nothing,
    ) -> list[list[Caption]]:
        """Return up to `options.n_best` captions of each of B images of regions (B, L, D), the best first.

        `geometries` are those of the prepared images, `seeds` what `CaptionOptions.image_seed` makes of them. `check`
        is called before each word, and ends the search by raising.
        """
        content = self._content if options.search.content_limit else None
        found = search(
            self.decoder, self.masked(regions, geometries), options.search, options.n_best, seeds, content, check
        )
        captions = [
            [
                make_caption(hypothesis, self.vocabulary, geometry, self.grid, self.preprocessing.filled(geometry))
                for hypothesis in hypotheses
            ]
            for hypotheses, geometry in zip(found, geometries, strict=True)
        ]
        if self.calibration is not None and options.search.method == "beam":
            captions = [_with_confidence(each, self.calibration) for each in captions]
        if not options.heads:
            return captions
        words = [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]
        looks = all_looks(self.decoder, self.masked(regions, geometries), words, self.grid)
        return [
            [with_heads(caption, heads) for caption, heads in zip(*each, strict=True)]
            for each in zip(captions, looks, strict=True)
        ]

    def masked(self, regions: Tensor, geometries: Sequence[Geometry]) -> Regions:
        """Return regions (B, L, D) with a mask of those that their images have, by where they lie on them."""
        mask = grid_mask([self.preprocessing.filled(geometry) for geometry in geometries], self.grid)
        return Regions(regions, torch.from_numpy(mask).to(self.device) if mask is not None else None)


def _with_confidence(captions: list[Caption], calibration: Calibration) -> list[Caption]:
    """Return captions of an image, the first with its confidence: nobody has measured those of the next best."""
    first, *others = captions
    confidence = calibration.confidence(first.log_prob, len(first.words))
    return [replace(first, confidence=confidence), *others]


def _rebuild(checkpoint: Checkpoint, settings: dict[str, Any]) -> Captioner:
    return Captioner(checkpoint, **settings)


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    engine: str = "auto",
    threads: int | None = None,
    progress: bool = False,
    allow_download: bool = False,
) -> Captioner:
    """Return a model ready to caption: a bundled one by name (by default the default one), or a checkpoint folder.

    The folder of a training run stands for its best checkpoint. Its calibration is taken where the folder has one. The
    rest is as for `Captioner`.
    """
    folder = find_model(model)
    checkpoint, name = load_checkpoint(folder), model_name(folder)
    calibration = find_calibration(folder, checkpoint.digest)
    return Captioner(
        checkpoint,
        device=device,
        engine=engine,
        threads=threads,
        progress=progress,
        name=name,
        allow_download=allow_download,
        calibration=calibration,
    )


def make_caption(
    hypothesis: Hypothesis,
    vocabulary: Vocabulary,
    geometry: Geometry,
    grid: tuple[int, int],
    filled: tuple[int, int] | None = None,
) -> Caption:
    """Return what a search found as a caption, for people to read.

    Its attention is over the rows and columns of the grid that the image has `filled`, by default all of them.
    """
    rows, columns = filled or grid
    words = vocabulary.words(hypothesis.ids)
    return Caption(
        join_words(words),
        tuple(words),
        hypothesis.probabilities.float().cpu().numpy().clip(0, 1),  # a logarithm's rounding may lead above 1
        hypothesis.log_prob,
        hypothesis.alpha.float().cpu().numpy().reshape(-1, *grid)[:, :rows, :columns],
        hypothesis.beta.float().cpu().numpy().clip(0, 1),
        geometry,
        points=hypothesis.points.float().cpu().numpy() if hypothesis.points is not None else None,
        extents=hypothesis.extents,
    )
