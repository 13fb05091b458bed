"""The folder of a run: its settings, its model, and all that it takes to resume, each file whole or not there.

model.safetensors   the weights that did best on the validation sentences, with the pieces of both languages
last.safetensors    the newest weights, with what training needs to resume
log.jsonl           one line per epoch
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pieces import Language
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from translator import Sizes, Translator

from captioner.files import one_line, open_regular, printable, printable_line, write_whole

PRECISIONS = ("float32", "bfloat16")
MODEL, LAST, LOG = "model.safetensors", "last.safetensors", "log.jsonl"


@dataclass(frozen=True)
class Settings(Sizes):
    """All that a run depends on, beside its sentences."""

    source: str = "en"
    target: str = "de"
    merges: int = 5000  # of each language
    epochs: int = 8
    batch: int = 96
    rate: float = 0.002
    warmup: int = 200  # steps
    smoothing: float = 0.1
    clip: float = 1.0
    average: float = 0.996  # how much of the averaged weights stays at each step
    seed: int = 1
    precision: str = "float32"  # of products; weights are float32 always

    def __post_init__(self) -> None:
        for name in ("merges", "epochs", "batch", "embedding", "encoder", "hidden", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("dropout", "smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to below 1")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; choose from {', '.join(PRECISIONS)}")
        if self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; it must be above 0")
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source}; choose two languages")

    def sizes(self) -> Sizes:
        """Return what the model alone depends on."""
        return Sizes(**{each.name: getattr(self, each.name) for each in fields(Sizes)})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write tensors and JSON content as one file."""
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(whole, {"content": json.dumps(content)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the content that `save_tensors` wrote."""
    open_regular(path).close()
    try:
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {})["content"])
            return {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{printable(str(path))} is no file of a translation run: {one_line(error)}") from None


def save_model(
    path: Path,
    weights: Mapping[str, Tensor],
    settings: Settings,
    languages: tuple[Language, Language],
    scores: Mapping[str, float],
) -> None:
    """Write a model with all that it takes to translate."""
    content = {"settings": asdict(settings), "languages": [each.to_dict() for each in languages], "scores": scores}
    save_tensors(path, weights, content)


def load_model(run: Path) -> tuple[Translator, tuple[Language, Language], Settings]:
    """Return the best model of a run, ready to translate, its languages and its settings."""
    if not (run / MODEL).exists():
        raise ValueError(f"{printable(str(run))} has no {MODEL}; give the folder of a run of train.py")
    weights, content = load_tensors(run / MODEL)
    settings = Settings(**content["settings"])
    source, target = (Language.from_dict(each) for each in content["languages"])
    translator = Translator(settings.sizes(), (len(source.vocabulary), len(target.vocabulary)))
    translator.load_state_dict(weights)
    return translator.eval(), (source, target), settings


def run_command(command: Callable[[], int]) -> int:
    """Run a command; what is wrong with its input becomes one line on stderr and the exit code 1."""
    try:
        return command()
    except (ValueError, OSError) as error:
        print(printable_line(f"error: {one_line(error)}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
