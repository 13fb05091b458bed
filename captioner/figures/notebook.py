"""A caption in a notebook: the image, its words, and under the mouse where the model looked for a word.

One piece of HTML and CSS that asks nothing of any network and runs no script. A mask is a small picture of its own over
the image, dark where the word did not look; the browser smooths it.
"""

from __future__ import annotations

import base64
import html
import io

import numpy as np
from PIL import Image

from captioner.captioning.caption import Caption
from captioner.figures.masks import Raster, visible_mask

SHOWN, STORED = 360, 480  # pixels of the image's longer side: on the page, and in the HTML
_MASK = 48  # pixels of a mask's longer side
_VEIL, _PALE = 0.8, 0.7  # how opaque the darkest veil is, and the white over what the network did not see
_QUALITY = 80
_STYLE = """
.captioner-caption{position:relative;margin-bottom:12px;font:16px/1.9 system-ui,sans-serif}
.captioner-caption>img{display:block;border-radius:4px}
.captioner-caption p{margin:6px 0 0}
.captioner-caption .note{opacity:.7;font-size:13px}
.captioner-word{padding:2px 1px;border-radius:3px;cursor:default;background-repeat:no-repeat;
background-position:0 100%;background-image:linear-gradient(#d9863a,#d9863a)}
.captioner-word:hover,.captioner-word:focus{outline:1px solid #d9863a}
.captioner-word img{position:absolute;left:0;top:0;border-radius:4px;opacity:0;pointer-events:none}
.captioner-word:hover img,.captioner-word:focus img{opacity:1}
"""


def caption_html(caption: Caption) -> str:
    """Return a caption as HTML for a notebook; an image that cannot be opened is grey, with the reason below it.

    The line under a word is as long as the word is probable.
    """
    geometry = caption.geometry
    scale = SHOWN / max(geometry.width, geometry.height)
    width, height = max(1, round(geometry.width * scale)), max(1, round(geometry.height * scale))
    size = f'width="{width}" height="{height}" style="width:{width}px;height:{height}px;max-width:none;margin:0"'
    image, problem = _open(caption, (width, height))
    words = " ".join(
        f'<span class="captioner-word" tabindex="0" title="probability {probability:.2f}, gate β {beta:.2f}" '
        f'style="background-size:{100 * probability:.0f}% 2px">{html.escape(word)}'
        f'<img {size} alt="" src="{_data(_mask(caption, index), "PNG")}"></span>'
        for index, (word, probability, beta) in enumerate(
            zip(caption.words, caption.probabilities.tolist(), caption.beta.tolist(), strict=True)
        )
    )
    note = f'<p class="note">{html.escape(problem)}</p>' if problem else ""
    return (
        f'<div class="captioner-caption"><style>{_STYLE}</style>'
        f'<img {size} alt="{html.escape(caption.text)}" src="{_data(image, "JPEG")}">'
        f'<p dir="auto">{words or "(no words)"}</p>{note}</div>'
    )


def _open(caption: Caption, size: tuple[int, int]) -> tuple[Image.Image, str | None]:
    """Return the image, or a grey one of `size` and why."""
    try:
        image = caption.open_source()
        if image.size != (caption.geometry.width, caption.geometry.height):
            raise ValueError(f"the image has changed: it has {image.width} x {image.height} pixels")
    except ValueError as error:
        return Image.new("RGB", size, (128, 128, 128)), str(error)
    image.thumbnail((STORED, STORED), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return image, None


def _mask(caption: Caption, word: int) -> Image.Image:
    """Return the veil over the image for one word: black where it did not look, white where the network did not."""
    geometry, weights = caption.geometry, caption.attention[word]  # (rows, columns)
    scale = _MASK / max(geometry.width, geometry.height)
    size = max(1, round(geometry.width * scale)), max(1, round(geometry.height * scale))
    mask = visible_mask(Raster(geometry, weights.shape, size).spread(weights), weights.size)  # (height, width)
    unseen = np.isnan(mask)
    level = np.where(unseen, 0, mask)
    opacity = np.where(unseen, _PALE, _VEIL * (1 - level * np.sqrt(level)))  # as `figures.masks.blend` dims
    veil = np.stack([np.where(unseen, 255, 0), (opacity * 255).round()], axis=-1)  # (height, width, 2)
    return Image.fromarray(veil.astype(np.uint8), "LA")


def _data(image: Image.Image, format: str) -> str:
    """Return an image as an address that holds it."""
    buffer = io.BytesIO()
    image.save(buffer, format, quality=_QUALITY, optimize=True)
    return f"data:image/{format.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
