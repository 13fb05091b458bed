"""Let a model use words as often as people do: rewards teach it to say common ones even more often than they are said.

    captioner evaluate runs/coco-best data/coco --split val --restval-to-train --out evaluation-val
    python experiments/match_words.py runs/coco-best data/coco evaluation-val/captions.jsonl 0.4 matched \\
        --restval-to-train

The bias of each content word rises by `strength` times the logarithm of how much more often the references of the
training images have it than the model's captions do, and falls where they have it less. Nothing else of the model
changes. Choose the strength on validation images: scores fall as captions become more varied.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from captioner.captioning.records import read_lines
from captioner.datasets.dataset import load_dataset
from captioner.datasets.vocabulary import Vocabulary
from captioner.datasets.word_classes import content_groups
from captioner.model.bundled import find_model
from captioner.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

BIAS = "output.bias"  # (V,), of every decoder
RARE = 1e-3  # times per caption, added to both sides: of rarer words nothing is known


def rates(vocabulary: Vocabulary, captions: Iterable[Sequence[str]]) -> Tensor:
    """Return how many times each word (V,) occurs per caption."""
    counts, total = Counter[str](), 0
    for words in captions:
        counts.update(words)
        total += 1
    return torch.tensor([counts[word] for word in vocabulary.entries], dtype=torch.float64) / max(1, total)


def match(checkpoint: Checkpoint, said: Tensor, wanted: Tensor, strength: float) -> Checkpoint:
    """Return a model whose content words, `said` (V,) times per caption, come closer to the rates `wanted` (V,)."""
    content = torch.tensor(content_groups(checkpoint.vocabulary.entries)) > 0  # (V,)
    shift = strength * torch.log((wanted + RARE) / (said + RARE)) * content  # (V,)
    bias = checkpoint.weights[BIAS]
    weights = {**checkpoint.weights, BIAS: (bias + shift).to(bias.dtype)}
    return replace(checkpoint, weights=weights, metrics={})


def main() -> None:
    """Write the model with other biases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path, help="folder of the data set; its training captions are the references")
    parser.add_argument("captions", type=Path, help="the captions.jsonl of `captioner evaluate`, what the model says")
    parser.add_argument("strength", type=float, help="0 changes nothing, 1 makes up for the whole difference")
    parser.add_argument("out", type=Path)
    parser.add_argument("--restval-to-train", action="store_true", help="count Karpathy's restval as training images")
    options = parser.parse_args()
    checkpoint = load_checkpoint(find_model(options.model))
    dataset = load_dataset(options.data, restval_to_train=options.restval_to_train)
    references = [words for image in dataset.split("train") for words in image.tokenized()]
    said = [line.record["words"] for line in read_lines(options.captions)]
    if not said:
        raise SystemExit(f"{options.captions} has no captions; give the captions.jsonl of `captioner evaluate`")
    vocabulary = checkpoint.vocabulary
    matched = match(checkpoint, rates(vocabulary, said), rates(vocabulary, references), options.strength)
    save_checkpoint(options.out, matched)


if __name__ == "__main__":
    main()
