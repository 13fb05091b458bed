from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.decoder_kinds import TRANSFORMER
from helpers.toy_learner import CORPUS, VOCABULARY, make_batch, make_learner, some_regions, unpadded
from torch import Tensor

from captioner.datasets.vocabulary import END, PAD, START, UNKNOWN
from captioner.evaluation.metrics.bleu_rouge_cider import bleu
from captioner.model.kernels import precision as kernel
from captioner.model.randomness import Randomness
from captioner.model.search.sampling import roll_out
from captioner.training.batches import EpochPlan
from captioner.training.learner import Learner
from captioner.training.rewards import Rewards
from captioner.training.settings import BatchConfig, SelfCriticalConfig

# Decoders by their settings.
OTHERS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "two layers": {"decoder": {"layers": 2}},
    "transformer": {"decoder": {**TRANSFORMER, "positions": "learned"}, "attention": {"score": "scaled-dot"}},
}


class WordCount:
    """A reward that counts how often captions say one word, or gives all of them the same."""

    longest = 6

    def __init__(self, word: str | None) -> None:
        self.word = VOCABULARY.encode([word])[1] if word else None

    def score(self, caption_ids: Tensor, images: Sequence[int]) -> Tensor:
        assert len(caption_ids) == len(images)
        if self.word is None:
            return torch.full(caption_ids.shape[:2], 0.7)
        return (caption_ids == self.word).sum(dim=-1).float()


def make_critic(baseline: str = "mean", samples: int = 5, temperature: float = 1.0, **sections: Any) -> Learner:
    critic = SelfCriticalConfig(epochs=1, samples=samples, baseline=baseline, temperature=temperature)
    return make_learner(self_critical=critic, **sections)


def test_rewards_prefer_the_image_s_own_captions() -> None:
    rewards = Rewards(CORPUS, VOCABULARY, 20)
    own, other = (VOCABULARY.encode(f"a {animal} sleeps on the grass".split()) for animal in ("cat", "dog"))
    long = [*own, *[PAD] * 3]
    ids = torch.tensor([[long, [*other, *[PAD] * 3], [START, END, *[PAD] * (len(long) - 2)]]])
    cat, wrong, empty = rewards.score(ids, [1])[0].tolist()
    assert 10 > cat > wrong > empty == 0
    assert rewards.score(ids, [0])[0, 0] < cat
    expected = rewards.cider.score(["a cat sleeps on the grass <end>"], [1])
    assert cat == pytest.approx(float(expected[0]))


def test_bleu_is_part_of_the_reward_where_it_has_a_weight() -> None:
    plain, mixed = Rewards(CORPUS, VOCABULARY, 20), Rewards(CORPUS, VOCABULARY, 20, SelfCriticalConfig(bleu_weight=3.0))
    said = (["a", "cat", "sleeps", "on", "the", "dog"], ["dog"] * 6)
    ids = torch.tensor([[VOCABULARY.encode(words)] for words in said])  # (B, N, T + 1), one caption of two images
    text, references = "a cat sleeps on the dog <end>", plain.cider.references
    expected = [
        3 * bleu([own], [references[image]]).captions.mean()
        for own, image in ((text, 1), (" ".join(["dog"] * 6 + ["<end>"]), 0))
    ]
    assert (mixed.score(ids, [1, 0]) - plain.score(ids, [1, 0])).flatten().tolist() == pytest.approx(expected)
    assert expected[0] > 1.0 > expected[1]


def test_words_said_again_cost_what_they_are_told_to() -> None:
    plain, strict = Rewards(CORPUS, VOCABULARY, 20), Rewards(CORPUS, VOCABULARY, 20, SelfCriticalConfig(repeats=0.25))
    said = {
        "a cat on a horse": 0,  # "a" says nothing
        "a cat on the cat": 1,
        "dog dog dog eats a dog": 3,
        "the bird eats grass on grass the bird eats": 3,
        "": 0,
    }
    captions = [VOCABULARY.encode(text.split()) for text in said]
    longest = max(map(len, captions))
    ids = torch.tensor([[[*own, *[PAD] * (longest - len(own))] for own in captions]])  # (1, N, T + 1)
    assert strict.repeats(ids)[0].tolist() == list(said.values())
    costs = (plain.score(ids, [1]) - strict.score(ids, [1]))[0].tolist()
    assert costs == pytest.approx([0.25 * count for count in said.values()])


def test_a_caption_that_breaks_off_is_worth_less_than_one_that_ends() -> None:
    rewards = Rewards(CORPUS, VOCABULARY, 20)
    ended = VOCABULARY.encode(["a", "cat", "sleeps", "on", "the", "grass"])
    ids = torch.tensor([[ended, [PAD if word == END else word for word in ended]]])
    whole, cut = rewards.score(ids, [1])[0].tolist()
    assert whole > cut


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(("baseline", "temperature"), [("mean", 1.0), ("greedy", 1.0), ("mean", 0.4)])
def test_the_self_critical_loss_by_hand(baseline: str, temperature: float, kind: str) -> None:
    learner = make_critic(baseline, temperature=temperature, **OTHERS[kind])
    batch, regions = make_batch(sampled=5), some_regions()
    rewards = WordCount("a")
    loss, numbers = learner.self_critical_loss(batch, regions, rewards)  # type: ignore[arg-type]
    ids, _ = roll_out(learner.decoder, regions, 5, 6, Randomness(batch.seed, 4), temperature)
    best, _ = roll_out(learner.decoder, regions, 1, 6)
    total, entropies = 0.0, []
    scores = rewards.score(ids, batch.images)
    greedy = rewards.score(best, batch.images)
    for image in range(4):
        for sample in range(5):
            own = ids[image, sample].tolist()
            own = unpadded(own) if END in own else own
            outputs = learner.decoder(regions[image : image + 1], torch.tensor([[own]]))
            logits = outputs.logits[0, 0]
            entropies += torch.special.entr(outputs.alpha[0, 0]).sum(dim=-1).tolist()
            logits[:, [PAD, START, UNKNOWN]] = -torch.inf  # these are never drawn
            scores_of_words = (logits / temperature).log_softmax(dim=-1)
            log_probability = scores_of_words.gather(1, torch.tensor(own[1:])[:, None]).sum().item()
            others = [scores[image, each].item() for each in range(5) if each != sample]
            level = sum(others) / 4 if baseline == "mean" else greedy[image, 0].item()
            total -= (scores[image, sample].item() - level) * log_probability / 20
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert numbers["reward"] == pytest.approx(scores.mean().item())
    assert numbers["loss"] == loss.item()
    told = learner.optimise(loss, numbers, (0.0, 0.0), 1, flag=False)
    assert told["attention_entropy"] == pytest.approx(sum(entropies) / len(entropies))
    assert told["length"] == pytest.approx(len(entropies) / 20)
    assert "caption_entropy" not in told


def test_samples_of_equal_worth_teach_nothing() -> None:
    learner, batch = make_critic(), make_batch(sampled=5)
    loss, numbers = learner.self_critical_loss(batch, some_regions(), WordCount(None))  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    loss.backward()
    assert all(own.grad is None or own.grad.abs().max() < 1e-6 for own in learner.decoder.parameters())
    assert numbers["reward"] == pytest.approx(numbers["baseline"]) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("baseline", "kind"), [("mean", "lstm"), ("greedy", "lstm"), ("mean", "two layers"), ("mean", "transformer")]
)
def test_training_on_rewards_raises_them(baseline: str, kind: str) -> None:
    learner = make_critic(baseline, 6, kind=torch.float32, scale=1.5, **OTHERS[kind])
    rewards, regions = Rewards(CORPUS, VOCABULARY, 8), some_regions(kind=torch.float32)
    found = []
    for step in range(60):
        batch = EpochPlan(CORPUS, BatchConfig(24), 0, step, captions=6)[0]
        loss, numbers = learner.self_critical_loss(batch, regions[batch.images], rewards)
        found.append(learner.optimise(loss, numbers, (0.02, 0.0), step, flag=False)["reward"])
    assert np.mean(found[-10:]) > 1.3 * np.mean(found[:10])


def test_half_precision_learns_from_rewards_as_single_does() -> None:
    gradients = []
    for precision in ("float32", "bfloat16"):
        learner = make_critic(kind=torch.float32, precision=precision)
        rewards = WordCount("a")
        loss, _ = learner.self_critical_loss(make_batch(sampled=5), some_regions(kind=torch.float32), rewards)  # type: ignore[arg-type]
        loss.backward()
        missing = [name for name, own in learner.decoder.named_parameters() if own.grad is None]
        assert missing == [], precision
        gradients.append(torch.cat([own.grad.flatten() for own in learner.decoder.parameters()]))  # type: ignore[union-attr]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.9


def test_half_precision_measures_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_fast_bfloat16", lambda device: True)
    single, half = (make_learner(kind=torch.float32, precision=name) for name in ("float32", "bfloat16"))
    found = [each.teacher_forcing_loss(make_batch(), some_regions(kind=torch.float32))[1] for each in (single, half)]
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert found[1] != found[0]
