"""The parser of every command: wrong usage is one line, and help shows every default."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class UsageError(ValueError):
    """Arguments that are wrong, alone or together, whatever files there are: exit code 2."""


@contextmanager
def checking_usage() -> Iterator[None]:
    """Turn the ValueError of a setting that is refused into one of wrong usage."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError`, so that wrong usage is one line, whoever finds it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an option that may stand alone takes the next one only where it is one of its choices.

        So `--attention photos` leaves the folder to be captioned.
        """
        given = list(sys.argv[1:] if args is None else args)
        for action in self._actions:
            if action.nargs == "?" and action.option_strings and action.choices is not None:
                for place, word in enumerate(given):
                    alone = given[place + 1 : place + 2] == [] or given[place + 1] not in action.choices
                    if word in action.option_strings and alone:
                        given[place] = f"{word}={action.const}"
        return super().parse_known_args(given, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help; where it cannot be printed is said, which argparse keeps to itself."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UsageError(f"{message}; see `{self.prog} --help`")


def add_command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
    """Add a subcommand that `run` carries out, with `text` for its help."""
    description = text[0].upper() + text[1:] + "."
    parser = commands.add_parser(name, help=text, description=description, formatter_class=HelpFormatter)
    parser.set_defaults(run=run, parser=parser)
    return parser


class HelpFormatter(argparse.HelpFormatter):
    """Show the default of every option that has one, unless its help tells it in words, and break no name in two."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str:
        told = "default:" in (action.help or "") or "the default" in (action.help or "")
        has_none = (
            action.default is None or action.default is False or action.default in ("", [], (), argparse.SUPPRESS)
        )
        return (action.help or "") if told or has_none else f"{action.help} (default: %(default)s)"


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is refused; it must be at least 1")
    return number
