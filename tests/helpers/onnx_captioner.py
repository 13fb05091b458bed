"""Captions from an exported ONNX model with onnxruntime and numpy alone; nothing of captioner or torch is imported.

Greedy search is the loop that the model's README shows; beam search is written here a second time, plainly, for one
image: what `captioner.model.search.beam` does for many.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Found:
    """A caption that ended or was cut off, word by word."""

    ids: tuple[int, ...] = ()
    total: np.float32 = field(default_factory=lambda: np.float32(0))
    log_probs: tuple[float, ...] = ()
    alpha: tuple[Array, ...] = ()
    beta: tuple[float, ...] = ()
    ended: bool = False
    row: int = 0  # of the state that it goes on from


class OnnxCaptioner:
    """The graphs of a folder, and the search settings in its JSON."""

    def __init__(self, folder: Path, **settings: float) -> None:
        self.about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.search = {**self.about["search"], **settings}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # threads that wait for each other take all cores from their neighbours
        self.sessions = {
            name: onnxruntime.InferenceSession(
                str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
            )
            for name in ("encoder", "start", "step")
        }

    def run(self, name: str, values: dict[str, Array]) -> dict[str, Array]:
        """Run a graph on those of the values that it takes."""
        session = self.sessions[name]
        taken = {each.name: values[each.name] for each in session.get_inputs()}
        outputs = [each.name for each in session.get_outputs()]
        return dict(zip(outputs, session.run(outputs, taken), strict=True))

    def start(self, pixels: Array) -> dict[str, Array]:
        """Return what steps need of pixels (S, S, 3) uint8."""
        return self.run("start", self.run("encoder", {"pixels": pixels[None]}))

    def greedy(self, pixels: Array) -> list[int]:
        """Return the word ids of a caption, the best next word each time, by the rules of the search."""
        values, ids = self.start(pixels), []
        while True:
            word = ids[-1] if ids else self.about["markers"]["start"]
            values |= {"words": np.array([[word]], np.int32), "step": np.array(len(ids), np.int32)}
            values |= self.run("step", values)
            values |= {"hidden": values["next_hidden"], "cell": values["next_cell"]}
            word = int(self.allowed(values["log_probs"][0, 0], ids).argmax())
            if word == self.about["markers"]["end"]:
                return ids
            ids.append(word)

    def allowed(self, log_probs: Array, ids: list[int]) -> Array:
        """Return log probabilities (V,) of the words that may follow, -inf for the others."""
        markers, span = self.about["markers"], int(self.search["no_repeat"])
        scores = log_probs.copy()
        if len(ids) == self.search["maximum_length"]:
            scores[:] = -math.inf
            scores[markers["end"]] = log_probs[markers["end"]]
            return scores
        scores[[markers["pad"], markers["start"], markers["unknown"]]] = -math.inf
        if len(ids) < self.search["minimum_length"]:
            scores[markers["end"]] = -math.inf
        if span:
            for place in range(len(ids) - span + 1):
                if ids[place : place + span - 1] == ids[len(ids) - span + 1 :]:
                    scores[ids[place + span - 1]] = -math.inf
        return scores

    def rank(self, found: Found) -> np.float32:
        """Return what captions are ranked by."""
        return np.float32(found.total / np.float32((len(found.ids) + 1) ** self.search["length_power"]))

    def beam(self, pixels: Array, best: int = 1) -> list[Found]:
        """Return the best captions, the best first."""
        width, power = int(self.search["beam"]), self.search["length_power"]
        end, start = (self.about["markers"][name] for name in ("end", "start"))
        values = self.start(pixels)
        beams, finished = [Found()], []
        while beams:
            rows = [beam.row for beam in beams]
            words = [beam.ids[-1] if beam.ids else start for beam in beams]
            values |= {"hidden": values["hidden"][:, rows], "cell": values["cell"][:, rows]}
            length = len(beams[0].ids)
            values |= {"words": np.array([words], np.int32), "step": np.array(length, np.int32)}
            values |= self.run("step", values)
            values |= {"hidden": values["next_hidden"], "cell": values["next_cell"]}
            ways: list[tuple[np.float32, int, int, float]] = []
            for row, beam in enumerate(beams):
                scores = self.allowed(values["log_probs"][0, row], list(beam.ids))
                if np.isneginf(scores).all():
                    finished.append(beam)  # cut off: no word may follow
                for word in np.argsort(-scores, kind="stable")[: 2 * width]:
                    if scores[word] > -math.inf:
                        ways.append((beam.total + scores[word], row, int(word), float(scores[word])))
            ways = sorted(ways, key=lambda way: -way[0])[: 2 * width]
            finished += [self.extended(beams[row], total, end) for total, row, word, _ in ways[:width] if word == end]
            going = [way for way in ways if way[2] != end][:width]
            leaders = sorted((self.rank(each) for each in finished if each.ended), reverse=True)[:best]
            bound = max((way[0] for way in going), default=-math.inf)
            bound /= (self.search["maximum_length"] + 1) ** power  # more words only lower it
            if sum(each.ended for each in finished) >= width or (len(leaders) == best and bound <= leaders[-1]):
                going = []
            beams = [
                self.extended(beams[row], total, word, score, values["alpha"][0, row], values["beta"][0, row], row)
                for total, row, word, score in going
            ]
        return sorted(finished, key=lambda each: (not each.ended, -self.rank(each)))[:best]

    def extended(
        self,
        beam: Found,
        total: np.float32,
        word: int,
        score: float = 0.0,
        alpha: Any = None,
        beta: Any = 0,
        row: int = 0,
    ) -> Found:
        """Return a caption and one more word, or ended where the word is the end marker."""
        if word == self.about["markers"]["end"]:
            return Found(beam.ids, total, beam.log_probs, beam.alpha, beam.beta, ended=True)
        return Found(
            (*beam.ids, word),
            total,
            (*beam.log_probs, score),
            (*beam.alpha, alpha),
            (*beam.beta, float(beta)),
            row=row,
        )

    def words(self, ids: tuple[int, ...] | list[int]) -> tuple[str, ...]:
        """Return the words of ids."""
        return tuple(self.about["words"][number] for number in ids)
