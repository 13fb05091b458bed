"""How a policy learns where to look: from the likelihood of given words, and from the reward of sampled captions."""

from __future__ import annotations

import pytest
import torch
from helpers.toy_learner import CORPUS, VOCABULARY, make_batch, make_learner, some_regions
from torch import Tensor

from captioner.model.glimpse import NATS
from captioner.model.kernels.word_losses import Drawing
from captioner.model.losses import word_losses
from captioner.model.randomness import Randomness
from captioner.model.search.sampling import NEVER_DRAWN, pick, roll_out
from captioner.processes import Processes
from captioner.training.rewards import Rewards
from captioner.training.settings import LossConfig, SelfCriticalConfig

B, N = 4, 3
DRAWING = Drawing(never=NEVER_DRAWN)


def by_word(values: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_of_given_captions_by_hand(reduction: str) -> None:
    loss = LossConfig(reduction, smoothing=0.0, penalty=0.0, reward_scale=0.2)
    learner, batch, regions = make_learner("glimpse", loss=loss), make_batch(), some_regions()
    ids, mask = torch.from_numpy(batch.caption_ids), torch.from_numpy(batch.mask)
    outputs = learner.decoder(regions, ids, Randomness(batch.seed, B), mask)
    nll = by_word(word_losses(outputs.logits, ids[:, :, 1:][mask])[1], mask)  # (B, N, T)
    looked, errors = 0.0, []
    for image in range(B):
        for caption in range(N):
            length = int(mask[image, caption].sum())
            for word in range(length):
                reward = -nll[image, caption, word:length].sum().item()
                value = outputs.fixations.value[image, caption, word].item()
                advantage = reward - value * (length - word)
                looked -= 0.2 * advantage * outputs.fixations.log_density[image, caption, word].item() / (B * N)
                errors.append((value - reward / (length - word)) ** 2 / 2)
    total, numbers = learner.teacher_forcing_loss(batch, regions)
    divisor = int(mask.sum()) / (B * N) if reduction == "mean" else 1
    assert numbers["reinforce"] == pytest.approx(looked / divisor)
    assert numbers["value"] == pytest.approx(sum(errors) / len(errors))
    assert numbers["baseline"] == pytest.approx(outputs.fixations.value[mask].mean().item())
    words = nll.sum().item() / (B * N) / divisor
    assert total.item() == pytest.approx(words + looked / divisor + sum(errors) / len(errors) / NATS**2)


def test_what_is_expected_before_learning_is_of_the_size_of_a_word_s_likelihood() -> None:
    """From zero the value was behind for hundreds of steps: a worse baseline than the mean of all words."""
    learner, batch = make_learner("glimpse"), make_batch()
    ids, mask = torch.from_numpy(batch.caption_ids), torch.from_numpy(batch.mask)
    value = learner.decoder(some_regions(), ids, Randomness(batch.seed, B), mask).fixations.value[mask]
    assert value.mean().item() == pytest.approx(-NATS, abs=0.5 * NATS)


def test_every_weight_learns() -> None:
    learner = make_learner("glimpse", attention={"glimpses": 2})
    learner.teacher_forcing_loss(make_batch(), some_regions())[0].backward()
    missing = [name for name, each in learner.decoder.named_parameters() if each.grad is None or not each.grad.any()]
    assert missing == []


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    batch, regions = make_batch(), some_regions()
    learner = make_learner("glimpse", dropout=0.3)
    whole, numbers = learner.teacher_forcing_loss(batch, regions)
    sums: dict[str, float] = dict.fromkeys(numbers, 0.0)
    for rank in range(5):  # the last has no images
        learner.processes = Processes(rank, 5)
        for name, value in learner.teacher_forcing_loss(batch, regions[rank::5])[1].items():
            sums[name] += value
    assert sums == pytest.approx(numbers)
    assert sums["loss"] == pytest.approx(whole.item())


def test_sampled_captions_of_parts_add_up_to_those_of_the_whole() -> None:
    critic = SelfCriticalConfig(epochs=1, samples=N)
    learner = make_learner("glimpse", self_critical=critic)
    batch, regions, rewards = make_batch(sampled=N), some_regions(), Rewards(CORPUS, VOCABULARY, 8)
    whole, numbers = learner.self_critical_loss(batch, regions, rewards)
    loss = reward = 0.0
    for rank in range(3):
        learner.processes = Processes(rank, 3)
        part, own = learner.self_critical_loss(batch, regions[rank::3], rewards)
        loss, reward = loss + part.item(), reward + own["reward"]
    assert loss == pytest.approx(whole.item())
    assert reward == pytest.approx(numbers["reward"])


def test_sampled_captions_are_read_again_along_the_same_points() -> None:
    """Whatever was drawn is what the scores of the second reading say for the same numbers."""
    learner, regions = make_learner("glimpse", attention={"deviation": 1.0}), some_regions()
    for seed in range(5):
        randomness = Randomness([seed], B)
        looks, again, others = (Randomness([each], B).only_looks() for each in (seed, seed, seed + 99))
        ids, mask = roll_out(learner.decoder, regions, N, 7, randomness, looks=looks)
        lengths = mask.sum(dim=-1)
        assert lengths.unique().numel() > 1, "images do not leave the batch"
        numbers = Randomness([seed], B)
        uniform = torch.stack([numbers.uniform(N, 1) for _ in range(ids.shape[2] - 1)], dim=2)  # (B, N, T, 1)
        matches = []
        for drawn in (again, others):
            logits = learner.decoder(regions, ids, drawn).logits
            words = pick(DRAWING.scores(logits).softmax(dim=-1), uniform)  # (B, N, T)
            matches.append((words == ids[:, :, 1:])[mask].double().mean().item())
        assert matches[0] == 1 > matches[1]


def test_the_self_critical_loss_rewards_points_as_it_rewards_words() -> None:
    critic = SelfCriticalConfig(epochs=1, samples=N)
    learner = make_learner("glimpse", self_critical=critic, loss=LossConfig(reward_scale=0.5), dropout=0.4)
    batch, regions, rewards = make_batch(sampled=N), some_regions(), Rewards(CORPUS, VOCABULARY, 8)
    loss, numbers = learner.self_critical_loss(batch, regions, rewards)
    randomness = Randomness(batch.seed, B)
    ids, mask = roll_out(learner.decoder, regions, N, 8, randomness, looks=randomness.only_looks())
    outputs = learner.decoder(regions, ids, randomness.only_looks())
    log_probs = DRAWING.scores(outputs.logits).log_softmax(dim=-1).gather(-1, ids[:, :, 1:, None]).squeeze(-1)
    reward = rewards.score(ids, batch.images).double()  # (B, N)
    advantage = reward - (reward.sum(dim=1, keepdim=True) - reward) / (N - 1)
    both = log_probs.masked_fill(~mask, 0) + 0.5 * outputs.fixations.log_density * mask
    assert loss.item() == pytest.approx(-(advantage * both.sum(dim=-1)).mean().item())
    assert numbers["reward"] == pytest.approx(reward.mean().item())
    loss.backward()
    assert learner.decoder.attention.policy.reader.weight.grad.abs().max() > 0
