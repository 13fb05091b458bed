"""Good files made bad: what a stranger, a bug or a failing disk may do to them, seeded, so that a case comes again.

A case is told by its seed alone. `refusal_of` runs what reads a bad file and lets through only what a user may see: no
error at all, or one line that names what is wrong.
"""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import struct
from collections.abc import Callable, Iterator
from typing import Any

from captioner.files import printable_line

MOST_MEMORY = 400_000  # kilobytes that reading a small bad file may add to the most that the process has had
DEEP = "[" * 50_000 + "]" * 50_000
NEST = "a nest"  # stands for what is deeper than is read, but not too deep for a parser of JSON
# In place of good values: other types, ends of ranges, things that are no numbers, names that lead elsewhere.
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 10**18, 10**400, 0.5, -0.0, 1e30, math.nan, math.inf, -math.inf, "", " ", "0",
    "5", "text", "nan", "x" * 5000, "\x1b[31mred", "two\nlines", "\u202egnp.exe", "\ud800", "\0", "../../etc/passwd",
    "/dev/zero", "timm/hf-hub:evil/model", "timm/local-dir:/tmp", "timm/../evil", "os:system", "imagenet", "random",
    "/tmp/gone.safetensors", [], {}, [[]], [None], {"": None}, [1, 2, 3], {"name": 5}, [10**400], list(range(1000)),
    NEST,
)  # fmt: skip


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each part of nested plain values."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 20)):
            yield (*above, key)
            yield from places(value[key], (*above, key))


def mutate_values(value: Any, chance: random.Random) -> Any:
    """Return nested plain values with one or two parts replaced, removed, renamed or doubled."""
    changed = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2))):
        *above, key = chance.choice(list(places(changed)) or [()]) or (None,)
        if key is None:
            return copy.deepcopy(chance.choice(ODD))
        holder = changed
        for each in above:
            holder = holder[each]
        change = chance.random()
        if change < 0.15:
            del holder[key]
        elif change < 0.25 and isinstance(holder, dict):
            holder[str(chance.choice(ODD))[:50]] = holder.pop(key)
        elif change < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD))
    return changed


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a bit turned, some cut out, doubled, or strewn in."""
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((1, 2, 8, 100)))
    change = chance.randrange(5)
    if change == 0:
        return data[:start]
    if change == 1:
        return data[:start] + data[end:]
    if change == 2:
        return data[:end] + data[start:]
    if change == 3:
        return data[:start] + chance.randbytes(end - start) + data[end:]
    return data[:start] + bytes(byte ^ 1 << chance.randrange(8) for byte in data[start:end]) + data[end:]


def mutate_json(value: Any, chance: random.Random) -> bytes:
    """Return a JSON file of values that were changed, or whose text was."""
    change = chance.random()
    if change < 0.03:
        return DEEP.encode()
    text = json.dumps(mutate_values(value, chance) if change < 0.8 else value).encode()
    text = text.replace(json.dumps(NEST).encode(), b"[" * 400 + b"]" * 400)
    return text if change < 0.8 else mutate_bytes(text, chance)


def mutate_tensors(data: bytes, chance: random.Random) -> bytes:
    """Return a safetensors file whose header says something else, or with other bytes."""
    length = int.from_bytes(data[:8], "little")
    change = chance.random()
    if change < 0.1:
        return struct.pack("<Q", chance.choice((0, 1, length + 1, 2**32, 2**63, 2**64 - 1))) + data[8:]
    if change < 0.6:
        header = json.dumps(mutate_values(json.loads(data[8 : 8 + length]), chance)).encode()
        return struct.pack("<Q", len(header)) + header + data[8 + length :]
    if change < 0.9:
        at = 8 + length + 4 * chance.randrange((len(data) - 8 - length) // 4)
        return data[:at] + struct.pack("<f", chance.choice((math.nan, math.inf, -math.inf, 1e30, 0))) + data[at + 4 :]
    return mutate_bytes(data, chance)


def refusal_of(read: Callable[[], object]) -> str | None:
    """Return the one line by which something is refused, None where it is not; anything else is raised."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = None
    try:
        read()
    except (ValueError, OSError) as error:
        line = printable_line(f"{error}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY
    assert line is None or (line.strip() and line.isprintable()), "an error that says nothing"
    return line
