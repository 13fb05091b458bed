"""Work done ahead in threads and handed over in order; how many cores there are for it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def map_ahead(
    function: Callable[[Item], Outcome],
    items: Iterable[Item],
    *,
    workers: int,
    ahead: int,
    name: str,
    left: Event | None = None,
) -> Generator[Outcome, None, None]:
    """Yield the function of each item, in order, computed in threads while the caller works on earlier ones.

    At most `ahead` are finished or under way beyond the one that is handed over. Items are taken in the caller's own
    thread; `name` is what the others are called. Whoever may leave early closes it, which waits for what is under way;
    `left` is set before that, for a function that takes long to end by.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix=name) as pool:
        waiting: deque[Future[Outcome]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            if left is not None:
                left.set()
            for future in waiting:
                future.cancel()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
