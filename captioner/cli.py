"""The command line: each subcommand parses, calls one function and prints. torch is imported only by those that run it.

Exit codes: 0 all good, 1 something failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Sequence

from captioner import __version__
from captioner.commands.arguments import complain
from captioner.commands.caption import add_caption
from captioner.commands.data import add_describe, add_features
from captioner.commands.encoders import add_encoders, add_inspect
from captioner.commands.evaluate import add_evaluate
from captioner.commands.models import add_export, add_models
from captioner.commands.overlay import add_overlay
from captioner.commands.serve import add_serve
from captioner.commands.train import add_train

COMMANDS = (
    add_caption,
    add_overlay,
    add_serve,
    add_describe,
    add_features,
    add_train,
    add_evaluate,
    add_export,
    add_models,
    add_inspect,
    add_encoders,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parse(arguments)
    # A decoder's warning about a file is either repeated in our own words when the file is refused, or of no interest.
    warnings.filterwarnings("ignore", module="PIL")
    signal.signal(signal.SIGTERM, _interrupt)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        complain("interrupted; what is done is kept, and the same command goes on from there")
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        return 1
    except (ValueError, OSError) as error:
        complain(error)
        return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, settings of the form KEY=VALUE after options too, which argparse alone refuses."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and hasattr(options, "overrides") and not any(each.startswith("-") for each in rest):
        options.overrides += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="captioner", description="Image captioning with visible attention.")
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
