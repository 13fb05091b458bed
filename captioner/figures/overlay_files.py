"""The files that `captioner overlay` writes: a folder for each kind of figure, and in it a tree of the images' names.

grid/photos/dog.jpg.png          the image once for each word
words/photos/dog.jpg.words/      one picture per word, 000-a.png, 001-dog.png, ...
matrix/, samples/, heads/, ...   further figures
animation/photos/dog.jpg.gif     word by word
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from captioner.captioning.caption import Caption, Result
from captioner.captioning.output.tables import make_parent, tree_path
from captioner.figures.alignment import alignment_matrix
from captioner.figures.animation import WIDTH as ANIMATION_WIDTH
from captioner.figures.animation import save_animation
from captioner.figures.attention_samples import samples_figure
from captioner.figures.drawing import save_figure
from captioner.figures.heads import heads_figure
from captioner.figures.masks import STYLES
from captioner.figures.panels import check_page
from captioner.figures.word_grid import comparison, word_grid
from captioner.figures.word_images import save_word_images
from captioner.files import concerns_all_files, one_line, system_reason
from captioner.images.opening import ImageError, open_image
from captioner.threads import available_cores, map_ahead

KINDS = ("grid", "words", "matrix", "animation", "samples", "heads", "compare")
FIGURES, ANIMATIONS = ("png", "pdf", "svg"), ("gif", "webp")
WIDTH, DPI = 7.0, 200
_OF_ANIMATIONS, _OF_WORDS = "animation", "words"


@dataclass(frozen=True)
class OverlayOptions:
    """Which figures are drawn of each caption, and how.

    `formats` are at most one of FIGURES and one of ANIMATIONS. `width` is in inches, None the usual one: 7, or for
    animations 400 pixels. `samples` and `seed` are those of hard attention; `names` are those of the models that are
    compared. The one kind that is drawn may go into a `folder` of another name.
    """

    kinds: tuple[str, ...] = ("grid",)
    style: str = "mask"
    formats: tuple[str, ...] = ()
    width: float | None = None
    dpi: int | None = None
    samples: int = 3
    seed: int = 0
    names: tuple[str, ...] = ()
    folder: str | None = None

    def __post_init__(self) -> None:
        for name, values, choices in (("kind", self.kinds, KINDS), ("style", (self.style,), STYLES)):
            if unknown := next((value for value in values if value not in choices), None):
                raise ValueError(f"{name} is {unknown!r}; choose from {', '.join(choices)}")
        known = (*FIGURES, *ANIMATIONS)
        if unknown := next((value for value in self.formats if value not in known), None):
            raise ValueError(f"format is {unknown!r}; choose from {', '.join(known)}")
        for formats in (FIGURES, ANIMATIONS):
            if len(given := [format for format in self.formats if format in formats]) > 1:
                raise ValueError(f"format is {','.join(given)}; choose one of {', '.join(formats)}")
        if self.folder is not None and len(self.kinds) != 1:
            raise ValueError(f"folder is {self.folder!r}; it holds one kind of figure, not {len(self.kinds)}")
        if "compare" in self.kinds and len(self.names) != 2:
            raise ValueError(f"compare needs two models, not {len(self.names)}")
        check_page(WIDTH if self.width is None else self.width, DPI if self.dpi is None else self.dpi)
        self._check_use()

    def _check_use(self) -> None:
        """Raise ValueError for a format that nothing would be written in."""
        used = {self.suffix(kind)[1:] for kind in self.kinds if kind != _OF_WORDS} | {"png"}
        if idle := next((format for format in self.formats if format not in used), None):
            wanted = "animation" if idle in ANIMATIONS else "grid, matrix, samples, heads or compare"
            raise ValueError(f"format {idle} is of kind {wanted}, not {', '.join(self.kinds)}")

    def suffix(self, kind: str) -> str:
        """Return the suffix of a kind's files, or of its folders where it has several files an image."""
        if kind == _OF_WORDS:
            return ".words"
        choices = ANIMATIONS if kind == _OF_ANIMATIONS else FIGURES
        return f".{next((format for format in self.formats if format in choices), choices[0])}"

    @property
    def animation_width(self) -> int | None:
        """Pixels across an animation, None for the usual number."""
        if self.width is None and self.dpi is None:
            return None
        return round((self.width or 4.0) * (self.dpi or 100))


def draw_overlays(results: Iterable[Result], out: Path, options: OverlayOptions) -> Iterator[Result]:
    """Draw images with their captions into `out`, in threads; yield what came of each, in order.

    Nothing is drawn of a result that has failed already; one that cannot be drawn has failed as well.
    """

    def draw(result: Result) -> Result:
        if result.error is not None:
            return result
        try:
            write_overlays(out, result.name, open_image(result.source.open()), result.captions, options)
        except ImageError as error:
            return Result.failed(result.source, error.reason)
        except OSError as error:
            if concerns_all_files(error):
                raise
            return Result.failed(result.source, f"its figure cannot be written: {system_reason(error)}")
        except Exception as error:  # of an image that was replaced meanwhile, or a symlink in the way
            return Result.failed(result.source, one_line(error))
        return result

    cores = available_cores()
    return map_ahead(draw, results, workers=cores, ahead=2 * cores, name="draw")


def overlay_path(out: Path, name: str, kind: str, options: OverlayOptions) -> Path:
    """Return where the figure of a kind is written for an image; no two images share a file, whatever their `name`."""
    return out / (options.folder or kind) / tree_path(name, options.suffix(kind))


def write_overlays(
    out: Path, name: str, image: Image.Image, captions: Sequence[Caption], options: OverlayOptions
) -> list[Path]:
    """Draw an upright image with the captions of one or two models into `out`; return what was written.

    The first caption is drawn, or compared with the second.
    """
    written: list[Path] = []
    for kind in options.kinds:
        path = overlay_path(out, name, kind, options)
        make_parent(out, path)
        if path.is_symlink():
            raise ValueError(f"its {kind} is a symlink in {path.parent}; nothing is written through it")
        written += _write(kind, path, image, captions, options)
    return written


def _write(
    kind: str, path: Path, image: Image.Image, captions: Sequence[Caption], options: OverlayOptions
) -> list[Path]:
    caption, style = captions[0], options.style
    width = WIDTH if options.width is None else options.width
    dpi = DPI if options.dpi is None else options.dpi
    if kind == "words":
        return save_word_images(image, caption, path, style=style)
    if kind == "animation":
        save_animation(image, caption, path, style=style, width=options.animation_width or ANIMATION_WIDTH)
        return [path]
    if kind == "grid":
        sheet = word_grid(image, caption, style=style, width=width, dpi=dpi)
    elif kind == "matrix":
        sheet = alignment_matrix(caption, width=width, dpi=dpi)
    elif kind == "samples":
        drawn = {"samples": options.samples, "seed": options.seed}
        sheet = samples_figure(image, caption, **drawn, style=style, width=width, dpi=dpi)
    elif kind == "heads":
        sheet = heads_figure(image, caption, style=style, width=width, dpi=dpi)
    else:
        pair, names = (captions[0], captions[1]), (options.names[0], options.names[1])
        sheet = comparison(image, pair, names, style=style, width=width, dpi=dpi)
    save_figure(sheet, path)
    return [path]
