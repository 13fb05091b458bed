"""Score functions and encoders from modules outside this package, by names such as `my_scores:LowRankScore`.

A checkpoint has the name of what it was trained with, and to use it is to run that module's code. A checkpoint from a
stranger must not choose what runs, so a module is imported only if the user named it: in the recipe that is trained, in
a command's --encoder, by `allow("my_scores")`, or in the environment variable CAPTIONER_EXTENSIONS (my_scores,other).
"""

from __future__ import annotations

import os
import re
from importlib import import_module

VARIABLE = "CAPTIONER_EXTENSIONS"
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_allowed: set[str] = set()


def is_extension(name: str) -> bool:
    """Tell whether a name is one of a module outside: package.module:name."""
    return NAME.fullmatch(name) is not None


def allow(*names: str) -> None:
    """Allow the import of modules, each given as package.module or package.module:name; other words are passed over."""
    _allowed.update(name.partition(":")[0] for name in names if is_extension(name) or is_extension(f"{name}:any"))


def load_extension(name: str) -> object:
    """Return what package.module:name names; raise ValueError where it is not allowed or not there."""
    module, _, attribute = name.partition(":")
    variable = {part.strip() for part in os.environ.get(VARIABLE, "").split(",")}
    if module not in _allowed | variable:
        raise ValueError(
            f"{name} is code outside of captioner; if you trust it, set {VARIABLE}={module} or call "
            f"captioner.model.extensions.allow({module!r})"
        )
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise ValueError(f"{name} cannot be imported: {error}; put the folder of {module} on PYTHONPATH") from None
    except AttributeError:
        raise ValueError(f"{name} is not there: {module} has no {attribute}") from None
