"""Translate a test set and score it with sacrebleu.

    python experiments/translation/evaluate.py runs/en-de --data PATH

Beside the run's model, evaluation.json holds the scores with sacrebleu's signature, translations.txt the translations.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bleu import bleu_by_length, corpus_bleu
from runs import load_model, run_command
from sentences import read_parallel
from translator import translate

from captioner.files import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the models of runs and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run of train.py")
    parser.add_argument("--data", type=Path, required=True, metavar="PATH", help="folder of parallel text")
    parser.add_argument("--split", default="test_2016_flickr", help="which sentences (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5, metavar="K", help="translations followed at once (default: 5)")
    parser.add_argument(
        "--length-power", type=float, default=1.0, metavar="P", help="rank by log probability / length^P (default: 1)"
    )
    options = parser.parse_args(arguments)
    for run in options.runs:
        translator, languages, settings = load_model(run)
        sources, references = read_parallel(options.data, options.split, settings.source, settings.target)
        said = translate(translator, languages, sources, beam=options.beam, length_power=options.length_power)
        bleu = corpus_bleu(said, references)
        evaluation = {
            "split": options.split,
            "beam": options.beam,
            "length_power": options.length_power,
            "bleu": bleu.score,
            "signature": bleu.signature,
            "lengths": [asdict(each) for each in bleu_by_length(sources, said, references)],
            "settings": asdict(settings),
        }
        write_whole(run / "translations.txt", "".join(f"{text}\n" for text in said))
        write_whole(run / "evaluation.json", json.dumps(evaluation, indent=2) + "\n")
        print(f"{run.name}: BLEU {bleu.score:.1f} on {options.split}, {bleu.signature}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
