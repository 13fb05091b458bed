"""The trainings that `study.py` compares: two studies, each of equally short runs that differ in one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RUNS = "<runs>"  # in a setting: the folder of the study's runs


@dataclass(frozen=True)
class Study:
    """A study: settings over the recipe for all of its trainings, and what each sets otherwise than the first.

    `variations` has them under the question that they help to answer, `seeded` those that are trained with every seed.
    """

    settings: Sequence[str]
    variations: Mapping[str, Mapping[str, Sequence[str]]]
    recipe: str = "flickr8k-soft"
    seeded: Sequence[str] = ()

    @property
    def trainings(self) -> dict[str, Sequence[str]]:
        """What each training sets otherwise than the first, by name."""
        return {name: changes for group in self.variations.values() for name, changes in group.items()}

    @property
    def first(self) -> str:
        """The name of the training that all others are compared with."""
        return next(iter(self.trainings))

    def question(self, name: str) -> str:
        """Return the question that a training helps to answer."""
        return next(question for question, group in self.variations.items() if name in group)


# Half as wide as the recipe and a fifth as long, so that all trainings fit into an hour or so of one core.
SHORT = ["epochs=2", "self_critical.epochs=0", "decoder.hidden=256", "decoder.regions=256", "attention.width=256"]
SHORT += ["validation.overlays=0"]
# The second study is cheaper still: 7 x 7 regions, no mirrored images, larger batches, products in half precision.
CHEAP = [*SHORT, "encoder.name=efficientnet-lite0", "encoder.size=224", "batches.flips=false", "batches.captions=160"]
CHEAP += ["optimiser.rate=2e-3", "optimiser.average=0.99", "schedule.warmup=100", "precision=bfloat16"]
CHEAP += ["validation.every=2", "validation.images=200"]  # the study evaluates all of them in the end
HARD = ["attention.mode=hard", "loss.entropy=0.002", "loss.reward_scale=0.1"]
# The doubly stochastic penalty is soft attention's in the paper; it draws weights towards uniform ones.
FREE = [*HARD, "loss.penalty=0"]
# As many weights as the LSTM has at this width, to within 10 %.
TRANSFORMER = ["decoder.kind=transformer", "attention.score=scaled-dot", "decoder.hidden=192", "decoder.layers=2"]
TRANSFORMER += ["decoder.heads=4", "decoder.feed_forward=640", "decoder.positions=sinusoidal", "decoder.gate=none"]
TRANSFORMER += ["decoder.deep_output=false", "decoder.dropout=0.3", "optimiser.rate=1e-3"]

STUDIES = {
    "parts": Study(
        SHORT,
        {
            "the recipe": {"soft additive": []},
            "score function": {
                name: [f"attention.score={name}"]
                for name in ("concat", "general", "dot", "scaled-dot", "cosine", "location")
            },
            "mode": {mode: [f"attention.mode={mode}"] for mode in ("none", "hard", "gumbel", "local")},
            "doubly stochastic penalty": {"no penalty": ["loss.penalty=0"]},
            "gate": {"no gate": ["decoder.gate=none"], "scalar gate": ["decoder.gate=scalar"]},
        },
    ),
    "lectures": Study(
        CHEAP,
        {
            "the recipe": {"soft": []},
            "mode": {
                "none": ["attention.mode=none"],
                "local": ["attention.mode=local"],
                "gumbel": ["attention.mode=gumbel"],
                "hard": HARD,
                "hard without penalty": FREE,
                "glimpse": ["attention.mode=glimpse"],
            },
            "after two epochs of soft": {
                "soft after soft": [f"start={RUNS}/soft"],
                "glimpse after soft": [f"start={RUNS}/soft", "attention.mode=glimpse"],
            },
            "four times as long": {"hard for long": [*HARD, "epochs=8"]},
            "decoder": {"transformer": TRANSFORMER},
            "input": {"padded": ["encoder.fit=pad", "encoder.size=256"]},  # 48 regions of a photograph of 4 to 3
        },
        seeded=("soft", "none", "glimpse", "transformer"),
    ),
}
