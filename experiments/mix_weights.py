"""Mix the weights of a model before and after rewards: their captions score between the two, and vary more than after.

    python experiments/mix_weights.py runs/before runs/after 0.7 mixed

gives a model whose weights are 0.7 parts those of `runs/after` and 0.3 parts those of `runs/before`. The second must
have been trained from the first, or both from one: only then do their weights mean the same.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from captioner.model.bundled import find_model
from captioner.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def mix(before: Checkpoint, after: Checkpoint, share: float) -> Checkpoint:
    """Return a model with `share` of the decoder's weights `after` and the rest of those `before`."""
    for name in ("encoder_identity", "attention", "decoder", "vocabulary"):
        if getattr(before, name) != getattr(after, name):
            raise SystemExit(f"the two models differ in {name}; only models of one training can be mixed")
    weights = {
        name: torch.lerp(before.weights[name].float(), weight.float(), share).to(weight.dtype)
        for name, weight in after.weights.items()
    }
    return replace(after, weights=weights, metrics={})


def main() -> None:
    """Write the mixed model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("share", type=float, help="of the weights of the second, 0 to 1")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    if not 0 <= options.share <= 1:
        parser.error(f"argument share is {options.share}; it must be from 0 to 1")
    before, after = (load_checkpoint(find_model(model)) for model in (options.before, options.after))
    save_checkpoint(options.out, mix(before, after, options.share))


if __name__ == "__main__":
    main()
