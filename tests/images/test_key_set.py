from __future__ import annotations

import sys
import tracemalloc

import pytest

from captioner.images.key_set import KeySet
from captioner.images.sources import name_key


def test_it_is_a_set() -> None:
    keys = [name_key(f"{number}.jpg") for number in range(3000)]
    found, expected = KeySet(), set()
    for key in [*keys[:2000], *keys[500:2500]]:
        assert (key in found) == (key in expected)
        assert found.add(key) == (key not in expected)
        expected.add(key)
    assert len(found) == len(expected) == 2500
    assert [key in found for key in keys] == [key in expected for key in keys]


def test_keys_that_name_the_same_place() -> None:
    found = KeySet()
    keys = [b"\xff" * 8 + number.to_bytes(8, "big") for number in range(2000)]  # the last place, and on from the first
    assert all(found.add(key) for key in keys[:1000])
    assert all(key in found for key in keys[:1000])
    assert not any(key in found for key in keys[1000:])


def test_it_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        found, before = KeySet(), tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            found.add(number.to_bytes(8, "little") + b"12345678")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 20_000 * (sys.getsizeof(bytes(16)) + 16) / 2  # a set holds an object and a slot for each, at least


def test_what_is_no_key_is_refused() -> None:
    for wrong in (b"", b"short", bytes(16)):
        with pytest.raises(ValueError, match="it must be a hash of 16 bytes"):
            KeySet().add(wrong)
    assert bytes(16) not in KeySet()
