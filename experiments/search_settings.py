"""What beam and length normalisation are worth to a model, on the validation images.

    python experiments/search_settings.py runs/flickr8k-soft PATH/TO/FLICKR8K --features CACHES

Scores are those of `captioner evaluate`. Settings are to be chosen on validation images, never on those that are
reported.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from captioner.datasets.dataset import load_dataset
from captioner.datasets.vocabulary import join_words
from captioner.evaluation.metrics.judge import Judge
from captioner.evaluation.model_captions import open_cache
from captioner.evaluation.tables import label
from captioner.model.bundled import find_model
from captioner.model.checkpoint import load_checkpoint
from captioner.model.regions import Regions
from captioner.model.search.beam import beam_search
from captioner.model.search_settings import SearchConfig

BATCH = 64  # images
METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider")


def main() -> None:
    """Print a row for each pair of settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--features", type=Path, required=True, help="region caches, see `captioner features`")
    parser.add_argument("--split", default="val")
    parser.add_argument("--restval-to-train", action="store_true")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 3, 5, 8])
    parser.add_argument("--length-powers", type=float, nargs="+", default=[0.0, 0.5, 0.7, 0.9, 1.1])
    options = parser.parse_args()
    checkpoint = load_checkpoint(find_model(options.model))
    cache = open_cache(options.features, checkpoint.encoder_identity)
    if cache is None:
        raise SystemExit(f"no regions of the model's encoder in {options.features}; fill it with `captioner features`")
    images = load_dataset(options.data, restval_to_train=options.restval_to_train).split(options.split)
    decoder = checkpoint.build_decoder()
    print(f"{len(images):,} images of {options.split}")
    print(f"{'beam':<6}{'power':>6}{'words':>7}", *(f"{label(metric):>8}" for metric in METRICS))
    with cache, Judge() as judge:
        for beam in options.beams:
            for power in options.length_powers if beam > 1 else options.length_powers[:1]:
                config = replace(SearchConfig(), beam=beam, length_power=power)
                found = []
                for start in range(0, len(images), BATCH):
                    names = [image.file_name for image in images[start : start + BATCH]]
                    features, mask = torch.from_numpy(cache.regions(names)).float(), cache.mask(names)  # (B, L, D)
                    regions = Regions(features, torch.from_numpy(mask) if mask is not None else None)
                    captions = beam_search(decoder, regions, config)
                    found += [checkpoint.vocabulary.words(best.ids) for (best,) in captions]
                texts, references = [join_words(words) for words in found], [image.captions for image in images]
                scores = judge.score(texts, references).corpus
                cells = (f"{scores[metric]:>8.1f}" if metric in scores else f"{'-':>8}" for metric in METRICS)
                print(f"{beam:<6}{power:>6.1f}{sum(map(len, found)) / len(found):>7.1f}", *cells, flush=True)


if __name__ == "__main__":
    main()
