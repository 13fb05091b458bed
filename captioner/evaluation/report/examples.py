"""The part of a report that shows captions: the best, the median and the worst, with where each word looked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.evaluation.report.html import Html, quote, section, tag
from captioner.evaluation.report.inline_charts import FIGURES, jpeg
from captioner.evaluation.report.summary import main_metric
from captioner.evaluation.scoring import Evaluation
from captioner.evaluation.tables import label
from captioner.figures.drawing import save_figure
from captioner.figures.word_grid import word_grid
from captioner.images.opening import ImageError, open_image

EXAMPLES = 4  # of each group where there is one system; half as many where there are several
SYSTEMS = 3  # whose captions are shown
GROUPS = ("best", "median", "worst")
_WIDTH, _DPI = 4.6, 160  # inches and dots of a picture in the page: legible on a telephone
_PLAIN_SIDE = 480  # pixels of a picture without attention
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")


def choose_examples(scores: Sequence[float], count: int) -> dict[str, list[int]]:
    """Return the places of the best, the median and the worst scores, `count` each or a third of all if that is less.

    Each place is there at most once, and of equal scores the first comes first. The worst come first in their group.
    """
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").tolist()
    count = min(count, max(len(order) // 3, 1))
    middle = max((len(order) - count) // 2, count)
    groups = order[:count], order[middle : middle + count], order[max(middle + count, len(order) - count) :][::-1]
    return dict(zip(GROUPS, groups, strict=True))


def examples_section(evaluations: Sequence[Evaluation], folder: Path) -> Html:
    """Return the best, median and worst captions of the first systems; write their figures into the report's folder."""
    title = "Best, median and worst captions"
    if not evaluations:
        return section("examples", title, tag("p", "No system was evaluated."))
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    count = EXAMPLES if len(evaluations) == 1 else EXAMPLES // 2
    metric = label(main_metric(evaluations[0]))
    intro = (
        f"By the {metric} of each image. The first picture is the image; each of the others shows where one word "
        "looked, bright where the weight is high, with the word's probability above and the gate β as a bar below."
    )
    parts: list[Html] = [tag("p", intro)]
    for place, system in enumerate(evaluations[:SYSTEMS], start=1):
        if len(evaluations) > 1:
            parts.append(tag("h3", tag("bdi", system.name)))
        stem = "" if place == 1 else f"system-{place}-"
        parts += _groups(system, count, folder / FIGURES, stem, "h4" if len(evaluations) > 1 else "h3")
    if len(evaluations) > SYSTEMS:
        parts.append(tag("p", f"The captions of the other {len(evaluations) - SYSTEMS} systems are not shown."))
    return section("examples", title, *parts)


def _groups(evaluation: Evaluation, count: int, figures: Path, stem: str, heading: str) -> list[Html]:
    metric = main_metric(evaluation)
    parts = []
    for group, places in choose_examples(evaluation.image_scores[metric].tolist(), count).items():
        cards = [
            _card(evaluation, place, figures / f"{stem}{group}-{number}.png")
            for number, place in enumerate(places, start=1)
        ]
        if cards:
            parts += [tag(heading, group.capitalize()), *cards]
    return parts


def _card(evaluation: Evaluation, place: int, path: Path) -> Html:
    image, text = evaluation.images[place], evaluation.texts[place]
    shown = [name for name in evaluation.image_scores if name in (main_metric(evaluation), "bleu4", "meteor")]
    scores = [tag("li", f"{label(name)} ", tag("b", f"{evaluation.image_scores[name][place]:.0f}")) for name in shown]
    references = [tag("li", quote(reference)) for reference in image.captions]
    return tag(
        "article",
        _picture(evaluation, place, path),
        tag(
            "div",
            tag("p", quote(text), class_="said"),
            tag("ul", *scores, class_="chips", aria_label="Scores of this image"),
            tag("ul", *references, class_="references", aria_label="References"),
            tag("p", tag("bdi", image.file_name), class_="muted file"),
        ),
        class_="example",
    )


def _picture(evaluation: Evaluation, place: int, path: Path) -> Html:
    """Return the image under the words' attention, plain where it is not known, or why it cannot be shown."""
    image, caption = evaluation.images[place], evaluation.captions[place] if evaluation.captions else None
    try:
        pixels = open_image(image.path)
        if caption is not None and caption.words:
            save_figure(word_grid(pixels, caption), path)
            return tag(
                "img", src=jpeg(word_grid(pixels, caption, width=_WIDTH, dpi=_DPI).image()), alt=_describe(caption)
            )
        pixels.thumbnail((_PLAIN_SIDE, _PLAIN_SIDE), Image.Resampling.LANCZOS)
        return tag("img", src=jpeg(pixels), alt="The image, without attention", class_="plain")
    except ValueError as error:  # of an image that cannot be opened, or has another size by now
        reason = error.reason if isinstance(error, ImageError) else error
        return tag("p", f"{image.file_name} cannot be shown: {reason}", class_="problem")


def _describe(caption: Caption) -> str:
    """Return what an overlay shows: each word, its probability and where its strongest region lies."""
    rows, columns = caption.attention.shape[1:]
    told = []
    for word, probability, weights in zip(caption.words, caption.probabilities, caption.attention, strict=True):
        row, column = np.unravel_index(int(weights.argmax()), weights.shape)
        across = columns - 1 - int(column) if caption.geometry.flipped else int(column)
        where = f"{_ROWS[3 * int(row) // rows]} {_COLUMNS[3 * across // columns]}"
        told.append(f"{word} ({probability:.2f}) {where}")
    return f"Where each word looked most, with its probability: {', '.join(told)}."
