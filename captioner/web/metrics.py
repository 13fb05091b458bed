"""How the server does, in the text format that Prometheus reads."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds of the histogram's buckets
Sample = tuple[str, Mapping[str, str], float]  # what follows the metric's name, labels, value


@dataclass
class Metrics:
    """Counts since the server was started; all are kept by the one thread that answers requests."""

    paths: Sequence[str]  # those there are; all others are one, or a scanner would fill the memory
    started: float = field(default_factory=time.monotonic)
    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by path, method and status
    seconds: float = 0.0  # of all requests together
    buckets: Counter[int] = field(default_factory=Counter)  # requests by the first bound that they are within
    images: Counter[tuple[str, str]] = field(default_factory=Counter)  # by model and outcome

    def observe(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        known = path if path in self.paths else "other"
        self.requests[known, method if method in ("GET", "HEAD", "POST") else "other", status] += 1
        self.seconds += seconds
        self.buckets[bisect_left(SECONDS, seconds)] += 1

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return all metrics; `gauges` are more of them, by name, each with its help and value."""
        requests = [
            ("", {"path": path, "method": method, "status": str(status)}, float(count))
            for (path, method, status), count in sorted(self.requests.items())
        ]
        images = [
            ("", {"model": model, "outcome": outcome}, float(count))
            for (model, outcome), count in sorted(self.images.items())
        ]
        families = [
            _family("captioner_requests_total", "counter", "Requests answered.", requests),
            _family("captioner_request_seconds", "histogram", "Time to answer a request.", self._histogram()),
            _family("captioner_images_total", "counter", "Images captioned or refused.", images),
            _family("captioner_uptime_seconds", "gauge", "Time since the start.", [("", {}, self.uptime)]),
            *(
                _family(name, "counter" if name.endswith("_total") else "gauge", about, [("", {}, value)])
                for name, (about, value) in gauges.items()
            ),
        ]
        if (memory := resident_bytes()) is not None:
            about = "Memory of the server itself, without its decoding processes."
            families.append(_family("process_resident_memory_bytes", "gauge", about, [("", {}, memory)]))
        return "".join(families)

    def _histogram(self) -> Iterable[Sample]:
        total = 0
        for place, bound in enumerate((*SECONDS, float("inf"))):
            total += self.buckets[place]
            yield "_bucket", {"le": "+Inf" if bound == float("inf") else f"{bound:g}"}, float(total)
        yield "_sum", {}, self.seconds
        yield "_count", {}, float(total)


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        lines.append(f"{name}{suffix}{f'{{{inside}}}' if inside else ''} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resident_bytes() -> float | None:
    """Return the memory that this process holds, None where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        return None
