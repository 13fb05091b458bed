"""The COCO caption evaluation's own Java parts, run as it runs them, to compare with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from captioner.evaluation.metrics.java import find_java

JAVA = find_java()
needs_java = pytest.mark.skipif(JAVA.path is None, reason=f"no Java runtime: {JAVA.reason}")

# Each a caption on its own; the last letters matter, since words can depend on the caption after.
TRICKY = (
    "A man's dog, which runs (fast!) -- on the grass...",
    'She said "hello" and \u201cgood-bye\u201d; it\'s a dog\u2019s life',
    "",
    "   ",
    "dog",
    ".",
    '"',
    "I can't, won't and cannot; gonna, y'all, rock 'n' roll, the '90s, 5 o'clock",
    "two\nlines\n\nand a tab\there",
    "\n",
    "A woman with the letter X.",
    "A shirt with No.",
    "a flag of the U.S.",
    "5 people at 3 p.m. on Jan.",
    "caf\u00e9 na\u00efve \u65e5\u672c\u8a9e \U0001f600 \u00bd \u00a3 \x85 \x00 \ufeff \u00ad \u00a0 1 1/2",
    "[a] {b} <c> <d e='f'> a < b & c &amp; d | ||| e \\ / # @x *NL* *nl* http://x.y/z me@x.y $5 50%",
    "A dog.",
    "X.",
    "lower case after it",
)


@contextmanager
def java_on_path() -> Iterator[None]:
    """Let the COCO evaluation find the runtime, which it takes from PATH alone."""
    before = os.environ.get("PATH", "")
    assert JAVA.path is not None
    os.environ["PATH"] = f"{JAVA.path.parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def official_tokens(captions: Sequence[str]) -> list[str]:
    """Return the captions as the COCO evaluation tokenises them in this order."""
    with java_on_path():
        tokens = PTBTokenizer().tokenize({0: [{"caption": caption} for caption in captions]})
    found: list[str] = tokens[0]
    return found
