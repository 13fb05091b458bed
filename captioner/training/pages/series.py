"""What pages of runs draw: the curves of a log, thinned as they grow, and its validations; no torch here."""

from __future__ import annotations

from collections.abc import Iterable

from captioner.training.log import Line, is_validation, tagged

MOST = 400  # points of a curve: about as many as a chart has pixels across


class Series:
    """Points of one curve; where they become many, each stands for the mean of as many neighbours."""

    def __init__(self) -> None:
        self._bins: list[tuple[int, float, float]] = []  # how many, the sum of their steps and of their values
        self._width = 1

    def add(self, step: float, value: float) -> None:
        """Take one more point."""
        if self._bins and self._bins[-1][0] < self._width:
            count, steps, values = self._bins[-1]
            self._bins[-1] = (count + 1, steps + step, values + value)
            return
        if len(self._bins) == MOST:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
            self._width *= 2
        self._bins.append((1, step, value))

    def points(self) -> list[tuple[float, float]]:
        """Return steps and values."""
        return [(steps / count, values / count) for count, steps, values in self._bins]


class RunCurves:
    """The numbers of a log by their tags (train/loss), and the lines of its validations."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.series: dict[str, Series] = {}
        self.validations: list[Line] = []
        self.step = 0
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Take one more line of the log."""
        self.step = line["step"]
        if is_validation(line):
            self.validations.append(line)
        for tag, value in tagged(line).items():
            self.series.setdefault(tag, Series()).add(line["step"], value)

    def best(self, metric: str) -> tuple[float, int] | None:
        """Return the highest score of a metric, the mean over all sets of a validation, and its epoch."""
        by_epoch: dict[int, list[float]] = {}
        for line in self.validations:
            if not line["epoch"]:
                continue  # what training started from
            by_epoch.setdefault(line["epoch"], []).append(float(line[metric]))
        means = {epoch: sum(scores) / len(scores) for epoch, scores in by_epoch.items()}
        best = max(means, key=lambda epoch: means[epoch], default=None)  # the first where several are as good
        return None if best is None else (means[best], best)

    def samples(self) -> dict[int, list[Line]]:
        """Return the sample captions of each validated epoch, of all sets."""
        found: dict[int, list[Line]] = {}
        for line in self.validations:
            for sample in line.get("samples", ()):
                found.setdefault(line["epoch"], []).append(sample)
        return found
