"""YAML in and out of plain values: numbers such as 1e-3 are numbers, and a key that is there twice is an error."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import yaml

# What YAML 1.1 takes for text and everyone for a number: no point, or an exponent without a sign.
EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
MOST_ALIASES = 20  # seven levels of ten copies of each other would be ten million values
MOST_VALUES = 10_000  # copies included: of a long list, twenty aliases make millions too
_TOO_MANY = f"more than {MOST_VALUES:,} values, with those that aliases copy"
TEXT, NUMBER = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"


def parse_yaml(text: str, source: str) -> Any:
    """Return what YAML text says, None where it says nothing; a ValueError of one line names `source` and the line."""
    try:
        loader = _Loader(text)
        document = loader.get_single_node()
        for count, node in enumerate(_nodes(document)):
            if count >= MOST_VALUES:
                raise yaml.MarkedYAMLError(problem=_TOO_MANY)
            if isinstance(node, yaml.MappingNode):
                _check_keys(node)
            elif _is_exponent(node) and not node.style:
                node.tag = NUMBER
        return None if document is None else loader.construct_document(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}" if mark else ""
        reason = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{source}: not valid YAML{place}: {reason}") from None
    except RecursionError:
        raise ValueError(f"{source}: not valid YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        # PyYAML lets through what Python itself says to 2024-99-99, !!bool maybe or !!timestamp soon.
        raise ValueError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """A loader of plain values that follows a few aliases and no more."""

    aliases = values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node of the document."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MOST_ALIASES:
                problem = f"more than {MOST_ALIASES} aliases; write the settings out"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        self.values += 1
        if self.values > MOST_VALUES:  # each takes a tenth of a millisecond
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=self.get_mark())
        return super().compose_node(parent, index)


def write_yaml(values: dict[str, Any]) -> str:
    """Return plain values as YAML of which `parse_yaml` makes the same, in the order of their keys."""
    dumper = yaml.SafeDumper(io.StringIO(), default_flow_style=False, sort_keys=False)
    document = dumper.represent_data(values)
    for node in _nodes(document):
        # Text that would be read as a number without quotes, or whose line breaks other styles fold.
        if _is_exponent(node) or (isinstance(node, yaml.ScalarNode) and not node.value.isprintable()):
            node.style = '"'
    text: str = yaml.serialize(document, Dumper=yaml.SafeDumper, allow_unicode=True)
    return text


def _nodes(node: Any) -> Iterator[Any]:
    """Yield a node of a YAML document and all below it."""
    if node is None:
        return
    yield node
    if isinstance(node, yaml.CollectionNode):
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                yield from _nodes(part)


def _is_exponent(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == TEXT and bool(EXPONENT.fullmatch(node.value))


def _check_keys(mapping: Any) -> None:
    seen = set()
    for key, _ in mapping.value:
        name = (key.tag, str(key.value))
        if name in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
        seen.add(name)
