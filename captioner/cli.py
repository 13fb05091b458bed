"""The command line: each command parses, calls one function and prints. torch is imported only by those that run it.

Exit codes: 0 all good, 1 something failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Sequence

from captioner import __version__
from captioner.commands.caption import add_caption
from captioner.commands.cluster import add_cluster
from captioner.commands.data import add_describe, add_features
from captioner.commands.encoders import add_encoders, add_inspect
from captioner.commands.evaluate import add_evaluate
from captioner.commands.export import add_export
from captioner.commands.messages import complain
from captioner.commands.models import add_models
from captioner.commands.overlay import add_overlay
from captioner.commands.parser import Parser, UsageError
from captioner.commands.schema import add_schema
from captioner.commands.serve import add_serve
from captioner.commands.streams import prepare_streams
from captioner.commands.train import add_compare, add_recipes, add_train

COMMANDS = (
    add_caption,
    add_cluster,
    add_overlay,
    add_serve,
    add_describe,
    add_features,
    add_train,
    add_compare,
    add_evaluate,
    add_export,
    add_models,
    add_recipes,
    add_inspect,
    add_encoders,
    add_schema,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    prepare_streams()
    try:
        options = _parse(arguments)
        # A decoder's warning about a file is either repeated in our words when the file is refused, or of no interest.
        warnings.filterwarnings("ignore", module="PIL")
        signal.signal(signal.SIGTERM, _interrupt)
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
        sys.stdout.flush()  # here a full disk is an error of one line, and not one of the interpreter's end
        return code
    except KeyboardInterrupt:
        complain("interrupted; finished work is kept, and the same command resumes")
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        return 1
    except UsageError as error:
        complain(error)
        return 2
    except (ValueError, OSError) as error:
        complain(error)
        return 1
    except MemoryError:
        complain("there is not enough memory; try fewer or smaller images at a time, or a smaller model")
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, settings of the form KEY=VALUE after options too, which argparse alone refuses."""
    try:
        options, rest = make_parser().parse_known_args(arguments)
    except SystemExit:  # help and the version have been printed
        sys.stdout.flush()
        raise
    if rest and hasattr(options, "overrides") and not any(each.startswith("-") for each in rest):
        options.overrides = [*options.overrides, *rest]
    elif rest:
        options.parser.error(f"unknown arguments: {' '.join(rest)}")
    return options


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="captioner", description="Image captioning with visible attention.")
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
