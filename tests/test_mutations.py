"""Files that were tampered with: refused in one line, or read; never a traceback, a hang, a download or much memory."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import data_folders
from helpers.cases import MORE
from helpers.mutations import mutate_bytes, mutate_json, mutate_tensors, mutate_values, refusal_of
from helpers.toy_captions import flat
from helpers.toy_checkpoints import make_checkpoint
from helpers.toy_learner import make_batch, make_learner, some_regions

from captioner.captioning.corrections import correct_folder, read_corrections
from captioner.captioning.output.tables import SIDECARS, TABLES
from captioner.captioning.recorded_captions import recorded_captions
from captioner.captioning.records import CAPTIONS, Origin, caption_record, read_lines, to_line
from captioner.commands.models import models_table
from captioner.datasets.dataset import load_dataset
from captioner.datasets.describe import describe
from captioner.files import digest
from captioner.model.bundled import MANIFEST, SCORES, summarise
from captioner.model.checkpoint import TrainingState, load_checkpoint, load_training_state, save_checkpoint
from captioner.model.checkpoint_files import deserialise, serialise
from captioner.model.encoders.region_cache import RegionCache
from captioner.model.search.beam import search
from captioner.model.search_settings import SearchConfig
from captioner.training.recipe import Recipe, load_recipe, recipe_to_dict, to_yaml
from captioner.training.settings import DataConfig
from captioner.training.start import check_state
from captioner.training.yaml_text import write_yaml

CASES = 60 * MORE  # of each kind
Read = Callable[[Path], object]
Spoil = Callable[[Path, random.Random], None]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def try_all(
    folder: Path, write: Callable[[Path], object], spoil: Spoil, read: Read, cases: int = CASES, share: int = 4
) -> None:
    """Write a good file, spoil it in many ways, and read it; one in `share` must be refused, or nothing was tried."""
    refused = 0
    for seed in range(cases):
        place = folder / str(seed)
        place.mkdir(parents=True)
        write(place)
        assert seed or refusal_of(lambda place=place: read(place)) is None  # the good one
        spoil(place, random.Random(seed))
        try:
            refused += refusal_of(lambda place=place: read(place)) is not None
        except BaseException as error:
            error.add_note(f"case {seed}") if hasattr(error, "add_note") else None
            raise
    assert refused > cases // share


def spoil_json(name: str) -> Spoil:
    def spoil(folder: Path, chance: random.Random) -> None:
        (folder / name).write_bytes(mutate_json(json.loads((folder / name).read_text()), chance))

    return spoil


def spoil_lines(name: str) -> Spoil:
    def spoil(folder: Path, chance: random.Random) -> None:
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        place = chance.randrange(len(lines))
        lines[place] = mutate_json(json.loads(lines[place]), chance) + b"\n"
        (folder / name).write_bytes(b"".join(lines))

    return spoil


def use_checkpoint(folder: Path) -> None:
    """Load a model, caption with it, and list it, as commands do."""
    checkpoint = load_checkpoint(folder)
    decoder = checkpoint.build_decoder()
    rows, columns = checkpoint.encoder_identity["grid"]
    regions = torch.zeros(1, rows * columns, checkpoint.encoder_identity["dimensions"])
    search(decoder, regions, SearchConfig(beam=2, maximum_length=5))
    search(decoder, regions, SearchConfig(method="sample", maximum_length=5), seeds=[1])
    if checkpoint.encoder.name != "efficientnet-lite0":
        checkpoint.build_encoder()
    models_table([summarise(folder)])


def write_checkpoint(folder: Path) -> None:
    save_checkpoint(folder, make_checkpoint())
    scores = {"scores": {"bleu4": 20.0}, "protocol": {"data": "toy", "split": "test", "images": 5}}
    (folder / SCORES).write_text(json.dumps(scores))


def test_checkpoints_whose_manifest_was_changed(tmp_path: Path) -> None:
    try_all(tmp_path, write_checkpoint, spoil_json(MANIFEST), use_checkpoint)


def test_scores_that_were_changed(tmp_path: Path) -> None:
    try_all(tmp_path, write_checkpoint, spoil_json(SCORES), lambda folder: models_table([summarise(folder)]))


def replace_tensors(folder: Path, role: str, data: bytes) -> None:
    """Put other tensors into a checkpoint, with a manifest that vouches for them."""
    manifest = json.loads((folder / MANIFEST).read_text())
    entry = manifest["files"][role]
    (folder / entry["name"]).write_bytes(data)
    entry |= {"bytes": len(data), "digest": digest(data)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_checkpoints_whose_tensors_were_changed(tmp_path: Path) -> None:
    def spoil(folder: Path, chance: random.Random) -> None:
        [file] = folder.glob("decoder-*")
        replace_tensors(folder, "decoder", mutate_tensors(file.read_bytes(), chance))

    try_all(tmp_path, write_checkpoint, spoil, use_checkpoint)


def test_training_states_that_were_changed(tmp_path: Path) -> None:
    learner = make_learner("hard", kind=torch.float32)
    loss, numbers = learner.teacher_forcing_loss(make_batch(), some_regions(kind=torch.float32))
    learner.optimise(loss, numbers, (1e-3, 1e-3), 0, False)
    state = learner.state()

    def write(folder: Path) -> None:
        save_checkpoint(folder, make_checkpoint(), state)

    def spoil(folder: Path, chance: random.Random) -> None:
        [file] = folder.glob("training-*")
        data = file.read_bytes()
        if chance.random() < 0.5:
            values = json.dumps(mutate_values(state.values, chance))
            data = serialise(state.tensors, {"values": values})
        elif chance.random() < 0.3:
            tensors, metadata = deserialise(data)
            name = chance.choice(list(tensors))
            tensors[name] = chance.choice([torch.zeros(0), torch.zeros(2, 3), tensors[name].int(), tensors[name][None]])
            data = serialise(tensors, metadata)
        else:
            data = mutate_tensors(data, chance)
        replace_tensors(folder, "training", data)

    def read(folder: Path) -> None:
        found = load_training_state(folder)
        assert isinstance(found, TrainingState)
        check_state(learner, found)
        other = make_learner("hard", kind=torch.float32)
        other.restore(found)  # what is not refused must do
        other.optimise(
            *other.teacher_forcing_loss(make_batch(), some_regions(kind=torch.float32)), (1e-3, 0.0), 1, False
        )

    try_all(tmp_path, write, spoil, read)


@pytest.mark.parametrize("as_text", [False, True])
def test_recipes_that_were_changed(tmp_path: Path, as_text: bool) -> None:
    recipe = Recipe((DataConfig("photos"),))

    def write(folder: Path) -> None:
        (folder / "recipe.yaml").write_text(to_yaml(recipe))

    def spoil(folder: Path, chance: random.Random) -> None:
        changed = mutate_bytes(to_yaml(recipe).encode(), chance)
        if not as_text:
            try:
                changed = write_yaml(mutate_values(recipe_to_dict(recipe), chance)).encode("utf-8", "replace")
            except AttributeError:  # it became something else than settings
                changed = b"null"
        (folder / "recipe.yaml").write_bytes(changed)

    try_all(tmp_path, write, spoil, lambda folder: load_recipe(folder / "recipe.yaml"), CASES)


def write_cache(folder: Path) -> None:
    identity = {"format": 1, "encoder": "toy", "grid": [2, 2], "dimensions": 3, "preprocessing": {}}
    (folder / "cache.json").write_text(json.dumps(identity))
    np.ones((3, 4, 3), np.float16).tofile(folder / "regions.f16")
    rows = [{"file_name": f"{row}.jpg", "row": row, "size": 1, "modified": 1, "digest": "a"} for row in range(3)]
    (folder / "index.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def use_cache(folder: Path) -> None:
    with RegionCache(folder) as cache:
        assert np.isfinite(cache.regions(list(cache.records))).all()
        cache.mask(list(cache.records))


def test_region_caches_that_were_changed(tmp_path: Path) -> None:
    def spoil(folder: Path, chance: random.Random) -> None:
        kind = chance.randrange(3)
        if kind == 0:
            spoil_json("cache.json")(folder, chance)
        elif kind == 1:
            spoil_lines("index.jsonl")(folder, chance)
        else:
            odd = np.array([np.nan, np.inf, -np.inf], np.float16).tobytes()
            data = (folder / "regions.f16").read_bytes()
            at = 2 * chance.randrange(len(data) // 2)
            (folder / "regions.f16").write_bytes(
                data[:at] + odd[:2] + data[at + 2 :] if chance.random() < 0.5 else data[:at]
            )

    try_all(tmp_path, write_cache, spoil, use_cache)


def test_records_that_were_changed(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        origin = Origin("abc", {"beam": 3}, attention=True)
        lines = [to_line(caption_record(f"{name}.jpg", [flat(2, (40, 30))], origin)) for name in "ab"]
        (folder / CAPTIONS).write_bytes(b"".join(lines))

    def read(folder: Path) -> None:
        for line in read_lines(folder / CAPTIONS):
            for caption in recorded_captions(line.record):
                caption.geometry.cell_box(0, 0, caption.attention.shape[1:])

    try_all(tmp_path / "figures", write, spoil_lines(CAPTIONS), read)

    def correct(folder: Path) -> None:
        (folder / "mine.jsonl").write_text('{"image": "a.jpg", "caption": "Mine."}\n{"image": "b.jpg", "caption": "x"}')
        correct_folder(folder, folder / "mine.jsonl", lambda derived: derived.bring_up_to_date([*TABLES, *SIDECARS]))

    try_all(tmp_path / "corrections", write, spoil_lines(CAPTIONS), correct, share=10)  # attention is not looked at


def test_corrections_that_were_changed(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        lines = [{"image": f"{name}.jpg", "caption": "A dog of ours."} for name in "ab"]
        (folder / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    try_all(tmp_path, write, spoil_lines("mine.jsonl"), lambda folder: read_corrections(folder / "mine.jsonl"))


@pytest.mark.parametrize("kind", ["metadata", "coco", "karpathy", "splits"])
def test_data_sets_that_were_changed(tmp_path: Path, kind: str) -> None:
    def write(folder: Path) -> None:
        if kind == "coco":
            data_folders.coco(folder)
        elif kind == "karpathy":
            data_folders.karpathy(folder)
        else:
            lines = [{"file_name": f"{name}.jpg", "text": "a dog"} for name in "abcdefghij"]
            data_folders.metadata(folder, lines)
            load_dataset(folder)  # writes splits.json

    names = {"coco": "annotations/captions_val2017.json", "karpathy": "dataset_coco.json", "splits": "splits.json"}
    spoil = spoil_lines("metadata.jsonl") if kind == "metadata" else spoil_json(names[kind])

    def read(folder: Path) -> None:
        assert "\x1b" not in describe(load_dataset(folder)).to_text()

    try_all(tmp_path, write, spoil, read)
