"""Translate lines of standard input; with --align, draw which words of each the decoder looked at.

echo "Two dogs run along the beach." | python experiments/translation/translate.py runs/en-de --align figures
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pieces import SPACE, Language, join_pieces, word_groups
from runs import load_model, run_command
from sentences import encode_source

from captioner.figures.alignment import word_alignment
from captioner.figures.drawing import save_figure
from captioner.model.search.hypotheses import Hypothesis

END = "<end>"


def align(
    languages: tuple[Language, Language], ids: Sequence[int], found: Hypothesis
) -> tuple[list[str], list[str], NDArray[np.float32]]:
    """Return the words of a sentence, those of its translation, and the weights (T, L) of the former for the latter.

    `ids` are those of the sentence. A word's pieces are taken together: weights of the sentence are added up, those of
    the translation averaged.
    """
    source, target = languages
    read = [*source.vocabulary.words(ids), END]
    said = target.vocabulary.words(found.ids)
    weights = found.alpha[:, : len(read)].numpy()  # (T, L)
    columns, rows = word_groups(read), word_groups(said)
    table = np.stack([weights[:, places].sum(axis=1) for places in columns], axis=1)  # (T, words)
    table = np.stack([table[places].mean(axis=0) for places in rows])  # (words, words)
    return _words(read, columns), _words(said, rows), table.astype(np.float32)


def _words(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    return [join_pieces(pieces[place] for place in group) or SPACE for group in groups]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the translation of each line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run of train.py")
    parser.add_argument("--align", type=Path, metavar="DIR", help="write a figure for each line, 1.png, 2.png, ...")
    parser.add_argument("--beam", type=int, default=5, metavar="K", help="translations followed at once (default: 5)")
    options = parser.parse_args(arguments)
    translator, languages, settings = load_model(options.run)
    if options.align is not None:
        if not settings.attention:
            raise ValueError(f"{options.run} was trained with --no-attention; there is nothing to draw with --align")
        options.align.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(filter(None, map(str.strip, sys.stdin)), start=1):
        ids = encode_source(line, languages[0])
        found = translator.search([ids], options.beam, 1.0)[0]
        print(languages[1].decode(found.ids), flush=True)
        if options.align is not None:
            read, said, weights = align(languages, ids, found)
            save_figure(word_alignment(said, read, weights), options.align / f"{number}.png")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
