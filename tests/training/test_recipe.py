from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.photo_folders import ROOT

from captioner.model.config import AttentionConfig, DecoderConfig, EncoderConfig
from captioner.training.bundled_recipes import RECIPES, bundled_recipes, find_recipe
from captioner.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict, to_yaml
from captioner.training.settings import (
    BatchConfig,
    DataConfig,
    LossConfig,
    OptimiserConfig,
    SelfCriticalConfig,
    TuningConfig,
)

NAMES = [
    *(f"{data}-{recipe}" for data in ("flickr8k", "coco") for recipe in ("soft", "hard", "paper-soft", "paper-hard")),
    *(
        "coco-tuned",
        "coco-best",
        "coco-fast",
        "coco-flickr8k",
        "flickr8k-from-coco",
        "finetune",
        "tiny",
    ),
    "flickr8k-transformer",
]
DECODER_KEYS = "embedding, hidden, regions, normalise, gate, deep_output, tied, dropout, region_dropout, "
DECODER_KEYS += "layers, kind, heads, feed_forward, positions"
TOP_KEYS = (
    "data, seed, epochs, encoder, attention, decoder, vocabulary, loss, optimiser, schedule, batches, tuning, "
    "self_critical, validation, precision, start, save_every, tensorboard"
)
DATA_KEYS = "root, format, restval_to_train, train, validation, features, tolerance"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that messages name short paths


def write(text: str, name: str = "x.yaml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def message_of(path: str, *overrides: str) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def unlike_default() -> Recipe:
    """Return a recipe in which every kind of value is there, and text that YAML could mistake for another."""
    return Recipe(
        data=(
            DataConfig("1e5", format="karpathy", restval_to_train=True, train="yes", features="null", tolerance=0.0),
            DataConfig("dätä: # '\"\n\x85 \u2028", validation="0x1F"),
        ),
        seed=2**63 - 1,
        encoder=EncoderConfig(size=224, layer="stride16"),
        optimiser=OptimiserConfig(rate=1e-7, weight_decay=1e20),
        tuning=TuningConfig(from_epoch=13),
        self_critical=SelfCriticalConfig(epochs=1, samples=1, baseline="greedy"),
        start="2014-01-01",
        tensorboard=True,
    )


def test_every_recipe_is_there() -> None:
    assert list(bundled_recipes()) == sorted(NAMES)
    assert not list((ROOT / "experiments").glob("*.yaml"))  # one place only


def test_a_recipe_is_found_by_name_and_a_file_where_its_path_says_so() -> None:
    write("epochs: 3\ndata: {root: mine}", "tiny")
    assert find_recipe("tiny") == RECIPES / "tiny.yaml"
    assert load_recipe("flickr8k-soft").data[0].root == "data/flickr8k"
    assert load_recipe("./tiny").epochs == 3
    assert load_recipe(Path("tiny")).epochs == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flickr8k-sotf", r"unknown recipe 'flickr8k-sotf' \(did you mean flickr8k-soft\?\); choose from coco-best, "),
        ("x", "unknown recipe 'x'; choose from coco-best, coco-fast, .*, tiny, or name a YAML file"),
        ("experiments/tiny.yaml", "experiments/tiny.yaml is not there; the recipe tiny comes with captioner"),
        ("mine.yaml", "mine.yaml is not there"),
        ("my/recipe", "my/recipe is not there"),
    ],
)
def test_a_recipe_that_is_not_there_is_told(name: str, message: str) -> None:
    assert re.match(message, message_of(name))


def test_a_base_may_be_a_bundled_recipe() -> None:
    assert load_recipe(write("base: tiny\nepochs: 9")).encoder == load_recipe("tiny").encoder
    assert load_recipe(write("base: tiny\nepochs: 9")).epochs == 9
    Path("tiny").write_text("epochs: 3\ndata: {root: mine}")
    assert load_recipe(write("base: tiny")).data[0].root == "mine"  # a file beside comes first


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_loads_and_tells_how_to_run_it(name: str) -> None:
    path = RECIPES / f"{name}.yaml"
    recipe = load_recipe(path, ["data.0.root=somewhere"])
    assert recipe.data[0].root == "somewhere"
    assert f"# captioner train {name}" in path.read_text(encoding="utf-8")
    if name != "tiny":
        assert recipe.attention.mode == ("hard" if name.endswith("-hard") else "soft")
        assert recipe.data[0].restval_to_train == name.startswith("coco")


def test_recipes_that_follow_one_another() -> None:
    both = load_recipe(RECIPES / "coco-flickr8k.yaml")
    assert [data.root for data in both.data] == ["data/coco", "data/flickr8k"]
    assert [data.restval_to_train for data in both.data] == [True, False]
    tuned = load_recipe(RECIPES / "coco-tuned.yaml")
    assert (tuned.tuning.from_epoch, tuned.tuning.blocks) == (1, 6)
    after = load_recipe(RECIPES / "flickr8k-from-coco.yaml")
    assert tuned.start == "runs/coco-soft"
    assert (both.start, after.start) == ("runs/coco-tuned", "coco-best")
    assert after.vocabulary.extend


@pytest.mark.parametrize("data", ["flickr8k", "coco"])
def test_the_paper_s_recipes_are_the_paper_s(data: str) -> None:
    soft = load_recipe(RECIPES / f"{data}-paper-soft.yaml")
    assert soft.encoder == EncoderConfig("vgg19", 224, "stride16", "crop")
    assert (soft.loss.reduction, soft.loss.penalty_reduction, soft.loss.penalty) == ("sum", "sum", 1.0)
    assert (soft.decoder.gate, soft.decoder.regions, soft.decoder.tied) == ("scalar", 0, False)
    assert soft.optimiser.name == {"flickr8k": "rmsprop", "coco": "adam"}[data]
    assert (soft.batches.captions, soft.batches.captions_per_image) == (64, 1)
    hard = load_recipe(RECIPES / f"{data}-paper-hard.yaml")
    assert replace(hard, attention=soft.attention, loss=replace(hard.loss, penalty=1.0)) == soft


def test_the_default_recipe_differs_from_the_defaults_in_little() -> None:
    recipe = load_recipe(RECIPES / "flickr8k-soft.yaml")
    default = Recipe(recipe.data)
    assert (recipe.attention, recipe.decoder, recipe.loss) == (default.attention, default.decoder, default.loss)
    assert recipe.optimiser == replace(default.optimiser, average=0.999)
    assert recipe.batches == replace(default.batches, flips=True)


@pytest.mark.parametrize("recipe", [Recipe((DataConfig("a"),)), unlike_default()], ids=["default", "unlike"])
def test_round_trips(recipe: Recipe) -> None:
    values = recipe_to_dict(recipe)
    assert recipe_from_dict(values) == recipe
    assert recipe_from_dict(json.loads(json.dumps(values))) == recipe
    assert load_recipe(write(to_yaml(recipe))) == recipe


def test_a_dictionary_has_every_field_in_order() -> None:
    def names(config: Any) -> dict[str, Any]:
        return {own.name: names(getattr(config, own.name)) for own in fields(config)} if is_dataclass(config) else {}

    def keys(values: Any) -> dict[str, Any]:
        return {name: keys(value) for name, value in values.items()} if isinstance(values, dict) else {}

    recipe = unlike_default()
    written = yaml.safe_load(to_yaml(recipe))  # as any other reader would
    assert written == recipe_to_dict(recipe)
    assert str(keys(written)) == str(names(recipe))  # as text, which has an order


def test_settings_come_from_the_file_and_the_rest_are_defaults() -> None:
    path = write("data: {root: a, format: null}\nepochs: 3\ndecoder:\n  dropout: 0\n  tied: no\n")
    expected = Recipe((DataConfig("a"),), epochs=3, decoder=DecoderConfig(dropout=0.0, tied=False))
    recipe = load_recipe(path)
    assert recipe == expected
    assert type(recipe.decoder.dropout) is float


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1.e-3", "0.1e-2", "10e-4", "+1e-03", ".1e-2", "0.001"])
def test_numbers_with_exponents_are_numbers(number: str) -> None:
    path = write(f"data: {{root: a}}\noptimiser: {{rate: {number}}}\n")
    assert load_recipe(path).optimiser.rate == 0.001
    assert load_recipe(path, [f"tuning.rate={number}"]).tuning.rate == 0.001


def test_quoted_numbers_are_text() -> None:
    assert load_recipe(write("data: {root: '1e5'}")).data[0].root == "1e5"


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    Path("x.yaml").write_bytes(b"\xef\xbb\xbfdata: {root: a}\n")
    assert load_recipe("x.yaml").data == (DataConfig("a"),)


def test_overrides_are_applied_in_order() -> None:
    path = write("data: {root: a}\ndecoder: {hidden: 64, embedding: 32}\n")
    overrides = [
        "decoder.hidden=128",
        "decoder.hidden=256",
        "attention={mode: hard, width: 8}",
        "attention.width=16",
        "batches.flips=true",
        "encoder.layer=stride16",
        " start = runs/a=b ",
        "encoder.fit=",
    ]
    recipe = load_recipe(path, overrides)
    assert recipe.decoder == DecoderConfig(hidden=256, embedding=32)
    assert recipe.attention == AttentionConfig("hard", width=16)
    assert recipe.batches == BatchConfig(flips=True)
    assert recipe.encoder == EncoderConfig(layer="stride16", fit=None)
    assert recipe.start == "runs/a=b"


ONE, TWO = "data: {root: a, train: t}", "data: [{root: a}, {root: b}]"


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        (ONE, "data.root=/x", (DataConfig("/x", train="t"),)),
        (ONE, "data.0.root=/x", (DataConfig("/x", train="t"),)),
        (ONE, "data={root: x}", (DataConfig("x", train="t"),)),
        (ONE, "data=[{root: x}]", (DataConfig("x"),)),
        (ONE, "data=[{root: x}, {root: y}]", (DataConfig("x"), DataConfig("y"))),
        ("data: [{root: a}]", "data.root=/x", (DataConfig("/x"),)),
        ("epochs: 1", "data.root=/x", (DataConfig("/x"),)),
        ("data: []", "data.root=/x", (DataConfig("/x"),)),
        (TWO, "data.1.root=/x", (DataConfig("a"), DataConfig("/x"))),
        (TWO, "data.0={train: t}", (DataConfig("a", train="t"), DataConfig("b"))),
        (TWO, "data={root: x}", (DataConfig("x"),)),
    ],
)
def test_overrides_reach_every_data_set(text: str, override: str, expected: tuple[DataConfig, ...]) -> None:
    assert load_recipe(write(text), [override]).data == expected


def test_a_file_lies_over_its_base() -> None:
    Path("bases").mkdir()
    write("data: {root: a, train: t}\nepochs: 5\nloss: {penalty: 2, smoothing: 0}\n", "bases/lowest.yaml")
    write("base: lowest.yaml\ndata: {root: b}\nloss: {penalty: 3}\n", "bases/middle.yaml")
    recipe = load_recipe(write("base: bases/middle.yaml\nloss: {entropy: 0}\n"), ["epochs=6"])
    assert recipe.data == (DataConfig("b", train="t"),)
    assert recipe.loss == LossConfig(penalty=3.0, smoothing=0.0, entropy=0.0)
    assert recipe.epochs == 6


def test_a_list_replaces_that_of_the_base() -> None:
    write(TWO, "low.yaml")
    assert load_recipe(write("base: low.yaml\ndata: [{root: c}]")).data == (DataConfig("c"),)


def test_bases_that_go_in_a_circle() -> None:
    write("base: b.yaml", "a.yaml")
    write("base: a.yaml", "b.yaml")
    assert message_of("a.yaml") == "a.yaml is its own base: a.yaml, b.yaml, a.yaml"


def test_what_is_wrong_in_a_base_is_said_of_the_base() -> None:
    write("decoder: {hidden: big}", "low.yaml")
    path = write("base: low.yaml\ndata: {root: a}")
    assert message_of(path) == "low.yaml: decoder.hidden is 'big' (text); expected a whole number"
    assert message_of(write("base: lo.yaml")) == "lo.yaml is not there, the base of x.yaml; did you mean low.yaml?"
    assert message_of(write("base: 3")) == "x.yaml: base is 3; expected text, the name of another file"
    assert message_of(write("base:")) == "x.yaml: base is null; expected text, the name of another file"
    assert message_of(write("base: .")) == ". is a folder, the base of x.yaml; expected a YAML file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.yaml is empty; expected settings, such as data and epochs"),
        (b"# nothing yet\n", "x.yaml is empty; expected settings, such as data and epochs"),
        (b"epochs", "x.yaml holds 'epochs' (text); expected settings, such as data and epochs"),
        (b"- epochs: 3\n", "x.yaml holds a list; expected settings, such as data and epochs"),
        (b"data: caf\xe9", "x.yaml is not UTF-8: byte 0xe9 at 9"),
        (b"seed: 1\nepochs: 2: 3\n", "x.yaml: not valid YAML at line 2: mapping values are not allowed here"),
        (b"seed: 1\n\tepochs: 2\n", "x.yaml: not valid YAML at line 2: while scanning for the next token, "
         "found character '\\t' that cannot start any token"),
        (b"seed: 1\nseed: 2\n", "x.yaml: not valid YAML at line 2: the key 'seed' is there twice"),
        (b"decoder:\n  tied: no\n  tied: no", "x.yaml: not valid YAML at line 3: the key 'tied' is there twice"),
        (b"seed: 1\n---\nseed: 2\n", "x.yaml: not valid YAML at line 2: expected a single document in the stream, "
         "but found another document"),
        (b"start: 2024-99-99", "x.yaml: not valid YAML: month must be in 1..12"),
        (b"tensorboard: !!bool maybe", "x.yaml: not valid YAML: 'maybe'"),
        (b"\"a\\nb\": 1", f"x.yaml: unknown key 'a\\nb'; choose from {TOP_KEYS}"),
    ],
)  # fmt: skip
def test_files_that_hold_no_settings(content: bytes, message: str) -> None:
    Path("x.yaml").write_bytes(content)
    assert message_of("x.yaml") == message


@pytest.mark.parametrize("text", ["data: &a [*a]", "data: " + 5000 * "["])
def test_files_without_a_bottom(text: str) -> None:
    assert message_of(write(text)) == "x.yaml: not valid YAML: it is nested too deeply"


def test_a_file_that_is_not_there() -> None:
    assert message_of("x.yaml") == "x.yaml is not there"
    write("", "tiny.yaml")
    assert message_of("tny.yaml") == "tny.yaml is not there; did you mean tiny.yaml?"
    assert message_of("nowhere/x.yaml") == "nowhere/x.yaml is not there"
    assert message_of(".") == ". is a folder; expected a YAML file"


MISTAKES = [
    # Keys
    ("decodr: {hidden: 1}", f"unknown key decodr (did you mean decoder?); choose from {TOP_KEYS}"),
    ("decoder: {hiden: 1}", f"unknown key decoder.hiden (did you mean hidden?); choose from {DECODER_KEYS}"),
    ("decoder: {zzz: 1}", f"unknown key decoder.zzz; choose from {DECODER_KEYS}"),
    ("decoder: {1: 1}", f"unknown key decoder.1; choose from {DECODER_KEYS}"),
    ("data: [{root: a}, {rot: b}]", f"unknown key data.1.rot (did you mean root?); choose from {DATA_KEYS}"),
    ("epochs: 3", "data is missing; write it into the file, or give data=VALUE"),
    ("data: {train: t}", "data.root is missing; write it into the file, or give data.root=VALUE"),
    ("data: [{root: a}, {}]", "data.1.root is missing; write it into the file, or give data.1.root=VALUE"),
    # Types
    ("decoder: {hidden: big}", "decoder.hidden is 'big' (text); expected a whole number"),
    ("decoder: {hidden: 2.0}", "decoder.hidden is 2.0; expected a whole number"),
    ("decoder: {hidden: true}", "decoder.hidden is true; expected a whole number"),
    ("decoder: {hidden: null}", "decoder.hidden is null; expected a whole number"),
    ("decoder: {hidden: [1]}", "decoder.hidden is a list; expected a whole number"),
    ("decoder: {dropout: no}", "decoder.dropout is false; expected a number"),
    ("decoder: {dropout: .nan}", "decoder.dropout is nan; expected a finite number"),
    ("optimiser: {rate: 1e999}", "optimiser.rate is inf; expected a finite number"),
    ("decoder: {tied: 1}", "decoder.tied is 1; expected true or false"),
    ("decoder: {gate: {a: 1}}", "decoder.gate is a mapping; expected text"),
    ("start: 2014-01-01", "start is 2014-01-01 (date); expected text or null"),
    ("encoder: {size: large}", "encoder.size is 'large' (text); expected a whole number or null"),
    ("decoder: big", f"decoder is 'big' (text); expected a mapping of {DECODER_KEYS}"),
    ("decoder:", f"decoder is null; expected a mapping of {DECODER_KEYS}"),
    ("data: a", "data is 'a' (text); expected a mapping or a list of mappings"),
    ("data: [a]", f"data.0 is 'a' (text); expected a mapping of {DATA_KEYS}"),
    # Ranges
    ("encoder: {fit: stretch}", "encoder.fit is 'stretch'; choose from crop, squash, pad"),
    ("decoder: {dropout: 1}", "decoder.dropout is 1.0; it is a share from 0 to below 1"),
    ("data: [{root: a}, {root: ''}]", "data.1.root is ''; it names a folder"),
    ("data: {root: a, train: ''}", "data.train is ''; it names a split"),
    ("data: {root: a, tolerance: 2}", "data.tolerance is 2.0; it is a share from 0 to 1"),
    (
        "data: {root: a, format: xml}",
        "data.format is 'xml'; choose from flickr8k, captions-txt, coco, coco2014, coco2017, karpathy, metadata, "
        "parquet, txt",
    ),
    ("vocabulary: {minimum_count: 0}", "vocabulary.minimum_count is 0; it must be at least 1"),
    ("loss: {smoothing: 1.2}", "loss.smoothing is 1.2; it is a share from 0 to below 1"),
    ("loss: {reduction: none}", "loss.reduction is 'none'; choose from sum, mean"),
    ("loss: {penalty: -1}", "loss.penalty is -1.0; it must be at least 0"),
    ("loss: {reward_scale: 0}", "loss.reward_scale is 0.0; it must be above 0"),
    ("optimiser: {name: sgd}", "optimiser.name is 'sgd'; choose from adamw, adam, rmsprop"),
    ("optimiser: {average: 1}", "optimiser.average is 1.0; it is a share from 0 to below 1"),
    ("schedule: {decay: linear}", "schedule.decay is 'linear'; choose from cosine, step, constant"),
    ("schedule: {floor: 1.5}", "schedule.floor is 1.5; it is a share from 0 to 1"),
    ("schedule: {factor: 1}", "schedule.factor is 1.0; it must be above 0 and below 1"),
    ("batches: {pool: 0}", "batches.pool is 0; it must be at least 1"),
    ("batches: {images: -1}", "batches.images is -1; it must be at least 0"),
    ("tuning: {from_epoch: -1}", "tuning.from_epoch is -1; it must be at least 0"),
    ("self_critical: {baseline: best}", "self_critical.baseline is 'best'; choose from greedy, mean"),
    ("validation: {metric: rouge}", "validation.metric is 'rouge'; choose from bleu1, bleu2, bleu3, bleu4, cider"),
    ("validation: {every: 0}", "validation.every is 0; it must be at least 1"),
    ("seed: -1", "seed is -1; it must be at least 0 and below 2^63"),
    ("epochs: -1", "epochs is -1; it must be at least 0"),
    ("precision: double", "precision is 'double'; choose from float32, bfloat16, float16"),
    ("start: ''", "start is ''; it names a bundled model, or the folder of a run or a checkpoint"),
    # Combinations
    ("data: []", "data is empty; it needs at least one data set"),
    ("epochs: 0", "epochs and self_critical.epochs are both 0; there is nothing to train"),
    ("batches: {captions: 4}", "batches.captions is 4; it must be at least captions_per_image, 5"),
    (
        "self_critical: {samples: 1}",
        "self_critical.samples is 1; the baseline mean needs at least 2, greedy needs no other",
    ),
    (
        "tuning: {from_epoch: 14}\nself_critical: {epochs: 1}",
        "tuning.from_epoch is 14; training ends with epoch 13 (epochs + self_critical.epochs)",
    ),
    (
        "attention: {score: scaled-dot}\ndecoder: {hidden: 256}",
        "attention.score is 'scaled-dot'; it needs decoder.regions and decoder.hidden to be equal, not 512 and 256; "
        "or choose general",
    ),
    ("attention: {heads: 7}", "attention.heads is 7; it must divide decoder.regions, 512"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_wrong_settings_are_named(text: str, message: str) -> None:
    if "data" not in text and "data is missing" not in message:
        text += "\ndata: {root: a}"
    assert message_of(write(text)) == f"x.yaml: {message}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("decoder.hidden", "has no '='; expected KEY=VALUE, such as decoder.hidden=256"),
        ("decoder.hidden=big", ": decoder.hidden is 'big' (text); expected a whole number"),
        ("decoder.hidden=", ": decoder.hidden is null; expected a whole number"),
        ("decoder.hiden=2", f": unknown key decoder.hiden (did you mean hidden?); choose from {DECODER_KEYS}"),
        ("decoder.hidden.x=2", ": decoder.hidden is a mapping; expected a whole number"),
        ("base=y.yaml", f": unknown key base; choose from {TOP_KEYS}"),
        ("=2", f": unknown key ''; choose from {TOP_KEYS}"),
        ("data.root=x", ": which data set? choose from data.0, data.1"),
        ("data.2.root=x", ": which data set? choose from data.0, data.1"),
        ("data.1.rot=x", f": unknown key data.1.rot (did you mean root?); choose from {DATA_KEYS}"),
        ("data=[{]", ": not valid YAML at line 1: while parsing a flow node, expected the node content, but found ']'"),
        ("start=a\nb: c", ": not valid YAML at line 2: mapping values are not allowed here"),
    ],
)
def test_wrong_overrides_are_named(override: str, message: str) -> None:
    separator = "" if message.startswith(":") else " "
    assert message_of(write(TWO), "epochs=3", override) == f"override {override!a}{separator}{message}"


def test_what_file_and_overrides_make_together_names_both() -> None:
    assert message_of(write(ONE), "epochs=0", "seed=3") == (
        "x.yaml with 'epochs=0', 'seed=3': epochs and self_critical.epochs are both 0; there is nothing to train"
    )


def test_a_dictionary_names_its_source() -> None:
    with pytest.raises(ValueError, match=r"^runs/a/recipe\.json: data is missing; "):
        recipe_from_dict({}, "runs/a/recipe.json")


@pytest.mark.parametrize(
    "text",
    [
        "attention: {score: dot}\ndecoder: {hidden: 64, regions: 0}",  # the encoder's width is not known yet
        "attention: {score: dot, mode: none}\ndecoder: {hidden: 64}",  # no scores at all
        "attention: {heads: 7}\ndecoder: {regions: 0}",
        "epochs: 0\nself_critical: {epochs: 1}",
        "tuning: {from_epoch: 12}",
        "batches: {captions: 7, captions_per_image: 5}",
        "encoder: {weights: random}",
    ],
)
def test_what_is_possible_is_not_refused(text: str) -> None:
    load_recipe(write(f"data: {{root: a}}\n{text}"))


def test_aliases_are_few() -> None:
    write("data: &d {root: photos}\nencoder: {}\n", "good.yaml")
    load_recipe("good.yaml")
    levels = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
    assert message_of(write("\n".join(levels))) == (
        "x.yaml: not valid YAML at line 4: more than 20 aliases; write the settings out"
    )
    assert "more than 20 aliases" in message_of("good.yaml", "data.root=[&a x" + ", *a" * 21 + "]")
    levels = [f"a0: &a0 [{'1,' * 5_000}]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 7))]
    assert message_of(write("\n".join(levels))) == (
        "x.yaml: not valid YAML: more than 10,000 values, with those that aliases copy"
    )
    assert "at line 1: more than 10,000 values" in message_of(write(f"data: [{'1,' * 20_000}]"))


def test_bases_are_few_and_recipes_small() -> None:
    for number in range(13):
        write(f"base: {number + 1}.yaml", f"{number}.yaml")
    assert message_of("0.yaml") == "0.yaml has more than 10 files below it, each the base of the one before"
    assert message_of(write("# " + "x" * 100_000)) == "x.yaml has 100,002 bytes; at most 100,000 are read"


@pytest.mark.parametrize(
    ("override", "bound"),
    [
        ("encoder.size=20000", "encoder.size is 20000; it must be from 1 to 1024 pixels"),
        ("decoder.hidden=1000000000", "decoder.hidden is 1000000000; it must be at most 16384"),
        ("decoder.embedding=1000000000", "decoder.embedding is 1000000000; it must be at most 16384"),
        ("attention.width=1000000000", "attention.width is 1000000000; it must be at most 16384"),
        ("validation.beam=1000000", "validation.beam is 1000000; it must be at most 100"),
        ("batches.captions=1000000000", "batches.captions is 1000000000; it must be at most 100000"),
    ],
)
def test_sizes_have_bounds(override: str, bound: str) -> None:
    assert message_of(write("data: {root: photos}"), override).endswith(bound)
