"""Ending a search before its end: a server whose client has left asks for it."""

from __future__ import annotations

from collections.abc import Callable


class SearchStopped(Exception):
    """A search ended because it was asked to; there are no captions."""


def check_stop(stop: Callable[[], bool] | None) -> None:
    """Raise `SearchStopped` where there is someone to ask and the answer is yes."""
    if stop is not None and stop():
        raise SearchStopped
