"""The scores of Show, Attend and Tell (Xu et al., 2015, table 1), to stand beside ours."""

from __future__ import annotations

from dataclasses import dataclass

METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor")
PAPER = {
    "Flickr8k": {"soft": (67.0, 44.8, 29.9, 19.5, 18.93), "hard": (67.0, 45.7, 31.4, 21.3, 20.30)},
    "Flickr30k": {"soft": (66.7, 43.4, 28.8, 19.1, 18.49), "hard": (66.9, 43.9, 29.6, 19.9, 18.46)},
    "COCO": {"soft": (70.7, 49.2, 34.4, 24.3, 23.90), "hard": (71.8, 50.4, 35.7, 25.0, 23.04)},
}
TEST_IMAGES = {"Flickr8k": 1000, "Flickr30k": 1000, "COCO": 5000}


@dataclass(frozen=True)
class PaperRows:
    """What the paper reports on a data set: scores in per cent by row, and how its images differ from ours."""

    rows: dict[str, dict[str, float]]
    note: str | None


def find_paper_rows(data: str, format: str, split: str, images: int) -> PaperRows | None:
    """Return the paper's rows for a data set by its name and format; None where the paper has none.

    The note tells where our `split` of so many `images` is not the test set that the paper's scores are of.
    """
    known = _known_name(data, format)
    if known is None:
        return None
    rows = {
        f"Xu et al. (2015), {mode}": dict(zip(METRICS, scores, strict=True)) for mode, scores in PAPER[known].items()
    }
    # The official lists of Flickr8k have Karpathy's test images; the other two have no test captions of their own.
    theirs = "the official" if known == "Flickr8k" else "Karpathy's"
    is_theirs = format == "karpathy" or (known == "Flickr8k" and format == "flickr8k")
    if is_theirs and split == "test" and images == TEST_IMAGES[known]:
        return PaperRows(rows, None)
    ours = f"{images:,} images of {split}" + ("" if is_theirs else f" as {format} has it")
    note = f"the paper's rows are of {theirs} test split of {known} ({TEST_IMAGES[known]:,} images), the others of "
    return PaperRows(rows, note + ours)


def _known_name(data: str, format: str) -> str | None:
    # "COCO 2017", "flickr8k (Karpathy)"; the name of a folder of one's own, in the other formats, proves little.
    if format == "captions-txt":
        return next((known for known in PAPER if data.lower() == known.lower()), None)
    names = PAPER if format != "metadata" else ()
    return next((known for known in names if data.lower().split()[0] == known.lower()), None)
