"""What a run starts from: new weights, those of another checkpoint, or where it stopped itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from captioner.datasets.annotations import shown
from captioner.datasets.vocabulary import SPECIALS
from captioner.model.bundled import find_model
from captioner.model.checkpoint import Checkpoint, TrainingState, load_checkpoint, load_training_state
from captioner.model.checks import check_least, check_types
from captioner.model.decoder import Decoder, make_decoder
from captioner.model.encoders.backbones import is_installed
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.imported import find_imported
from captioner.model.weights import check_finite
from captioner.processes import Processes, check_memory
from captioner.training.data import Progress, TrainingData, cache_root, prepare_data
from captioner.training.learner import Learner
from captioner.training.recipe import Recipe
from captioner.training.run_folder import RunFolder

# What each optimiser keeps of a weight that it has changed.
ADAM = {"step", "exp_avg", "exp_avg_sq"}
MOMENTS = {"adamw": ADAM, "adam": ADAM, "rmsprop": {"step", "square_avg"}}
ATTENTION = "attention."  # before the names of its weights
COPIES = 4  # of the decoder's weights: themselves, their gradients, and two moments


@dataclass(frozen=True)
class Position:
    """How far a run has come: whole epochs, batches of the next, and steps in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None  # the highest score so far
    waited: int = 0  # validations since then
    skipped: int = 0  # steps in a row that came to nothing
    start_score: float | None = None  # of the model that training started from, where it is another's


@dataclass(frozen=True)
class Start:
    """All that a run needs, as it stands at its beginning or where it resumes."""

    encoder: Encoder
    data: TrainingData
    learner: Learner
    position: Position
    origin: str  # the fingerprint of the encoder's weights when the run began
    log_bytes: int  # of the log that belong to this run
    kept: frozenset[str]  # the encoder's weights that checkpoints need because nobody could find them elsewhere


def start_run(
    recipe: Recipe,
    run: RunFolder,
    processes: Processes,
    *,
    device: str,
    say: Callable[[str], None],
    progress: Progress,
) -> Start:
    """Return what the run in the folder starts from; its last checkpoint where it has one."""
    resumed = run.can_resume()
    source = run.last if resumed else find_model(recipe.start, setting="start") if recipe.start else None
    checkpoint = load_checkpoint(source) if source else None
    tuned = checkpoint is not None and checkpoint.encoder_weights is not None
    encoder = _same_encoder(recipe, checkpoint) if tuned else _new_encoder(recipe)
    # The caches are of the encoder as it was before this run changed it.
    origin = original_encoder(recipe) if resumed and recipe.tuning.from_epoch else encoder
    fingerprint = origin.fingerprint()
    if resumed:
        _check_origin(recipe, run, checkpoint, fingerprint)
    vocabulary = checkpoint.vocabulary if checkpoint is not None else None
    data = prepare_data(
        recipe,
        origin,
        vocabulary,
        processes,
        extend=recipe.vocabulary.extend and not resumed,
        device=device,
        say=say,
        progress=progress,
    )
    settings = (recipe.decoder, recipe.attention, len(data.vocabulary), encoder.dimensions, encoder.grid)
    with torch.device("meta"):  # shapes without memory
        size = sum(parameter.numel() for parameter in make_decoder(*settings).parameters())
    check_memory(f"training a decoder of {size:,} weights", COPIES * 4 * size)
    torch.manual_seed(recipe.seed)  # for weights that start at random; nothing after them uses it
    decoder = make_decoder(*settings)
    if checkpoint is not None:
        _load_weights(decoder, checkpoint, recipe, str(source), say)
    learner = Learner(recipe, decoder, encoder, processes, device)
    position, log_bytes = _restore(learner, run) if resumed else (Position(), 0)
    return Start(encoder, data, learner, position, fingerprint, log_bytes, _kept(encoder, recipe, checkpoint))


def _kept(encoder: Encoder, recipe: Recipe, start: Checkpoint | None) -> frozenset[str]:
    if start is not None and start.encoder_weights is not None:
        return frozenset(start.encoder_weights)
    installed = is_installed(recipe.encoder.name, recipe.encoder.weights)
    return frozenset(() if installed else encoder.trunk.state_dict())


def _check_origin(recipe: Recipe, run: RunFolder, last: Checkpoint | None, fingerprint: str) -> None:
    """Raise ValueError where the encoder is not the one that the run began with; its file may lie elsewhere now."""
    state = load_training_state(run.last)
    began = state.values.get("encoder") if state is not None else None
    if began is None and last is not None and not recipe.tuning.from_epoch:  # an older run, its encoder as it was
        began = last.encoder_identity.get("weights")
    if began is not None and began != fingerprint:
        raise ValueError(
            f"encoder.weights {recipe.encoder.weights} are not those that {run.folder} was begun with; "
            "keep these, or name another --run"
        )


def _restore(learner: Learner, run: RunFolder) -> tuple[Position, int]:
    state = load_training_state(run.last)
    if state is None:
        raise ValueError(f"{run.last} has no training state; it cannot be resumed")
    try:
        position, log_bytes = _read_position(state.values)
        check_state(learner, state)
    except ValueError as error:
        hint = f"put a copy of {run.last} in its place, or remove it to train from the beginning"
        raise ValueError(f"the training state in {run.last} is damaged: {error}; {hint}") from None
    learner.restore(state)
    return position, log_bytes


def _read_position(values: Mapping[str, Any]) -> tuple[Position, int]:
    match values:
        case {"position": dict(position), "log_bytes": int(log_bytes)} if log_bytes >= 0:
            known = {each.name for each in fields(Position)}
            if not known - {"start_score"} <= set(position) <= known:  # which older runs do not have
                raise ValueError(f"its position has {shown(sorted(position))}; expected {', '.join(sorted(known))}")
            found = Position(**position)
            check_types("position", found)
            check_least("position", found, epoch=0, batch=0, step=0, waited=0, skipped=0)
            return found, log_bytes
    raise ValueError("it has no position, or does not tell how long the log was")


def check_state(learner: Learner, state: TrainingState) -> None:
    """Raise ValueError unless a state has what the learner restores: all tensors, of the right shapes, and values."""
    expected = learner.state()
    for name, tensor in expected.tensors.items():
        _check_tensor(name, state.tensors.get(name), tensor.shape)
    parameters = [parameter for group in learner.optimiser.param_groups for parameter in group["params"]]
    places: dict[int, set[str]] = {}
    for name in state.tensors.keys() - expected.tensors.keys():
        match name.split("."):
            case ["optimiser", number, key] if number.isdecimal() and int(number) < len(parameters):
                places.setdefault(int(number), set()).add(key)
                shape = torch.Size() if key == "step" else parameters[int(number)].shape
                _check_tensor(name, state.tensors[name], shape)
            case _:
                raise ValueError(f"it has {shown(name)}, which this training has no place for")
    wanted = MOMENTS[learner.recipe.optimiser.name]
    for place, keys in places.items():
        if keys != wanted:
            raise ValueError(f"its optimiser has {', '.join(sorted(keys))} of weight {place}, not {sorted(wanted)}")
    _check_values(learner, state.values)


def _check_tensor(name: str, tensor: Tensor | None, shape: torch.Size) -> None:
    if tensor is None:
        raise ValueError(f"it has no {name}")
    if tensor.shape != shape or not tensor.is_floating_point():
        raise ValueError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, expected {tuple(shape)}")
    check_finite("its", {name: tensor})


def _check_values(learner: Learner, values: Mapping[str, Any]) -> None:
    if not {"baseline", "scaler"} <= set(values):
        raise ValueError("it has no baseline, or no scaler")
    baseline, scaler = values["baseline"], values["scaler"]
    if type(baseline) not in (NoneType, int, float) or (type(baseline) is int and abs(baseline) > 2**1000):
        raise ValueError(f"its baseline is {shown(baseline)}; expected a number or null")
    wanted = learner.scaler.state_dict()  # of numbers; none where there is no scaler
    numbers = isinstance(scaler, dict) and all(type(value) in (int, float) for value in scaler.values())
    if not numbers or set(scaler) != set(wanted):
        raise ValueError(f"its scaler is {shown(scaler)}; expected {', '.join(wanted) or 'nothing'}")


def original_encoder(recipe: Recipe) -> Encoder:
    """Return the encoder as it was when the run began."""
    start = load_checkpoint(find_model(recipe.start, setting="start")) if recipe.start else None
    tuned = start is not None and start.encoder_weights is not None
    return _same_encoder(recipe, start) if tuned else _new_encoder(recipe)


def _new_encoder(recipe: Recipe) -> Encoder:
    if recipe.encoder.is_imported:
        return find_imported(cache_root(recipe.data[0]), recipe.encoder.name)
    torch.manual_seed(recipe.seed)  # where its weights start at random
    return load_encoder(recipe.encoder)


def _same_encoder(recipe: Recipe, start: Checkpoint | None) -> Encoder:
    """Return the encoder of a checkpoint that holds its weights, at the size of the recipe."""
    assert start is not None
    size, own_size = recipe.encoder.size, start.encoder.size
    same = replace(start.encoder, weights=recipe.encoder.weights, size=size) == recipe.encoder
    if not same or (size is None and own_size is not None):
        raise ValueError(f"the checkpoint's encoder is {start.encoder}, not {recipe.encoder}; its weights fit no other")
    # Its file may lie elsewhere now.
    encoder = replace(start, encoder=replace(recipe.encoder, size=own_size)).build_encoder()
    return encoder if size is None or size == own_size else encoder.at_size(size)


def _load_weights(decoder: Decoder, start: Checkpoint, recipe: Recipe, source: str, say: Callable[[str], None]) -> None:
    """Give a decoder the weights of a checkpoint; attention of another mode keeps those that both modes have."""
    wanted = decoder.state_dict()
    weights = _with_new_words(start, wanted)
    if (before := start.attention.mode) != (mode := recipe.attention.mode):
        anew = {name: value for name, value in wanted.items() if name.startswith(ATTENTION) and name not in weights}
        weights = {name: value for name, value in weights.items() if name in wanted or not name.startswith(ATTENTION)}
        weights |= anew
        if anew:
            say(f"the model that this one starts from has attention.mode {before}: what only {mode} has starts anew")
    try:
        decoder.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ValueError(f"the weights of {source} do not fit the decoder of these settings: {reason}") from None


def _with_new_words(start: Checkpoint, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the checkpoint's weights, of as many words as are wanted; a new word begins as the mean of the others."""
    known, grown = start.vocabulary, dict(start.weights)
    for name, value in start.weights.items():
        new = len(wanted[name]) - len(known) if name in wanted and wanted[name].ndim else 0
        if new > 0 and value.shape[:1] == (len(known),):
            mean = value[len(SPECIALS) :].float().mean(0, keepdim=True).to(value.dtype)
            grown[name] = torch.cat([value, mean.expand(new, *value.shape[1:])])
    return grown
