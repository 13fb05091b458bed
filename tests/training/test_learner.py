from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.toy_learner import IMAGES, VOCABULARY, L, make_batch, make_learner, some_regions, unpadded
from torch import Tensor

from captioner.model.losses import reinforce_surrogate
from captioner.model.randomness import Randomness
from captioner.processes import Processes
from captioner.training.batches import Batch
from captioner.training.learner import Learner
from captioner.training.settings import LossConfig


def one_by_one(learner: Learner, batch: Batch, regions: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return log probabilities (T, V) and weights (T, L) of each caption, each read on its own, with its targets."""
    found = []
    for image in range(len(batch.images)):
        for ids in batch.caption_ids[image].tolist():
            own = unpadded(ids)
            outputs = learner.decoder(regions[image : image + 1], torch.tensor([[own]]))
            found.append((outputs.logits[0, 0].log_softmax(dim=-1), outputs.alpha[0, 0]))
    return found


@pytest.mark.parametrize("penalty_reduction", ["sum", "mean"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("smoothing", "weight"), [(0.0, 1.0), (0.1, 2.5), (0.0, 0.0)])
def test_losses_are_those_of_the_captions_one_by_one(
    reduction: str, penalty_reduction: str, smoothing: float, weight: float
) -> None:
    loss = LossConfig(reduction, smoothing=smoothing, penalty=weight, penalty_reduction=penalty_reduction)
    learner, batch, regions = make_learner(loss=loss), make_batch(), some_regions()
    captions = [unpadded(ids) for own in batch.caption_ids.tolist() for ids in own]
    assert sorted(captions) == sorted(VOCABULARY.encode(words) for image in IMAGES for words in image.tokenized())
    words, penalties, entropies = [], [], []
    for ids, (log_probabilities, alpha) in zip(captions, one_by_one(learner, batch, regions), strict=True):
        per_word = []
        for step, target in enumerate(ids[1:]):
            spread = log_probabilities[step].sum().item() / len(VOCABULARY)
            per_word.append(-(1 - smoothing) * log_probabilities[step, target].item() - smoothing * spread)
            entropies.append(-sum(a * math.log(a) for a in alpha[step].tolist()))
        words.append(per_word)
        residuals = [(1 - sum(alpha[:, region].tolist())) ** 2 for region in range(L)]
        penalties.append(sum(residuals) if penalty_reduction == "sum" else sum(residuals) / L)
    count = sum(map(len, words))
    cross_entropy = sum(map(sum, words)) / (len(words) if reduction == "sum" else count)
    penalty = sum(penalties) / len(penalties)

    total, numbers = learner.teacher_forcing_loss(batch, regions)
    assert total.item() == pytest.approx(cross_entropy + weight * penalty)
    assert numbers["cross_entropy"] == pytest.approx(cross_entropy)
    assert numbers["penalty"] == pytest.approx(penalty)
    assert numbers["loss"] == total.item()
    assert numbers["attention_entropy"] == pytest.approx(sum(entropies) / count)
    assert numbers["residual"] == pytest.approx(penalty / (L if penalty_reduction == "sum" else 1))
    assert set(numbers) == {"loss", "cross_entropy", "penalty", "attention_entropy", "residual"}


def test_dropout_follows_the_batch_s_seed() -> None:
    learner, regions = make_learner(dropout=0.5), some_regions()
    first = learner.teacher_forcing_loss(make_batch(0), regions)[0].item()
    assert learner.teacher_forcing_loss(make_batch(0), regions)[0].item() == first
    other = replace(make_batch(0), seed=(5, 0, 1, 1))
    assert learner.teacher_forcing_loss(other, regions)[0].item() != first


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    """The shares that several processes would have, of a batch whose rows have different lengths."""
    batch, regions = make_batch(), some_regions()
    for reduction in ("sum", "mean"):
        learner = make_learner(dropout=0.3, loss=LossConfig(reduction))
        whole, numbers = learner.teacher_forcing_loss(batch, regions)
        sums: dict[str, float] = dict.fromkeys(numbers, 0.0)
        for rank in range(3):
            learner.processes = Processes(rank, 3)
            for name, value in learner.teacher_forcing_loss(batch, regions[rank::3])[1].items():
                sums[name] += value
        assert sums == pytest.approx(numbers)
        assert sums["loss"] == pytest.approx(whole.item())


def likelihoods(learner: Learner, batch: Batch, regions: Tensor) -> tuple[Tensor, Any]:
    """Return the log likelihood (B, N) of each caption under the regions that are drawn for the batch."""
    mask = torch.from_numpy(batch.mask)
    ids = torch.from_numpy(batch.caption_ids)
    outputs = learner.decoder(regions, ids, Randomness(batch.seed, len(regions)), mask)
    log_probabilities = outputs.logits.log_softmax(dim=-1)  # (W, V)
    chosen = log_probabilities.gather(1, ids[:, :, 1:][mask][:, None]).squeeze(1)
    found = torch.zeros(mask.shape, dtype=regions.dtype).masked_scatter(mask, chosen).sum(dim=2)
    return found, outputs


@pytest.mark.parametrize(("expected", "reduction"), [(0.0, "sum"), (0.5, "sum"), (1.0, "sum"), (0.5, "mean")])
def test_hard_attention_by_hand(expected: float, reduction: str) -> None:
    loss = LossConfig(reduction, smoothing=0.0, penalty=0.0, entropy=0.3, reward_scale=0.2, baseline_decay=0.9)
    learner, regions = make_learner("hard", attention={"expected": expected}, loss=loss), some_regions()
    baseline = None
    for index in range(3):
        batch = make_batch(index)
        found, outputs = likelihoods(learner, batch, regions)
        mean = found.mean().item()
        baseline = mean if baseline is None else 0.9 * baseline + 0.1 * mean
        sampled = 0
        surrogate = 0.0
        for image in range(4):
            looked = not bool(outputs.expected[image, 0, 0])
            sampled += looked
            for caption in range(3):
                path = entropy = 0.0
                for step in range(int(batch.mask[image, caption].sum())):
                    alpha = outputs.alpha[image, caption, step]
                    path += math.log(alpha[outputs.chosen[image, caption, step]].item())
                    entropy -= sum(a * math.log(a) for a in alpha.tolist())
                reward = 0.2 * (found[image, caption].item() - baseline) if looked else 0.0
                surrogate -= (reward * path + 0.3 * entropy) / 12
        assert sampled == {0.0: 4, 1.0: 0}.get(expected, sampled)
        total, numbers = learner.teacher_forcing_loss(batch, regions)
        assert learner.baseline == pytest.approx(baseline)
        assert numbers["baseline"] == pytest.approx(baseline)
        # Samples weigh the same against words, whether these are added up or averaged.
        divisor = batch.mask.sum() / 12 if reduction == "mean" else 1
        assert numbers["cross_entropy"] == pytest.approx(-mean / divisor)
        assert numbers["reinforce"] == pytest.approx(surrogate / divisor)
        assert total.item() == pytest.approx((-mean + surrogate) / divisor)


def test_only_sampled_images_are_rewarded() -> None:
    loss = LossConfig("sum", smoothing=0.0, penalty=0.0, entropy=0.0, reward_scale=1.0)
    learner = make_learner("hard", attention={"expected": 0.5}, loss=loss)
    batch, regions = make_batch(), some_regions()
    _, outputs = likelihoods(learner, batch, regions)
    looked = ~outputs.expected[:, 0, 0]
    assert 0 < looked.sum() < 4
    alphas: list[Tensor] = []
    forward = learner.decoder.forward

    def keep(*arguments: Any, **options: Any) -> Any:
        outputs = forward(*arguments, **options)
        outputs.alpha.retain_grad()
        alphas.append(outputs.alpha)
        return outputs

    learner.decoder.forward = keep  # type: ignore[method-assign]
    total, numbers = learner.teacher_forcing_loss(batch, regions)
    total.backward()
    gradient = alphas[0].grad
    assert gradient is not None
    told = [own[torch.from_numpy(mask)] for own, mask in zip(gradient, batch.mask, strict=True)]
    # What goes through an expected context does not go through here.
    assert [bool(own.any()) for own in told] == looked.tolist()
    assert numbers["reinforce"] != 0


def test_weights_that_are_exactly_zero_have_finite_gradients() -> None:
    scores = torch.tensor([[[[0.0, -200.0, 3.0]]]], requires_grad=True)
    alpha = scores.softmax(dim=-1)
    assert alpha.min() == 0
    options = {"baseline": -2.0, "reward_scale": 0.1, "entropy_weight": 0.002}
    mask = torch.ones(1, 1, 1, dtype=torch.bool)
    reinforce_surrogate(alpha, torch.tensor([[[0]]]), torch.tensor([[-3.0]]), mask, **options).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


def test_the_gradient_of_hard_attention_reaches_every_weight() -> None:
    learner = make_learner("hard", loss=LossConfig())
    total, _ = learner.teacher_forcing_loss(make_batch(), some_regions())
    total.backward()
    still = [name for name, own in learner.decoder.named_parameters() if own.grad is None or not own.grad.any()]
    assert still == []
