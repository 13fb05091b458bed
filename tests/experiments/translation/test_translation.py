"""Translation on the package's attention, decoder and search: pieces, sentences, the model, training and scripts."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.photo_folders import ROOT

sys.path.insert(0, str(ROOT / "experiments" / "translation"))
import bleu
import evaluate
import figures
import learner
import pieces
import runs
import sentences
import train
import translate
import translator

from captioner.datasets.vocabulary import END, PAD, UNKNOWN
from captioner.model.config import SCORES
from captioner.model.randomness import Randomness

FOLDER = ROOT / "experiments" / "translation"
TINY = {"embedding": 12, "encoder": 8, "hidden": 16, "width": 8, "dropout": 0.0}
OPTIONS = ["--embedding", "12", "--encoder", "8", "--hidden", "16", "--width", "8", "--merges", "20", "--batch", "8"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sentences of a few letters, and their letters in reverse order as translations; one file is plain text."""
    generator = random.Random(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 40), ("val", 8), ("test_2016_flickr", 8)):
        lines = [" ".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(count)]
        with gzip.open(folder / f"{split}.en.gz", "wt") as file:
            file.write("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line[::-1].upper()}\n" for line in lines))
    return folder


@pytest.mark.parametrize("text", ["Ein Mann, der fällt.", 'l\'homme dit "oui" !', "T-Shirt 42", "a"])
def test_pieces_join_to_the_sentence(text: str) -> None:
    language = pieces.Language.learn([text], 3, lower=False)
    assert language.decode(language.encode(text)) == text
    again = pieces.Language.from_dict(json.loads(json.dumps(language.to_dict())))
    assert again.encode(text) == language.encode(text)


def test_the_most_frequent_pair_is_merged_first() -> None:
    merges = pieces.learn_merges(Counter({"aab": 3, "cab": 4, "cd": 5}), 10)
    assert merges == [("a", "b"), ("c", "d"), ("c", "ab"), ("a", "ab")]


def test_merges_equal_those_of_counting_anew_each_time() -> None:
    generator = random.Random(1)
    counts = {"".join(generator.choices("abc", k=generator.randint(1, 7))): generator.randint(1, 9) for _ in range(60)}
    words, plain = {token: list(token) for token in counts}, []
    while len(plain) < 40:
        pairs: Counter[tuple[str, str]] = Counter()
        for token, word in words.items():
            for pair in pairwise(word):
                pairs[pair] += counts[token]
        pair = min(pairs, key=lambda each: (-pairs[each], each), default=None)
        if pair is None or pairs[pair] < 2:
            break
        plain.append(pair)
        words = {token: pieces.merge(word, pair) for token, word in words.items()}
    assert pieces.learn_merges(counts, 40) == plain


def test_what_was_never_seen_is_unknown() -> None:
    language = pieces.Language.learn(["ab ab"], 5, lower=True)
    assert UNKNOWN in language.encode("AB z")
    assert language.decode(language.encode("AB")) == "ab"


def test_words_are_groups_of_pieces() -> None:
    assert pieces.word_groups(["\u2581Ein", "\u2581Fuß", "ball", ",", "\u2581T", "-", "Shirt"]) == [
        [0], [1, 2], [3], [4], [5], [6],
    ]  # fmt: skip


def test_sentences_are_read_from_plain_and_packed_files(data: Path) -> None:
    sources, targets = sentences.read_parallel(data, "train", "en", "de")
    assert len(sources) == 40
    assert all(target == source[::-1].upper() for source, target in zip(sources, targets, strict=True))


def test_every_sentence_is_in_one_batch_with_its_translation() -> None:
    pairs = [sentences.Pair([4] * length + [END], [1] + [5] * (length + 1) + [END]) for length in range(1, 21)]
    batches = sentences.make_batches(pairs, 6, (0, 1))
    lengths = [(row != PAD).sum().item() for batch in batches for row in batch.source]
    assert sorted(lengths) == list(range(2, 22))
    for batch in batches:
        assert torch.equal((batch.source != PAD).sum(dim=1), batch.words.sum(dim=(1, 2)) - 1)
    assert all(
        torch.equal(one.source, other.source)
        for one, other in zip(batches, sentences.make_batches(pairs, 6, (0, 1)), strict=True)
    )


def test_what_is_too_long_is_cut_off_before_its_end() -> None:
    language = pieces.Language.learn(["a"], 1, lower=True)
    ids = sentences.encode_source("a " * 300, language)
    assert len(ids) == sentences.LONGEST
    assert ids[-1] == END
    assert END not in ids[:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "val.en.gz").unlink(), "has no val.en or val.en.gz"),
        (lambda folder: (folder / "val.de").write_text("eins\nzwei\n"), "8 sentences in en and 2 in de"),
        (lambda folder: (folder / "val.de").write_text("eins\n\ndrei\n"), "val.de:2 is empty"),
        (lambda folder: (folder / "val.de").write_bytes(b"\xff\xfe"), "val.de is not UTF-8"),
        (lambda folder: (folder / "val.en.gz").write_bytes(b"no gzip"), "val.en.gz is not a whole gzip file"),
    ],
)
def test_bad_files_are_named(data: Path, change: object, message: str) -> None:
    change(data)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        sentences.read_parallel(data, "val", "en", "de")


def make_translator(**changes: object) -> translator.Translator:
    torch.manual_seed(0)
    return translator.Translator(translator.Sizes(**{**TINY, **changes}), (9, 11)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [score for score in SCORES if score != "cosine"])
def test_padding_has_no_weight_and_changes_nothing(score: str) -> None:
    model = make_translator(score=score)
    short, long = [4, 5, END], [6, 7, 8, 4, 5, END]
    target = [1, 4, 5, END]
    together = sentences.Batch(sentences.pad([short, long]), sentences.pad([target, target]).unsqueeze(1))
    alone = sentences.Batch(sentences.pad([short]), sentences.pad([target]).unsqueeze(1))
    outputs = model.decoder(model.encoder(together.source), together.target)
    assert (outputs.alpha[0, :, :, len(short) :] == 0).all()
    torch.testing.assert_close(outputs.alpha.sum(dim=-1), torch.ones(2, 1, 3))
    single = model.decoder(model.encoder(alone.source), alone.target)
    torch.testing.assert_close(outputs.logits[:1], single.logits)
    found = model.search([short, long], 3, 1.0)
    assert found[0].ids == model.search([short], 3, 1.0)[0].ids
    assert (found[0].alpha[:, len(short) :] == 0).all()


def test_without_attention_the_last_states_are_all_there_is() -> None:
    model = make_translator(attention=False)
    regions = model.encoder(sentences.pad([[4, 5, END], [6, END]]))
    assert regions.features.shape == (2, 1, 16)
    whole = make_translator().encoder(sentences.pad([[4, 5, END], [6, END]])).features  # the same weights
    torch.testing.assert_close(regions.features[1, 0], torch.cat([whole[1, 1, :8], whole[1, 0, 8:]]))


@pytest.mark.parametrize(("score", "attention"), [("additive", True), ("scaled-dot", True), ("additive", False)])
def test_it_learns_to_reverse_by_heart(score: str, attention: bool) -> None:
    generator = random.Random(0)
    rows = [[generator.randint(4, 7) for _ in range(generator.randint(2, 4))] for _ in range(6)]
    batch = sentences.Batch(
        sentences.pad([[*row, END] for row in rows]), sentences.pad([[1, *row[::-1], END] for row in rows]).unsqueeze(1)
    )
    sizes = {**TINY, "embedding": 16, "encoder": 24, "hidden": 32, "score": score, "attention": attention}
    settings = runs.Settings(**sizes, rate=0.01, warmup=1, smoothing=0.0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    student = learner.Learner(translator.Translator(settings.sizes(), (8, 8)), settings, 150)
    for _ in range(150):
        student.learn(batch)
    found = student.translator.search([[*row, END] for row in rows], 2, 1.0)
    assert [list(each.ids) for each in found] == [row[::-1] for row in rows]


def test_half_precision_learns_nearly_the_same(data: Path) -> None:
    steps = {}
    for precision in runs.PRECISIONS:
        settings = runs.Settings(**TINY, merges=20, batch=8, rate=0.01, warmup=1, precision=precision)  # type: ignore[arg-type]
        run = train.Run(settings, data, data)
        steps[precision] = [run.learner.learn(batch) for batch in sentences.make_batches(run.pairs, 8)]
    single, half = steps["float32"], steps["bfloat16"]
    assert half == pytest.approx(single, rel=0.02)
    assert half != single
    assert half[-1] < half[0]


def test_dropout_follows_from_the_seed() -> None:
    model = make_translator(dropout=0.5)
    source = sentences.pad([[4, 5, END], [6, END]])
    one, same, other = (model.encoder(source, Randomness((seed,), 2)).features for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def run_train(data: Path, run: Path, *arguments: str) -> int:
    return train.main(["--data", str(data), "--run", str(run), *OPTIONS, "--epochs", "2", *arguments])


def test_a_resumed_run_equals_one_that_was_not_interrupted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_train(data, tmp_path / "whole") == 0
    learn = learner.Learner.learn
    interrupted: list[train.Run] = []
    made = train.Run.__init__

    def make(self: train.Run, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]
        interrupted.append(self)

    def stop_after_seven(self: learner.Learner, batch: sentences.Batch) -> float:
        if self.step == 6:  # in the second of two epochs of five steps
            interrupted[-1].stop.set()
        return learn(self, batch)

    monkeypatch.setattr(train.Run, "__init__", make)
    monkeypatch.setattr(learner.Learner, "learn", stop_after_seven)
    assert run_train(data, tmp_path / "parts") == 130
    assert runs.load_tensors(tmp_path / "parts" / runs.LAST)[1]["step"] == 7
    monkeypatch.setattr(learner.Learner, "learn", learn)
    assert run_train(data, tmp_path / "parts", "--resume") == 0
    for name in (runs.LAST, runs.MODEL):
        whole, parts = (runs.load_tensors(tmp_path / run / name)[0] for run in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_run_keeps_its_settings_and_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="holds no run to resume"):
        run_train(data, run, "--resume")
    assert run_train(data, run) == 0
    with pytest.raises(ValueError, match="--resume to continue"):
        run_train(data, run)
    with pytest.raises(ValueError, match=r"score is dot, but additive in .*; a run keeps its settings"):
        run_train(data, run, "--resume", "--score", "dot")


def test_scripts_from_training_to_figures(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["with", "without"]
    assert run_train(data, tmp_path / "with") == 0
    assert run_train(data, tmp_path / "without", "--no-attention") == 0
    folders = [str(tmp_path / name) for name in names]
    assert evaluate.main([*folders, "--data", str(data), "--beam", "2"]) == 0
    evaluation = json.loads((tmp_path / "with" / "evaluation.json").read_text())
    assert evaluation["signature"] in capsys.readouterr().out
    assert "case:mixed" in evaluation["signature"]
    assert sum(each["sentences"] for each in evaluation["lengths"]) == 8
    assert len((tmp_path / "with" / "translations.txt").read_text().splitlines()) == 8
    for suffix in ("svg", "png"):
        assert figures.main([*folders, "--labels", "a", "b", "--out", str(tmp_path / f"lengths.{suffix}")]) == 0
    assert b"<svg" in (tmp_path / "lengths.svg").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b c\n\nd e\n"))
    assert translate.main([folders[0], "--align", str(tmp_path / "figures")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"1.png", "2.png"}
    with pytest.raises(ValueError, match="nothing to draw"):
        translate.main([folders[1], "--align", str(tmp_path / "figures")])


def test_alignments_have_a_row_and_a_column_for_each_word(data: Path, tmp_path: Path) -> None:
    assert run_train(data, tmp_path / "run") == 0
    model, languages, _ = runs.load_model(tmp_path / "run")
    ids = sentences.encode_source("a b c", languages[0])
    read, said, weights = translate.align(languages, ids, model.search([ids], 2, 1.0)[0])
    assert read == ["a", "b", "c", "<end>"]
    assert weights.shape == (len(said), 4)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)


def test_bleu_by_length_has_every_sentence_once() -> None:
    sources = ["one two three", "a " * 9, "b " * 30]
    texts = ["eins zwei drei vier", "ganz etwas anderes", "noch ein langer Satz hier"]
    found = bleu.bleu_by_length(sources, texts, texts)
    assert [each.sentences for each in found] == [1, 1, 1]
    assert [(each.shortest, each.longest) for each in found] == [(3, 3), (9, 9), (30, 30)]
    assert found[0].bleu == pytest.approx(100)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "nowhere", "--run", "run"], 1, "nowhere has no train.en"),
        (["--data", "data", "--run", "run", "--dropout", "1"], 1, "dropout is 1.0"),
        (["--data", "data", "--run", "run", "--to", "en"], 1, "source and target are both en"),
        (["--data", "data", "--run", "run", "--score", "best"], 2, "invalid choice: 'best'"),
        (["--run", "run"], 2, "required: --data"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path,
    data: Path,
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        ended = runs.run_command(lambda: train.main(arguments))
    except SystemExit as exit:  # the parser's
        ended = exit.code
    assert ended == code
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert message in line


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    (tmp_path / runs.MODEL).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model\.safetensors is no file of a translation run"):
        runs.load_model(tmp_path)
    with pytest.raises(ValueError, match="give the folder of a run"):
        runs.load_model(tmp_path / "none")


@pytest.mark.skipif("CAPTIONER_MULTI30K" not in os.environ, reason="CAPTIONER_MULTI30K names no folder of Multi30k")
def test_multi30k_survives_its_pieces() -> None:
    texts = sentences.read_sentences(Path(os.environ["CAPTIONER_MULTI30K"]), "val", "de")
    language = pieces.Language.learn(texts, 500, lower=False)
    assert len(texts) >= 1000
    for text in texts:
        plain = " ".join(text.replace("\u2019", "'").split())
        assert language.decode(language.encode(text)) == plain
