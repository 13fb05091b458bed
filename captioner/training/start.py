"""What a run starts from: new weights, those of another checkpoint, or where it stopped itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from captioner.datasets.vocabulary import SPECIALS
from captioner.model.bundled import find_model
from captioner.model.checkpoint import Checkpoint, load_checkpoint, load_training_state
from captioner.model.decoder import Decoder, make_decoder
from captioner.model.encoders.backbones import is_installed
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.imported import find_imported
from captioner.processes import Processes
from captioner.training.data import Progress, TrainingData, cache_root, prepare_data
from captioner.training.learner import Learner
from captioner.training.recipe import Recipe
from captioner.training.run_folder import RunFolder


@dataclass(frozen=True)
class Position:
    """How far a run has come: whole epochs, batches of the next, and steps in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None  # the highest score so far
    waited: int = 0  # validations since then
    skipped: int = 0  # steps in a row that came to nothing


@dataclass(frozen=True)
class Start:
    """All that a run needs, as it stands at its beginning or where it resumes."""

    encoder: Encoder
    data: TrainingData
    learner: Learner
    position: Position
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
    torch.manual_seed(recipe.seed)  # for weights that start at random; nothing after them uses it
    words = len(data.vocabulary)
    decoder = make_decoder(recipe.decoder, recipe.attention, words, encoder.dimensions, encoder.grid)
    if checkpoint is not None:
        _load_weights(decoder, checkpoint, str(source))
    learner = Learner(recipe, decoder, encoder, processes, device)
    position, log_bytes = _restore(learner, run) if resumed else (Position(), 0)
    return Start(encoder, data, learner, position, log_bytes, _kept(encoder, recipe, checkpoint))


def _kept(encoder: Encoder, recipe: Recipe, start: Checkpoint | None) -> frozenset[str]:
    if start is not None and start.encoder_weights is not None:
        return frozenset(start.encoder_weights)
    installed = is_installed(recipe.encoder.name, recipe.encoder.weights)
    return frozenset(() if installed else encoder.trunk.state_dict())


def _restore(learner: Learner, run: RunFolder) -> tuple[Position, int]:
    state = load_training_state(run.last)
    if state is None:
        raise ValueError(f"{run.last} has no training state; it cannot be resumed")
    learner.restore(state)
    return Position(**state.values["position"]), int(state.values["log_bytes"])


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
    assert start is not None
    if replace(start.encoder, weights=recipe.encoder.weights) != recipe.encoder:
        raise ValueError(f"the checkpoint's encoder is {start.encoder}, not {recipe.encoder}; its weights fit no other")
    return start.build_encoder()


def _load_weights(decoder: Decoder, start: Checkpoint, source: str) -> None:
    try:
        decoder.load_state_dict(_with_new_words(start, decoder.state_dict()))
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
