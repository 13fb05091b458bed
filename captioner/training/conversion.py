"""Plain values, as YAML has them, to the dataclasses of settings.

Every ValueError names the dotted key, what it is and what was expected.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from captioner.datasets.annotations import shown
from captioner.model.checks import SCALARS, SettingError


def convert(value: Any, hint: Any, key: str, *, whole: bool) -> Any:
    """Return a plain value as the type `hint`; sections become their dataclass where the `whole` of them is there."""
    types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    expected = type(value) if type(value) in types else types[0]
    if value is None and NoneType in types:
        return None
    if is_dataclass(expected):
        return _convert_section(value, expected, key, whole=whole)
    if get_origin(expected) is not tuple:
        return _convert_scalar(value, expected, key, " or null" if NoneType in types else "")
    item = get_args(expected)[0]
    if isinstance(value, Mapping):  # one may stand for a list of one
        return (convert(value, item, key, whole=whole),)
    if not isinstance(value, list):
        raise ValueError(f"{key} is {describe_value(value)}; expected a mapping or a list of mappings")
    return tuple(convert(part, item, f"{key}.{number}", whole=whole) for number, part in enumerate(value))


def _convert_section(value: Any, section: Any, key: str, *, whole: bool) -> Any:
    hints = get_type_hints(section)
    if not isinstance(value, Mapping):
        raise ValueError(f"{key or 'it'} is {describe_value(value)}; expected a mapping of {', '.join(hints)}")
    inside = f"{key}." if key else ""
    for name in value:
        if name not in hints:
            close = difflib.get_close_matches(str(name), hints, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            unknown = f"{inside}{name}" if re.fullmatch(r"[\w-]+", str(name)) else shown(f"{inside}{name}")
            raise ValueError(f"unknown key {unknown}{meant}; choose from {', '.join(hints)}")
    values = {name: convert(each, hints[name], f"{inside}{name}", whole=whole) for name, each in value.items()}
    if not whole:
        return values
    for each in fields(section):
        if each.name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(
                f"{inside}{each.name} is missing; write it into the file, or give {inside}{each.name}=VALUE"
            )
    try:
        return section(**values)
    except SettingError as error:
        # A section speaks of "data root"; the reader of a file looks for data.1.root.
        raise ValueError(f"{inside}{error.name} {error.reason}") from None


def _convert_scalar(value: Any, expected: type, key: str, alternative: str) -> Any:
    if expected is float and type(value) is int and abs(value) < 2**1000:
        value = float(value)
    if type(value) is not expected:  # by type: a bool is an int to isinstance
        raise ValueError(f"{key} is {describe_value(value)}; expected {SCALARS[expected]}{alternative}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is {value}; expected a finite number")
    return value


def describe_value(value: object) -> str:
    """Return a value in YAML's words, with its type where that is in doubt."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return shown(value)
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return f"{shown(value)} (text)" if isinstance(value, str) else f"{value} ({type(value).__name__})"
