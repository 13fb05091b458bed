"""Captions of a split scored against its references: scores, how sure they are, diversity, and the protocol of it all.

Whoever made the captions, a model, somebody else or people, they are scored by the same judge on the same images.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from captioner import __version__
from captioner.captioning.caption import Caption
from captioner.datasets.dataset import CaptionDataset, CaptionedImage
from captioner.evaluation.analysis.diversity import Diversity, measure_diversity
from captioner.evaluation.metrics.bootstrap import (
    LEVEL,
    RESAMPLES,
    Difference,
    Interval,
    Resampled,
    bootstrap,
    find_difference,
    find_interval,
)

if TYPE_CHECKING:
    from captioner.evaluation.metrics.judge import Judge

Values = NDArray[np.float64]
GIT_SECONDS = 10.0  # longest wait for git's answer


@dataclass(frozen=True, eq=False)
class EvaluationSplit:
    """The images that captions are scored on, out of the `whole` split, and the training captions beside them.

    `digest` is a hash of the names and references of the whole split. `left_out` are the file names of images that
    could not be read.
    """

    data: str
    format: str
    root: Path
    split: str
    images: tuple[CaptionedImage, ...]
    whole: tuple[CaptionedImage, ...] = field(repr=False)
    training: tuple[str, ...] = field(repr=False)
    digest: str
    left_out: tuple[str, ...] = ()

    def identity(self) -> dict[str, str]:
        """Return what tells the split's images from others, in plain values for JSON."""
        return {"data": self.data, "split": self.split, "digest": self.digest}

    def leave_out(self, file_names: Sequence[str]) -> EvaluationSplit:
        """Return the split without some images."""
        kept = tuple(image for image in self.images if image.file_name not in set(file_names))
        if not kept:
            raise ValueError(f"none of the {len(self.images):,} images of {self.split} could be captioned")
        return replace(self, images=kept, left_out=(*self.left_out, *file_names))


def take_split(dataset: CaptionDataset, split: str, limit: int | None = None) -> EvaluationSplit:
    """Return a split of a data set to evaluate on, or `limit` of its images, spread over it."""
    whole = images = dataset.split(split)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1")
    if limit is not None and limit < len(whole):
        images = tuple(whole[index * len(whole) // limit] for index in range(limit))
    contents = hashlib.blake2b(digest_size=8)
    for image in whole:
        contents.update(json.dumps([image.file_name, image.captions]).encode())
    training = tuple(caption for image in dataset.images if image.split == "train" for caption in image.captions)
    return EvaluationSplit(
        dataset.name, dataset.format, dataset.root, split, images, whole, training, digest=contents.hexdigest()
    )


@dataclass(frozen=True)
class Protocol:
    """All that one has to know to get the same numbers again.

    `references` are the fewest and the most that an image has; `search` is how the models' captions were searched for,
    None where no model was asked.
    """

    data: str
    format: str
    split: str
    digest: str
    images: int
    split_images: int
    left_out: tuple[str, ...]
    references: tuple[int, int]
    training_captions: int
    tokenizer: str
    search: dict[str, Any] | None
    seed: int
    resamples: int
    level: float
    code: str


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came of scoring one caption for each of I images.

    `kind` is "model", "results" (somebody else's captions) or "humans". `texts` are the captions as they were given;
    `candidates` and `references` are cut into words as the judge does. `scores` are in per cent, `image_scores` (I,)
    those of each image, `resampled` (R,) those of the resamples of images. `captions` are there for models, with their
    attention. `about` tells where the captions are from, in plain values for JSON.
    """

    name: str
    kind: str
    images: tuple[CaptionedImage, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    references: tuple[tuple[str, ...], ...] = field(repr=False)
    scores: dict[str, float]
    image_scores: dict[str, Values] = field(repr=False)
    resampled: dict[str, Values] = field(repr=False)
    diversity: Diversity
    captions: tuple[Caption, ...] | None = field(default=None, repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)

    def intervals(self) -> dict[str, Interval]:
        """Return the interval of each score."""
        return {name: find_interval(values) for name, values in self.resampled.items()}

    def against(self, first: Evaluation) -> dict[str, Difference]:
        """Return how each score differs from another evaluation's on the same images."""
        return {
            name: find_difference(first.scores[name], self.scores[name], first.resampled[name], values)
            for name, values in self.resampled.items()
            if name in first.resampled
        }

    def to_dict(self) -> dict[str, Any]:
        """Return scores, intervals and diversity in plain values for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            **self.about,
            "scores": self.scores,
            "intervals": {name: [interval.low, interval.high] for name, interval in self.intervals().items()},
            "diversity": asdict(self.diversity),
        }


class Evaluator:
    """Scores captions of one split with one judge, one system after the other."""

    def __init__(self, judge: Judge, split: EvaluationSplit, *, resamples: int = RESAMPLES, seed: int = 0) -> None:
        """Cut the training captions into words; `seed` is that of the `resamples` of images."""
        self.judge, self.split, self.resamples, self.seed = judge, split, resamples, seed
        self.training = frozenset(judge.tokenize(split.training)) if split.training else None

    def evaluate(
        self,
        name: str,
        texts: Sequence[str],
        *,
        kind: str = "model",
        captions: Sequence[Caption] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Evaluation:
        """Score one caption for each image of the split."""
        scores = self.judge.score(texts, [image.captions for image in self.split.images])
        return Evaluation(
            name,
            kind,
            self.split.images,
            tuple(texts),
            scores.candidates,
            scores.references,
            dict(scores.corpus),
            dict(scores.images),
            self._resample(scores),
            measure_diversity(scores.candidates, self.training),
            None if captions is None else tuple(captions),
            about or {},
        )

    def evaluate_humans(self, name: str = "humans, one left out") -> Evaluation:
        """Score people by each other: references take turns as the caption that is scored against the others.

        There are as many turns as every image has references, and scores are means over them. With one reference fewer
        to meet, they are lower than a model's captions of the same quality would get. Captions and diversity are those
        of the first turn.
        """
        images = self.split.images
        turns = min(len(image.captions) for image in images)
        if turns < 2:
            few = sum(len(image.captions) < 2 for image in images)
            raise ValueError(f"{few:,} of {len(images):,} images have one reference; people need two to be scored")
        scored = []
        for turn in range(turns):
            others = [[*image.captions[:turn], *image.captions[turn + 1 :]] for image in images]
            scored.append(self.judge.score([image.captions[turn] for image in images], others))
        first = scored[0]
        return Evaluation(
            name,
            "humans",
            images,
            tuple(image.captions[0] for image in images),
            first.candidates,
            first.references,
            {metric: float(np.mean([turn.corpus[metric] for turn in scored])) for metric in first.corpus},
            _mean([turn.images for turn in scored]),
            _mean([self._resample(turn) for turn in scored]),
            measure_diversity(first.candidates, self.training),
            about={"turns": turns, "references": "each but the one that takes its turn as the caption"},
        )

    def protocol(self, search: dict[str, Any] | None = None) -> Protocol:
        """Return the protocol of what was evaluated; `search` is that of the models' captions."""
        split = self.split
        counts = [len(image.captions) for image in split.images]
        return Protocol(
            split.data,
            split.format,
            split.split,
            split.digest,
            len(split.images),
            len(split.whole),
            split.left_out,
            (min(counts), max(counts)),
            len(split.training),
            self.judge.tokenizer,
            search,
            self.seed,
            self.resamples,
            LEVEL,
            code_version(),
        )

    def _resample(self, scores: Resampled) -> dict[str, Values]:
        return bootstrap(scores, len(self.split.images), resamples=self.resamples, seed=self.seed)


def _mean(turns: Sequence[Mapping[str, Values]]) -> dict[str, Values]:
    return {name: np.mean([turn[name] for turn in turns], axis=0) for name in turns[0]}


def code_version() -> str:
    """Return the version of this program, with the commit where it runs from a checkout of its repository."""
    version = f"captioner {__version__}"
    root = Path(__file__).resolve().parents[2]
    # The package may lie inside somebody else's repository, whose commits say nothing about it.
    if (top := _git(root, "rev-parse", "--show-toplevel")) is None or Path(top).resolve() != root:
        return version
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", "captioner")
    return version if commit is None else f"{version}, commit {commit}{' with changes' if changes else ''}"


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
