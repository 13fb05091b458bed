"""`captioner train`, `recipes` and `compare`: from a recipe to a trained model, which recipes there are, and runs."""

from __future__ import annotations

import argparse
import signal
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.commands.arguments import add_device_argument, read_device
from captioner.commands.messages import complain, say, show
from captioner.commands.parser import UsageError, add_command
from captioner.training.log import TRACKERS

if TYPE_CHECKING:
    from tqdm import tqdm

    from captioner.training.recipe import Recipe
    from captioner.training.start import Position


def add_train(commands: Any) -> None:
    """Add `captioner train`."""
    parser = add_command(commands, "train", run_train, "train a model from a recipe")
    parser.add_argument("recipe", metavar="RECIPE", help="name of a recipe, see `captioner recipes`, or a YAML file")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings that override the recipe's, such as decoder.hidden=256",
    )
    parser.add_argument("--run", type=Path, metavar="DIR", dest="folder", help="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in its folder, if there is one, with its settings; epochs=8 extends it to eight",
    )
    parser.add_argument(
        "--track",
        action="append",
        choices=TRACKERS,
        default=[],
        metavar="NAME",
        help=f"also log to {' or '.join(TRACKERS)}; may be given twice",
    )
    add_device_argument(parser)
    parser.add_argument("--show", action="store_true", help="print all settings as YAML, and do not train")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run_train(options: argparse.Namespace) -> int:
    """Train, or resume training; say how it ended."""
    from captioner.training.recipe import to_yaml

    folder = options.folder or Path("runs") / Path(options.recipe).stem
    recipe = _read_recipe(options, folder)
    if options.show:
        print(to_yaml(recipe), end="")
        return 0
    from captioner.processes import joined_processes
    from captioner.training.train import Stopped, train

    device = read_device(options)
    epochs = recipe.epochs + recipe.self_critical.epochs
    with joined_processes(device) as processes, _Screen(processes.is_first, options.quiet, epochs) as screen:
        stopping = _stop_on_signals(screen)
        try:
            outcome = train(
                recipe,
                folder,
                processes=processes,
                listener=screen,
                track=options.track,
                device=device,
                resume=options.resume,
                stop=lambda: bool(stopping),
            )
        except Stopped:
            if processes.is_first:
                screen.say(f"stopped; everything is in {folder}/last, and --resume continues from there")
            return 130
        if processes.is_first:
            score = "" if outcome.best is None else f", {outcome.metric} {outcome.best:.1f}"
            place = "" if outcome.best_epoch is None else f" of epoch {outcome.best_epoch}"
            show(f"{outcome.folder}: the best model{place}{score}; trained for {outcome.steps:,} steps")
    return 0


def _read_recipe(options: argparse.Namespace, folder: Path) -> Recipe:
    """Return the recipe with what overrides it; a run that resumes keeps its settings where nothing overrides them."""
    recipe = _load(options.recipe, options.overrides)
    settings = folder / "settings.yaml"
    if not options.resume or not settings.exists():
        return recipe
    from captioner.training.resuming import differences

    kept = _load(str(settings), options.overrides)
    others = [f"{key} {value!r}, not {other!r}" for key, value, other in differences(kept, recipe)]
    if others:
        say(f"{folder} keeps the settings that it was begun with: {'; '.join(others)}")
    return kept


def _load(source: str, overrides: list[str]) -> Recipe:
    """Return a recipe with what overrides it; where that alone is at fault, the usage is wrong."""
    from captioner.training.recipe import load_recipe

    try:
        return load_recipe(source, overrides)
    except ValueError as error:
        try:
            load_recipe(source)
        except ValueError:
            raise error from None
        raise UsageError(str(error)) from None


def add_recipes(commands: Any) -> None:
    """Add `captioner recipes`."""
    add_command(commands, "recipes", run_recipes, "list the recipes that come with the package")


def run_recipes(options: argparse.Namespace) -> int:
    """Print a line for each recipe."""
    from captioner.training.bundled_recipes import bundled_recipes

    recipes = bundled_recipes()
    indent = " " * (max(map(len, recipes)) + 2)
    for name, text in recipes.items():
        first = name.ljust(len(indent))
        print(textwrap.fill(text, 100, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False))
    return 0


def add_compare(commands: Any) -> None:
    """Add `captioner compare`."""
    parser = add_command(commands, "compare", run_compare, "put the curves and samples of several runs on one page")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, finished or under way")
    parser.add_argument("--out", type=Path, default=Path("compare.html"), metavar="FILE", help="the page")


def run_compare(options: argparse.Namespace) -> int:
    """Write a page of several runs."""
    if len(options.runs) < 2:
        raise UsageError(f"one run is named, {options.runs[0]}; name two or more, or open its run.html")
    from captioner.training.pages.comparison import write_comparison

    write_comparison(options.runs, options.out)
    print(options.out)
    return 0


def _stop_on_signals(screen: _Screen) -> list[int]:
    """Return a list that a first Ctrl-C or SIGTERM puts something into; a second one interrupts at once."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        screen.say("stopping after this step; interrupt again to stop at once, at the last checkpoint")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


class _Screen:
    """Shows how training goes: a bar for what is under way, and lines for what is worth keeping."""

    def __init__(self, active: bool, quiet: bool, epochs: int) -> None:
        self.active, self.quiet, self.epochs = active, quiet, epochs
        self.bar: tqdm[Any] | None = None
        self.label = ""

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _show(self, label: str, done: int, total: int, unit: str) -> None:
        from tqdm import tqdm

        if not self.active:
            return
        if self.bar is None or self.label != label:
            self._close()
            disable = True if self.quiet else None  # None: none where there is no terminal
            self.bar = tqdm(desc=label, total=total, initial=done, unit=unit, disable=disable, dynamic_ncols=True)
            self.label = label
        self.bar.update(done - self.bar.n)
        if done >= total:
            self._close()

    def say(self, text: str) -> None:
        """Print a line on stderr, above the bar."""
        if self.active:
            self._close()
            say(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, above the bar."""
        if self.active:
            self._close()
            complain(f"warning: {text}")

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much of something is done."""
        self._show(what, done, total, "image")

    def step(self, position: Position, batches: int, numbers: dict[str, float]) -> None:
        """Show a step."""
        self._show(f"epoch {position.epoch + 1}/{self.epochs}", position.batch, batches, "batch")
        if self.bar is not None:
            speed = f"{numbers['captions_per_second']:.0f} captions/s"
            self.bar.set_postfix_str(f"loss {numbers['loss']:.3f}, {speed}", refresh=False)
