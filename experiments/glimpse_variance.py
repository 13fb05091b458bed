"""What baselines are worth to a model that chooses where to look: the variance of REINFORCE's gradient.

    python experiments/glimpse_variance.py runs/glimpse PATH/TO/FLICKR8K --features CACHES

One reference of each validation image is read again and again, along other points each time. The gradient is that of
the weights by which hidden states choose points, its variance the sum over these weights, for the mean of a batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from captioner.datasets.dataset import CaptionedImage, load_dataset
from captioner.datasets.vocabulary import PAD, Vocabulary
from captioner.evaluation.model_captions import open_cache
from captioner.model.bundled import find_model
from captioner.model.checkpoint import load_checkpoint
from captioner.model.decoder import Decoder
from captioner.model.losses import glimpse_surrogate, word_losses
from captioner.model.randomness import Randomness
from captioner.model.regions import Regions

BASELINES = ("none", "the mean of all words", "learned")


def read_captions(images: Sequence[CaptionedImage], vocabulary: Vocabulary) -> Tensor:
    """Return the first caption of each image as ids (B, 1, T + 1)."""
    rows = [vocabulary.encode(image.tokenized()[0]) for image in images]
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows]).unsqueeze(1)  # (B, 1, T + 1)


def estimates(decoder: Decoder, regions: Regions, ids: Tensor, seed: int) -> list[Tensor]:
    """Return the gradient (W,) of the policy's weights along one draw of points, for each of the baselines."""
    mask = ids[:, :, 1:] != PAD  # (B, 1, T)
    outputs = decoder(regions, ids, Randomness([seed], len(ids)).only_looks(), mask)
    assert outputs.fixations is not None
    _, nll = word_losses(outputs.logits, ids[:, :, 1:][mask])  # (W,)
    log_likelihood = torch.zeros_like(mask, dtype=nll.dtype).masked_scatter(mask, -nll.detach())  # (B, 1, T)
    mean = log_likelihood[mask].mean().expand_as(log_likelihood)  # (B, 1, T), for each word to come
    weights = list(decoder.attention.policy.reader.parameters())  # type: ignore[union-attr]
    found = []
    for value in (torch.zeros_like(mean), mean, outputs.fixations.value):
        density = outputs.fixations.log_density
        surrogate = glimpse_surrogate(density, value, log_likelihood, mask, reward_scale=1.0)
        gradients = torch.autograd.grad(surrogate, weights, retain_graph=True)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return found


def main() -> None:
    """Print a row for each baseline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--features", type=Path, required=True, help="region caches, see `captioner features`")
    parser.add_argument("--images", type=int, default=160, help="of a batch (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=20, help="of the points (default: %(default)s)")
    options = parser.parse_args()
    checkpoint = load_checkpoint(find_model(options.model))
    decoder = checkpoint.build_decoder()
    if checkpoint.attention.mode != "glimpse":
        raise SystemExit(f"{options.model} has attention.mode {checkpoint.attention.mode}; it must be glimpse")
    decoder.attention.anneal(1, 2)  # type: ignore[union-attr]  # as at the end of its training
    cache = open_cache(options.features, checkpoint.encoder_identity)
    if cache is None:
        raise SystemExit(f"no regions of the model's encoder in {options.features}; fill it with `captioner features`")
    images = load_dataset(options.data).split("val")[: options.images]
    names = [image.file_name for image in images]
    with cache:
        features, mask = torch.from_numpy(cache.regions(names)).float(), cache.mask(names)  # (B, L, D)
    regions = Regions(features, torch.from_numpy(mask) if mask is not None else None)
    ids = read_captions(images, checkpoint.vocabulary)
    drawn = [estimates(decoder, regions, ids, seed) for seed in range(options.draws)]
    print(f"{len(images)} captions, {options.draws} draws")
    for name, gradients in zip(BASELINES, zip(*drawn, strict=True), strict=True):
        every = torch.stack(gradients)  # (draws, W)
        variance, mean = every.var(dim=0).sum().item(), every.mean(dim=0).square().sum().item()
        print(f"{name:<24} variance {variance:>10.4g}, squared mean {mean:>10.4g}", flush=True)


if __name__ == "__main__":
    main()
