"""Where a model looks when it is made to say a given text: teacher forcing on one image after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from captioner.captioning.all_looks import all_looks, with_heads
from captioner.captioning.caption import Caption, Result
from captioner.captioning.captioner import Captioner
from captioner.datasets.vocabulary import Vocabulary, join_words, tokenize
from captioner.images.geometry import Geometry
from captioner.images.opening import ImageError
from captioner.images.sources import Source
from captioner.model.decoder import Decoder
from captioner.model.regions import Regions
from captioner.threads import map_ahead


def unknown_words(vocabulary: Vocabulary, text: str) -> list[str]:
    """Return the words of a text that a model cannot say, each once, in their order."""
    return [word for word in dict.fromkeys(tokenize(text)) if word not in vocabulary]


@torch.no_grad()
def force_caption(
    decoder: Decoder,
    vocabulary: Vocabulary,
    regions: Tensor | Regions,
    geometry: Geometry,
    grid: tuple[int, int],
    text: str,
    filled: tuple[int, int] | None = None,
    *,
    heads: bool = False,
) -> Caption:
    """Return a text as the caption of one image of regions (1, L, D), with the looks it would have been said with.

    With `heads` these are the looks of every layer and head too.
    Probabilities are those of the words after each other. A word that the model does not know has the probability 0,
    and is read as the marker of unknown words, whose probability counts in `log_prob`.
    """
    rows, columns = filled or grid
    words = tokenize(text)
    if not words:
        raise ValueError(f"the caption {text!r} has no words")
    ids = torch.tensor([[vocabulary.encode(words)]], device=regions.device)  # (1, 1, T + 2)
    outputs = decoder(regions, ids)
    log_probs = outputs.logits[0, 0].float().log_softmax(dim=-1)  # (T + 1, V)
    taken = log_probs.gather(1, ids[0, 0, 1:].unsqueeze(1)).squeeze(1)  # (T + 1,), of each word and the end
    known = torch.tensor([word in vocabulary for word in words], device=regions.device)  # (T,)
    fixations = outputs.fixations
    caption = Caption(
        join_words(words),
        tuple(words),
        (taken[:-1].exp() * known).cpu().numpy().clip(0, 1),
        float(taken.sum()),
        outputs.alpha[0, 0, :-1].float().cpu().numpy().reshape(-1, *grid)[:, :rows, :columns],
        outputs.beta[0, 0, :-1].float().mean(dim=-1).cpu().numpy().clip(0, 1).astype(np.float32),
        geometry,
        points=fixations.points[0, 0, :-1].float().cpu().numpy() if fixations is not None else None,
        extents=fixations.extents if fixations is not None else (),
    )
    if not heads:
        return caption
    ((looks,),) = all_looks(decoder, regions, [[ids[0, 0, 1:-1].tolist()]], grid)
    return with_heads(caption, looks)


def force_images(
    model: Captioner, sources: Iterable[Source], text: str, *, workers: int = 1, heads: bool = False
) -> Iterator[Result]:
    """Yield a text as the caption of each image, in order, or why the image was refused."""

    def force(source: Source) -> Result:
        try:
            prepared = model.preprocessing.read(source.open())
        except ImageError as error:
            return Result.failed(source, error.reason)
        geometry = prepared.geometry
        regions = model.masked(model.encode([prepared]), [geometry])  # (1, L, D)
        filled = model.preprocessing.filled(geometry)
        caption = force_caption(
            model.decoder, model.vocabulary, regions, geometry, model.grid, text, filled, heads=heads
        )
        return Result(source, (caption,))

    return map_ahead(force, sources, workers=workers, ahead=2 * workers, name="force")
