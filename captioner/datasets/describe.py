"""What a data set holds: counts, caption lengths, vocabulary, problems, duplicates and overlap between splits."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from captioner.datasets.dataset import CaptionDataset, CaptionedImage, Problems
from captioner.datasets.vocabulary import SPECIALS, Vocabulary
from captioner.files import digest, open_regular, printable_line, replacing
from captioner.images.opening import MAX_BYTES

SHOWN = 5
SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, mean, median, 95th percentile (nearest rank) and largest of some whole numbers."""

    minimum: int
    mean: float
    median: float
    percentile_95: int
    maximum: int

    @classmethod
    def of(cls, values: Iterable[int]) -> Spread:
        """Summarise one or more whole numbers."""
        ordered = sorted(values)
        rank = math.ceil(0.95 * len(ordered))
        mean, median = statistics.fmean(ordered), float(statistics.median(ordered))
        return cls(ordered[0], mean, median, ordered[rank - 1], ordered[-1])


@dataclass(frozen=True, slots=True)
class SplitDescription:
    """One split: images, captions, running words, and the share (0..1) of these that the vocabulary lacks."""

    images: int
    captions: int
    words: int
    out_of_vocabulary: float


@dataclass(frozen=True, slots=True)
class ProblemDescription:
    """How many problems there were of one kind, and the first few as "where: detail"."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """The facts of a data set, where an image that is in two splits counts in both.

    `vocabulary_size` counts the words seen at least `minimum_count` times in `vocabulary_source`, without the specials.
    `duplicate_images` are groups of file names with identical bytes, `shared_by_content` those that span two splits.
    `duplicate_captions` are (file name, caption) pairs whose words repeat an earlier caption of the same image.
    """

    name: str
    format: str
    root: str
    images: int
    captions: int
    captions_per_image: Spread
    caption_length: Spread
    splits: dict[str, SplitDescription]
    minimum_count: int
    vocabulary_size: int
    vocabulary_source: str
    distinct_words: int
    problems: dict[str, ProblemDescription]
    duplicate_images: tuple[tuple[str, ...], ...]
    duplicate_captions: tuple[tuple[str, str], ...]
    shared_by_name: tuple[str, ...]
    shared_by_content: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in types that JSON knows."""
        return asdict(self)

    def to_text(self) -> str:
        """Return an aligned report in plain text, at most five examples of each finding, no final line break."""
        per_image, length = self.captions_per_image, self.caption_length
        facts = [
            ("data set", f"{self.name} ({self.format}) in {self.root}"),
            ("images", f"{self.images:,}"),
            ("captions", f"{self.captions:,}"),
            ("captions per image", f"min {per_image.minimum}, mean {per_image.mean:.2f}, max {per_image.maximum}"),
            (
                "caption length",
                f"min {length.minimum}, mean {length.mean:.2f}, median {length.median:g}, "
                f"95 % {length.percentile_95}, max {length.maximum} words",
            ),
            ("distinct words", f"{self.distinct_words:,}"),
            (
                "vocabulary",
                f"{self.vocabulary_size:,} words seen {self.minimum_count} times or more in {self.vocabulary_source}, "
                f"and {len(SPECIALS)} specials",
            ),
        ]
        lines = [f"{label:<20}{value}" for label, value in facts]
        lines += ["", f"{'split':<12}{'images':>10}{'captions':>12}{'words':>12}{'not in vocabulary':>20}"]
        lines += [
            f"{name:<12}{split.images:>10,}{split.captions:>12,}{split.words:>12,}{split.out_of_vocabulary:>20.2%}"
            for name, split in self.splits.items()
        ]
        lines.append("")
        for kind, problem in self.problems.items():
            lines += _finding(kind, problem.count, problem.first)
        if not self.problems:
            lines.append("problems: none")
        groups = [" = ".join(group) for group in self.duplicate_images]
        lines += _finding("groups of identical images", len(groups), groups)
        repeats = [f"{file_name}: {caption}" for file_name, caption in self.duplicate_captions]
        lines += _finding("captions repeated for the same image", len(repeats), repeats)
        lines += _finding("images named in two splits", len(self.shared_by_name), self.shared_by_name)
        groups = [" = ".join(group) for group in self.shared_by_content]
        lines += _finding("groups of identical images across splits", len(groups), groups)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(map(printable_line, lines))


def _finding(title: str, count: int, examples: Sequence[str]) -> list[str]:
    lines = [f"{title}: {count:,}" if count else f"{title}: none"]
    lines += [f"    {example}" for example in examples[:SHOWN]]
    if count > len(examples[:SHOWN]):
        lines.append(f"    and {count - len(examples[:SHOWN]):,} more")
    return lines


def describe(dataset: CaptionDataset, minimum_count: int = 5) -> Description:
    """Measure a data set, with a vocabulary of words seen `minimum_count` (1 or more) times in its train split."""
    tokenized = [(image, image.tokenized()) for image in dataset.images]
    has_train = "train" in dataset.splits()
    training = (tokens for image, tokens in tokenized if image.split == "train" or not has_train)
    vocabulary = Vocabulary.build((words for tokens in training for words in tokens), minimum_count)
    word_counts = {
        split: Counter(
            word for image, tokens in tokenized if image.split == split for words in tokens for word in words
        )
        for split in dataset.splits()
    }
    memberships: dict[str, set[str]] = {}
    for image in dataset.images:
        memberships.setdefault(image.file_name, set()).add(image.split)
    identical, unreadable = _identical_files({image.file_name: image.path for image in dataset.images})
    notes = list(dataset.notes)
    if unreadable:
        notes.append(f"not compared with the others: {len(unreadable)} unreadable images, first {unreadable[0]}")
    return Description(
        name=dataset.name,
        format=dataset.format,
        root=str(dataset.root),
        images=len(dataset.images),
        captions=sum(len(image.captions) for image in dataset.images),
        captions_per_image=Spread.of(len(image.captions) for image in dataset.images),
        caption_length=Spread.of(len(words) for _, tokens in tokenized for words in tokens),
        splits={split: _describe_split(dataset.split(split), word_counts[split], vocabulary) for split in word_counts},
        minimum_count=minimum_count,
        vocabulary_size=len(vocabulary) - len(SPECIALS),
        vocabulary_source="train" if has_train else "all images",
        distinct_words=len(set().union(*word_counts.values())),
        problems=_describe_problems(dataset.problems),
        duplicate_images=identical,
        duplicate_captions=_repeated_captions(tokenized),
        shared_by_name=tuple(name for name, splits in memberships.items() if len(splits) > 1),
        shared_by_content=tuple(
            group for group in identical if len(set().union(*(memberships[name] for name in group))) > 1
        ),
        notes=tuple(notes),
    )


def _describe_split(images: Sequence[CaptionedImage], counts: Counter[str], vocabulary: Vocabulary) -> SplitDescription:
    running = counts.total()
    unknown = sum(count for word, count in counts.items() if word not in vocabulary)
    captions = sum(len(image.captions) for image in images)
    return SplitDescription(len(images), captions, running, unknown / running if running else 0.0)


def _describe_problems(problems: Problems) -> dict[str, ProblemDescription]:
    return {
        kind: ProblemDescription(count, tuple(f"{problem.where}: {problem.detail}" for problem in problems.first(kind)))
        for kind, count in problems.counts().items()
    }


def _repeated_captions(
    tokenized: Iterable[tuple[CaptionedImage, tuple[tuple[str, ...], ...]]],
) -> tuple[tuple[str, str], ...]:
    """Return the captions whose words an earlier caption of the same image in the same split already has."""
    repeated = []
    for image, tokens in tokenized:
        seen: set[tuple[str, ...]] = set()
        for caption, words in zip(image.captions, tokens, strict=True):
            if words in seen:
                repeated.append((image.file_name, caption))
            seen.add(words)
    return tuple(repeated)


def _identical_files(paths: dict[str, Path]) -> tuple[tuple[tuple[str, ...], ...], list[str]]:
    """Return groups of names whose files have the same bytes, and the names of unreadable files."""
    # Most sizes in a large collection occur twice by chance, so that a sample is compared before whole files are read.
    groups: list[tuple[str, ...]] = [tuple(paths)]
    unreadable: list[str] = []
    measures: tuple[Callable[[Path], int | bytes | str], ...] = (_size, _sample, digest)
    for measure in measures:
        finer: list[tuple[str, ...]] = []
        for group in groups:
            alike: dict[int | bytes | str, list[str]] = {}
            for name in group:
                try:
                    alike.setdefault(measure(paths[name]), []).append(name)
                except (OSError, ValueError):  # also of pipes, and of files that no image needs
                    unreadable.append(name)
            finer += [tuple(names) for names in alike.values() if len(names) > 1]
        groups = finer
    return tuple(groups), unreadable


def _size(path: Path) -> int:
    return path.stat().st_size


def _sample(path: Path) -> bytes:
    # From the middle: the first bytes of two JPEG files are often the same header.
    with open_regular(path, most=MAX_BYTES) as file:
        file.seek(max(0, _size(path) - SAMPLE_BYTES) // 2)
        return file.read(SAMPLE_BYTES)


def length_histogram(dataset: CaptionDataset, path: str | os.PathLike[str]) -> None:
    """Draw how long the captions of each split are, in words, as shares of the split's captions, into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    lengths = {
        split: [len(words) for image in dataset.split(split) for words in image.tokenized()]
        for split in dataset.splits()
    }
    everything = sorted(length for values in lengths.values() for length in values)
    # A few rambling captions would squeeze the rest into a corner, so the longest 0.2 % share the last bar.
    last = everything[math.ceil(0.998 * len(everything)) - 1]
    figure = Figure(figsize=(7.0, 1.1 + 1.5 * len(lengths)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(lengths), sharex=True, sharey=True, squeeze=False)[:, 0]
    for panel, (split, values) in zip(panels, lengths.items(), strict=True):
        counts = Counter(min(value, last) for value in values)
        bars = range(everything[0], last + 1)
        panel.bar(bars, [100 * counts[bar] / len(values) for bar in bars], width=0.9, color="#4c72b0")
        mean = statistics.fmean(values)
        panel.axvline(mean, color="#c44e52", linewidth=1.2)
        panel.set_title(f"{split}: {len(values):,} captions, mean {mean:.1f} words", loc="left", fontsize=10)
        panel.set_ylabel("% of captions", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="0.9")
        panel.set_axisbelow(True)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlim(everything[0] - 0.6, last + 0.6)
    overflow = f"{last} or more in the last bar; " if everything[-1] > last else ""
    panels[-1].set_xlabel(f"words in a caption ({overflow}line: mean)")
    figure.suptitle(f"Caption lengths of {dataset.name}")
    with replacing(Path(path)) as file:
        figure.savefig(file, format="png", dpi=150)
