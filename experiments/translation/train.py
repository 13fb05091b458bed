"""Train a translator on parallel text; the same command with --resume continues a run that was interrupted.

    python experiments/translation/train.py --data PATH --to de --run runs/en-de

PATH holds train.en, train.de, val.en and val.de, or the same with .gz, as Multi30k does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from bleu import corpus_bleu
from learner import ORDER, Learner
from pieces import Language
from runs import LAST, LOG, MODEL, PRECISIONS, Settings, load_tensors, run_command, save_model, save_tensors
from sentences import LONGEST, Batch, encode_pairs, make_batches, read_parallel
from tqdm import tqdm
from translator import Translator, translate

from captioner.files import printable, write_whole
from captioner.model.config import SCORES

OPTIONS = {
    "--score": "how pieces are scored against the decoder's state",
    "--source": "the language to translate from",
    "--merges": "merges of byte pair encoding, for each language",
    "--epochs": "how often to go through the training sentences",
    "--batch": "sentences per step",
    "--rate": "the highest learning rate",
    "--warmup": "steps until the rate is highest",
    "--smoothing": "share of each target that is spread over all pieces",
    "--clip": "longest gradient",
    "--average": "share of the averaged weights that stays at each step",
    "--seed": "of everything random",
    "--precision": "of the products",
    "--embedding": "width of the embeddings",
    "--encoder": "width of the encoder's states, in each direction",
    "--hidden": "width of the decoder's states",
    "--width": "width of the space in which additive and concat scores compare",
    "--dropout": "share of embeddings, sentence vectors and states that is dropped",
}
CHOICES = {"--score": SCORES, "--precision": PRECISIONS}


class Run:
    """A training under way: its sentences, its learner and its folder."""

    def __init__(self, settings: Settings, data: Path, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        sources, targets = read_parallel(data, "train", settings.source, settings.target)
        self.validation = read_parallel(data, "val", settings.source, settings.target)
        self.languages = (
            Language.learn(sources, settings.merges, lower=True),
            Language.learn(targets, settings.merges, lower=False),
        )
        pairs = encode_pairs(sources, targets, self.languages)
        self.pairs = [pair for pair in pairs if max(len(pair.source), len(pair.target)) <= LONGEST]
        if not self.pairs:
            raise ValueError(f"every training sentence has more than {LONGEST} pieces; try more --merges")
        self.held_out: list[Batch] = make_batches(encode_pairs(*self.validation, self.languages), settings.batch)
        torch.manual_seed(settings.seed)
        words = (len(self.languages[0].vocabulary), len(self.languages[1].vocabulary))
        self.batches = -(-len(self.pairs) // settings.batch)  # of an epoch
        self.learner = Learner(Translator(settings.sizes(), words), settings, settings.epochs * self.batches)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.stop = threading.Event()

    def resume(self) -> None:
        """Go back to where the run was saved last."""
        tensors, content = load_tensors(self.folder / LAST)
        changed = {
            name: value for name, value in asdict(self.settings).items() if content["settings"].get(name) != value
        }
        if changed:
            name, value = next(iter(changed.items()))
            there = content["settings"].get(name)
            raise ValueError(
                f"{name} is {value}, but {there} in {printable(str(self.folder))}; a run keeps its settings"
            )
        self.history, self.seconds = content["history"], content["seconds"]
        self.learner.restore(tensors, content["step"])

    def train(self) -> bool:
        """Train to the end and return True, or False where `stop` was set; either way the state is saved."""
        for epoch in range(self.learner.step // self.batches, self.settings.epochs):
            if not self._train_epoch(epoch):
                self.save()
                return False
            self._validate(epoch)
            self.save()
        return True

    def _train_epoch(self, epoch: int) -> bool:
        batches = make_batches(self.pairs, self.settings.batch, (self.settings.seed, epoch, ORDER))
        done = self.learner.step - epoch * self.batches
        total, started = 0.0, time.monotonic()
        progress = tqdm(batches[done:], f"epoch {epoch + 1}", leave=False, disable=not sys.stderr.isatty())
        for batch in progress:
            if self.stop.is_set():
                self.seconds += time.monotonic() - started
                return False
            total += self.learner.learn(batch)
        self.seconds += time.monotonic() - started
        speed = sum(len(batch.source) for batch in batches[done:]) / max(1e-9, time.monotonic() - started)
        say(f"epoch {epoch + 1}: loss {total / max(1, len(batches) - done):.3f}, {speed:.0f} sentences/s")
        return True

    def _validate(self, epoch: int) -> None:
        translator = self.learner.averaged()
        with torch.no_grad():
            nll = torch.cat([translator.losses(batch)[1] for batch in self.held_out])
        said = translate(translator, self.languages, self.validation[0], beam=1)
        bleu = corpus_bleu(said, self.validation[1]).score
        line = {"epoch": epoch + 1, "step": self.learner.step, "nll": float(nll.mean()), "bleu": bleu}
        self.history.append({**line, "minutes": self.seconds / 60})
        best = max(each["bleu"] for each in self.history)
        say(f"epoch {epoch + 1}: validation loss {line['nll']:.3f}, BLEU {bleu:.1f} (beam 1), best {best:.1f}")
        if bleu == best:
            weights = translator.state_dict()
            save_model(self.folder / MODEL, weights, self.settings, self.languages, {"bleu": bleu, "epoch": epoch + 1})
        write_whole(self.folder / LOG, "".join(f"{json.dumps(each)}\n" for each in self.history))

    def save(self) -> None:
        """Save all that it takes to resume."""
        content = {
            "settings": asdict(self.settings),
            "step": self.learner.step,
            "history": self.history,
            "seconds": self.seconds,
        }
        save_tensors(self.folder / LAST, self.learner.state(), content)


def say(message: str) -> None:
    """Print a line of progress."""
    print(message, file=sys.stderr, flush=True)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; every setting of a run is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="PATH", help="folder of parallel text")
    parser.add_argument("--to", dest="target", default="de", metavar="LANGUAGE", help="the language to translate into")
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="folder to write the run to")
    parser.add_argument("--resume", action="store_true", help="continue a run that was interrupted")
    parser.add_argument(
        "--no-attention", dest="attention", action="store_false", help="the encoder's last states alone"
    )
    defaults = Settings()
    for name, text in OPTIONS.items():
        default = getattr(defaults, name.removeprefix("--"))
        choices = CHOICES.get(name)
        metavar = None if choices else name.removeprefix("--").upper()
        text = f"{text} (default: %(default)s)"
        parser.add_argument(name, type=type(default), default=default, choices=choices, metavar=metavar, help=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return an exit code: 0 trained to the end, 130 interrupted."""
    options = make_parser().parse_args(arguments)
    settings = Settings(**{each.name: getattr(options, each.name) for each in fields(Settings)})
    saved = (options.run / LAST).exists()
    if saved and not options.resume:
        raise ValueError(f"{printable(str(options.run))} holds a run; add --resume to continue it, or choose another")
    if options.resume and not saved:
        raise ValueError(f"{printable(str(options.run))} holds no run to resume; leave out --resume")
    run = Run(settings, options.data, options.run)
    options.run.mkdir(parents=True, exist_ok=True)
    if options.resume:
        run.resume()
    pairs, weights = len(run.pairs), sum(value.numel() for value in run.learner.parameters.values())
    sizes = " and ".join(str(len(each.vocabulary)) for each in run.languages)
    say(f"{pairs:,} training sentences, {sizes} pieces, {weights:,} weights")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: run.stop.set())
    if not run.train():
        say(f"interrupted after {run.learner.step:,} steps; --resume continues")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
