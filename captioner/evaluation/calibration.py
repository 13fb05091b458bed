"""From a model's captions of a split to a calibration: how likely people would accept a caption.

People are not asked: a caption is accepted where its CIDEr-D reaches what three of four captions by people reach
against the other references of their image. The curve is a logistic one over the mean log probability per word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from captioner.evaluation.metrics.bleu_rouge_cider import CiderD
from captioner.evaluation.scoring import Evaluation, Protocol
from captioner.model.confidence import LOW, Calibration, Group

QUANTILE = 0.25  # of people's captions, which are not accepted
FOLDS = 10  # of the cross-validation
BINS = 10  # of as many captions each, of the expected calibration error
LEAST = 50  # images: fewer tell nothing
_STEPS = 50  # of Newton's, of which a few are enough
_RIDGE = 1e-3  # keeps the slope finite where no caption is on the wrong side

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def calibrate(evaluation: Evaluation, protocol: Protocol) -> Calibration:
    """Return the calibration of a model by the scores of its captions, with how good it is by cross-validation.

    Raises ValueError where it cannot be fitted: too few images or references, captions that are all accepted or all
    refused, or probabilities that do not tell them apart.
    """
    name, search = evaluation.name, protocol.search or {}
    if evaluation.captions is None or search.get("method") != "beam":
        raise ValueError(f"{name} cannot be calibrated: its captions must be those of a model's beam search")
    if len(evaluation.captions) < LEAST:
        few = f"{len(evaluation.captions):,} images are too few"
        raise ValueError(f"{name} cannot be calibrated: {few}; at least {LEAST} are needed")
    accepted_from = float(np.quantile(human_scores(evaluation.references), QUANTILE))
    if accepted_from <= 0:
        raise ValueError(f"{name} cannot be calibrated: the references of an image have too little in common")
    sure = np.array([caption.log_prob / (len(caption.words) + 1) for caption in evaluation.captions])  # (I,)
    accepted = evaluation.image_scores["cider"] >= accepted_from  # (I,)
    try:
        intercept, slope = fit_logistic(sure, accepted)
        likely = cross_validated(sure, accepted)  # (I,)
    except ValueError as error:
        raise ValueError(f"{name} cannot be calibrated: {error}") from None
    low = likely < LOW  # (I,)
    return Calibration(
        str(evaluation.about["checksum"]),
        intercept,
        slope,
        accepted_from,
        QUANTILE,
        protocol.data,
        protocol.split,
        protocol.digest,
        search,
        calibration_error(likely, accepted),
        _group(accepted[low]),
        _group(accepted[~low]),
    )


def describe(calibration: Calibration) -> str:
    """Return what a calibration found, in one line."""
    low, others = calibration.low, calibration.others
    all_accepted = sum(group.images * (group.accepted or 0) for group in (low, others)) / calibration.images
    return (
        f"{all_accepted:.0%} of {calibration.images:,} captions accepted (CIDEr-D of {calibration.accepted_from:.1f} "
        f"or more), {_share(low)} of the {low.images:,} of low confidence, {_share(others)} of the others; "
        f"calibration error {calibration.error:.3f}"
    )


def _share(group: Group) -> str:
    return "none" if group.accepted is None else f"{group.accepted:.0%}"


def _group(accepted: Bools) -> Group:
    return Group(len(accepted), round(float(accepted.mean()), 4) if len(accepted) else None)


def human_scores(references: Sequence[Sequence[str]]) -> Floats:
    """Return the CIDEr-D, in per cent, of tokenised references against the others of their image, (turns x I,).

    Each takes its turn as the caption, as in `Evaluator.evaluate_humans`.
    """
    turns = min(map(len, references))
    if turns < 2:
        raise ValueError("an image has one reference; people need two to be scored")
    scores = []
    for turn in range(turns):
        others = [[*texts[:turn], *texts[turn + 1 :]] for texts in references]
        scores.append(100 * CiderD(others).score([texts[turn] for texts in references]))
    return np.concatenate(scores)


def fit_logistic(values: Floats, accepted: Bools) -> tuple[float, float]:
    """Return intercept and slope, above 0, of the likeliest p = 1 / (1 + exp(-intercept - slope value)), values (I,).

    Raises ValueError where all or none are accepted, or where the likeliest curve does not rise.
    """
    if accepted.all() or not accepted.any():
        raise ValueError(f"{'all' if len(accepted) and accepted.all() else 'no'} captions are accepted")
    mean, deviation = float(values.mean()), float(values.std())
    if not deviation > 0:
        raise ValueError("all captions are equally probable")
    design = np.column_stack([np.ones(len(values)), (values - mean) / deviation])  # (I, 2)
    penalty = np.array([0.0, _RIDGE])
    weights = np.zeros(2)
    for _ in range(_STEPS):
        likely = _logistic(design @ weights)  # (I,)
        gradient = design.T @ (accepted - likely) - penalty * weights
        curvature = design.T @ (design * (likely * (1 - likely))[:, None]) + np.diag(penalty + 1e-12)
        step = np.linalg.solve(curvature, gradient)
        # A long step may lead past the best curve, and from there away from it.
        weights = weights + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    if weights[1] <= 0:
        raise ValueError("its more probable captions are not better")
    slope = float(weights[1]) / deviation
    return float(weights[0]) - slope * mean, slope


def cross_validated(values: Floats, accepted: Bools) -> Floats:
    """Return how likely each caption (I,) is accepted by a curve that was fitted on the other folds."""
    folds = np.random.default_rng(0).permutation(len(values)) % FOLDS  # (I,)
    likely = np.empty(len(values))
    for fold in range(FOLDS):
        here = folds == fold
        intercept, slope = fit_logistic(values[~here], accepted[~here])
        likely[here] = _logistic(intercept + slope * values[here])
    return likely


def calibration_error(likely: Floats, accepted: Bools, bins: int = BINS) -> float:
    """Return the expected calibration error: how far the mean of `likely` (I,) is off the share that was accepted.

    The mean over bins of the ordered captions, each of as many, weighted by how many they are.
    """
    parts = np.array_split(np.argsort(likely, kind="stable"), bins)
    gaps = [abs(float((likely[part] - accepted[part]).sum())) for part in parts]
    return sum(gaps) / len(likely)


def _logistic(values: Floats) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    return found
