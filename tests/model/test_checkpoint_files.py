"""What lies on disk: replaced in one move, tidied, and checked before it is believed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.irregular_files import make_irregular
from helpers.toy_checkpoints import VOCABULARY, make_checkpoint, make_training
from torch import Tensor

from captioner.datasets.vocabulary import SPECIALS
from captioner.files import digest
from captioner.model import checkpoint_files
from captioner.model.bundled import MANIFEST, SHARED, summarise
from captioner.model.checkpoint import TrainingState, load_checkpoint, load_training_state, save_checkpoint
from captioner.model.checkpoint_files import serialise
from captioner.training.recipe import recipe_from_dict


def change_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def change_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Give the decoder other tensors, with a manifest that agrees."""
    data = serialise(tensors)
    path = folder / f"decoder-{digest(data)[:12]}.safetensors"
    path.write_bytes(data)
    change_manifest(folder, files={"decoder": {"name": path.name, "bytes": len(data), "digest": digest(data)}})


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller compares all of the message
        load_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message or str(folder.parent / SHARED) in message
    return message


def test_saving_again_leaves_no_litter(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(0), make_training(0))
    kept = {"notes.txt", "decoder-copy.safetensors", "other.json.12.unfinished"}
    for name in (*kept, "checkpoint.json.12.unfinished", "decoder-0123456789ab.safetensors.12.unfinished"):
        (tmp_path / name).touch()
    save_checkpoint(tmp_path, make_checkpoint(1), make_training(1))
    (decoder,) = tmp_path.glob("decoder-????????????.safetensors")
    (training,) = tmp_path.glob("training-*")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.json", decoder.name, training.name, *kept}
    save_checkpoint(tmp_path, make_checkpoint(2))
    assert load_training_state(tmp_path) is None
    assert list(tmp_path.glob("training-*")) == []


def test_the_same_contents_are_not_written_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(), make_training(0))
    (path,) = tmp_path.glob("decoder-*")
    before = path.stat().st_ino
    save_checkpoint(tmp_path, make_checkpoint(), make_training(1))
    assert path.stat().st_ino == before
    path.write_bytes(bytes(path.stat().st_size))  # damaged, and so not the same
    save_checkpoint(tmp_path, make_checkpoint(), make_training(1))
    assert load_checkpoint(tmp_path).digest == make_checkpoint().digest


@pytest.mark.parametrize("failing", range(8))
def test_a_failed_save_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """The disk refuses the first, second ... of all calls that a save makes to write or to move."""
    save_checkpoint(tmp_path, make_checkpoint(0), make_training(0))
    names = {path.name for path in tmp_path.iterdir()}
    calls = iter(range(100))

    def fail_in_turn(function: Any) -> Any:
        def maybe(*arguments: Any, **options: Any) -> Any:
            if next(calls) >= failing:
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        return maybe

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_in_turn(os.fsync))
        patch.setattr(Path, "replace", fail_in_turn(Path.replace))
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, make_checkpoint(1), make_training(1))
    # Two of each for two files, one for the folder, two for the manifest: the eighth comes after it counts.
    expected = 1 if failing == 7 else 0
    assert load_checkpoint(tmp_path).digest == make_checkpoint(expected).digest
    state = load_training_state(tmp_path)
    assert state is not None
    assert state.values["seed"] == expected
    save_checkpoint(tmp_path, make_checkpoint(0), make_training(0))
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("before", [True, False])
def test_a_full_disk_is_not_left_fuller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    if before:
        save_checkpoint(tmp_path, make_checkpoint(0))
    names = {path.name for path in tmp_path.iterdir()}

    write = checkpoint_files.write_whole

    def fail(path: Path, contents: str | bytes) -> None:
        if path.name == MANIFEST:  # after all of the tensors
            raise OSError(28, "No space left on device")
        write(path, contents)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "write_whole", fail)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, make_checkpoint(1))
    assert {path.name for path in tmp_path.iterdir()} == names


def test_reads_on_while_another_process_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, make_checkpoint(0))
    read_manifest = checkpoint_files.read_manifest
    newer = [make_checkpoint(2), make_checkpoint(1)]

    def overtaken(folder: Path) -> dict[str, Any]:
        manifest = read_manifest(folder)
        if newer:
            model = newer.pop()
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint_files, "read_manifest", read_manifest)
                save_checkpoint(folder, model)
        return manifest

    monkeypatch.setattr(checkpoint_files, "read_manifest", overtaken)
    assert load_checkpoint(tmp_path).digest == make_checkpoint(2).digest


@pytest.mark.parametrize(
    ("changes", "values", "message"),
    [
        ({"metrics": {"loss": math.nan}}, {}, "metrics.loss is nan and cannot be stored: it must be a finite number"),
        ({"settings": {"a": [1, {"b": math.inf}]}}, {}, "settings.a.1.b is inf and cannot be stored: it must be"),
        ({"progress": {"at": {1}}}, {}, "progress.at is of type set and cannot be stored: it must be a"),
        ({}, {"state": {0: 1.0}}, "training.state cannot be stored: its key 0 is no string"),
        ({}, {"rate": torch.tensor(1.0)}, "training.rate is of type Tensor and cannot be stored: it must be a plain"),
    ],
)
def test_refuses_what_json_would_change(
    tmp_path: Path, changes: dict[str, Any], values: dict[str, Any], message: str
) -> None:
    save_checkpoint(tmp_path, make_checkpoint(0))
    with pytest.raises(ValueError, match=f"^{message}"):
        save_checkpoint(tmp_path, make_checkpoint(1, **changes), TrainingState({}, values))
    assert load_checkpoint(tmp_path).digest == make_checkpoint(0).digest


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is no checkpoint: it has no checkpoint.json"
    save_checkpoint(tmp_path / "last", make_checkpoint())
    assert refusal(tmp_path) == f"{tmp_path} is no checkpoint: it has no checkpoint.json; name {tmp_path / 'last'}"
    save_checkpoint(tmp_path / "best", make_checkpoint())
    assert refusal(tmp_path) == f"{tmp_path} is no checkpoint: it has no checkpoint.json; name {tmp_path / 'best'}"
    assert refusal(tmp_path / "worst") == f"{tmp_path / 'worst'} is no checkpoint: there is no such folder"
    path = tmp_path / "best" / "checkpoint.json"
    assert refusal(path) == f"{path} is no checkpoint: it is a file; name the folder that it is in"


def test_models_may_share_an_encoder_that_lies_beside_their_folders(tmp_path: Path) -> None:
    weights = {"0.weight": torch.arange(1000.0)}
    for name in ("one", "other"):
        save_checkpoint(tmp_path / name, make_checkpoint(len(name), encoder_weights=weights))
    alone = summarise(tmp_path / "one").size
    (first,), (second,) = (list((tmp_path / name).glob("encoder-*")) for name in ("one", "other"))
    assert first.name == second.name
    (tmp_path / SHARED).mkdir()
    shared = first.rename(tmp_path / SHARED / first.name)
    second.unlink()
    for name in ("one", "other"):
        found = load_checkpoint(tmp_path / name).encoder_weights
        assert found is not None
        assert torch.equal(found["0.weight"], weights["0.weight"])
    assert summarise(tmp_path / "one").size == alone
    shared.write_bytes(shared.read_bytes()[:-1] + b"x")
    assert "checksum of" in refusal(tmp_path / "one")
    shared.unlink()
    assert refusal(tmp_path / "one").endswith(f"{first.name} is missing; get it anew")


def test_damaged_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint(), make_training())
    (decoder,), (training,) = tmp_path.glob("decoder-*"), tmp_path.glob("training-*")
    whole = decoder.read_bytes()
    decoder.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refusal(tmp_path) == f"checksum of {decoder} is wrong: the file is damaged; get it anew"
    decoder.write_bytes(whole[:-1])
    sizes = f"{len(whole) - 1:,} bytes, not {len(whole):,}"
    assert refusal(tmp_path) == f"{decoder} has {sizes}: the file is damaged; get it anew"
    decoder.unlink()
    assert refusal(tmp_path) == f"{tmp_path} is incomplete: {decoder.name} is missing; get it anew"
    decoder.write_bytes(whole)
    training.write_bytes(bytes(training.stat().st_size))
    load_checkpoint(tmp_path)  # which has no use for the training state
    with pytest.raises(ValueError, match=f"^checksum of {training} is wrong: the file is damaged; get it anew$"):
        load_training_state(tmp_path)


def test_damaged_manifest(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    path = tmp_path / "checkpoint.json"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole.replace("犬".encode(), b"\xff")):
        path.write_bytes(damaged)
        assert refusal(tmp_path).startswith((f"{path} is not valid JSON: ", f"{path} is not UTF-8: "))
    path.write_text("[1]")
    assert refusal(tmp_path) == f"{path} is damaged: its format is None; this version reads format 1"
    path.unlink()
    path.mkdir()
    assert refusal(tmp_path) == f"{path} is a folder; expected a regular file"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2, "captioner": "7.1"}, "{}/checkpoint.json was written by captioner 7.1 (format 2); "
         "this version reads format 1: upgrade"),
        ({"format": 0}, "{}/checkpoint.json is damaged: its format is 0; this version reads format 1"),
        ({"vocabulary": None}, "{}/checkpoint.json is damaged: it has no vocabulary"),
        ({"files": 3}, "{}/checkpoint.json is damaged: it has no files"),
        ({"files": {}}, "{}/checkpoint.json is damaged: it names no decoder file"),
        ({"files": {"decoder": {"name": "../decoder-0123456789ab.safetensors", "bytes": 1, "digest": ""}}},
         "{}/checkpoint.json is damaged: its decoder file is {{'name': '../decoder-0123456789ab.safetensors', "
         "'bytes': ...; expected a name, bytes and a digest"),
        ({"vocabulary": {"words": [*SPECIALS, "a", "a"]}},
         "{} cannot be loaded: a vocabulary holds 'a' more than once"),
        ({"vocabulary": {"words": VOCABULARY.entries[:-1]}}, "{} cannot be loaded: the weights do not fit a decoder of "
         "10 words: embedding.weight is (11, 4), expected (10, 4)"),
        ({"encoder_identity": {}}, "{} cannot be loaded: encoder_identity has no 'grid' of rows and columns, "
         "1024 at most, or no 'dimensions', 16384"),
        ({"attention": {"mode": "firm"}}, "{} cannot be loaded: attention mode is 'firm'; choose from soft, hard, "
         "gumbel, local, glimpse, none"),
        ({"decoder": {"depth": 3}}, "{} cannot be loaded: this version knows no decoder setting 'depth': upgrade"),
        ({"decoder": {"hidden": "wide"}}, "{} cannot be loaded: decoder hidden is 'wide'; expected a whole number"),
        ({"decoder": {"hidden": 10**9}}, "{} cannot be loaded: decoder hidden is 1000000000; it must be at most 16384"),
        ({"decoder": {"dropout": math.nan}}, "{} cannot be loaded: decoder dropout is nan; expected a finite number"),
        ({"attention": {"expected": True}}, "{} cannot be loaded: attention expected is True; expected a number"),
        ({"encoder": {"name": 5}}, "{} cannot be loaded: encoder name is 5; expected text"),
        ({"encoder": {"size": 20000}}, "{} cannot be loaded: encoder size is 20000; it must be from 1 to 1024 pixels"),
        ({"encoder": {"layer": []}}, "{} cannot be loaded: encoder layer is []; expected text or null"),
    ],
)  # fmt: skip
def test_manifests_that_cannot_be(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    change_manifest(tmp_path, **changes)
    assert refusal(tmp_path) == message.format(tmp_path)


def test_sizes_that_torch_refuses(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    change_manifest(tmp_path, encoder_identity={"grid": [2, 2], "dimensions": -6})
    assert refusal(tmp_path).startswith(f"{tmp_path} cannot be loaded: ")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    model = make_checkpoint()
    own = model.distinct_weights
    start = f"{tmp_path} cannot be loaded: the weights do not fit a decoder of 11 words: "
    save_checkpoint(tmp_path, model)
    change_tensors(tmp_path, {name: weight for name, weight in own.items() if name != "output.bias"})
    assert refusal(tmp_path) == f"{start}output.bias is missing"
    change_tensors(tmp_path, {**own, "extra": torch.zeros(1)})
    assert refusal(tmp_path) == f"{start}it has no extra"
    change_tensors(tmp_path, {**own, "output.bias": torch.zeros(12)})
    assert refusal(tmp_path) == f"{start}output.bias is (12,), expected (11,)"


def test_a_file_that_holds_no_tensors(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    data = b"\x80\x04" + bytes(64)  # as a pickle begins
    path = tmp_path / f"decoder-{digest(data)[:12]}.safetensors"
    path.write_bytes(data)
    entry = {"name": path.name, "bytes": len(data), "digest": digest(data)}
    change_manifest(tmp_path, files={"decoder": entry, "training": entry})
    assert refusal(tmp_path).startswith(f"{tmp_path} cannot be loaded: its tensors are damaged: ")
    with pytest.raises(
        ValueError, match=f"^the training state in {tmp_path} cannot be loaded: its tensors are damaged"
    ):
        load_training_state(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_neither_saved_nor_loaded(tmp_path: Path, value: float) -> None:
    model = make_checkpoint()
    save_checkpoint(tmp_path, model)
    weights = {name: weight.clone() for name, weight in model.distinct_weights.items()}
    weights["from_hidden.weight"].view(-1)[-1] = value
    with pytest.raises(ValueError, match=r"decoder weight 'from_hidden\.weight' has numbers that are not finite"):
        make_checkpoint(weights=weights)
    change_tensors(tmp_path, weights)
    assert refusal(tmp_path) == (
        f"{tmp_path} cannot be loaded: decoder weight 'from_hidden.weight' has numbers that are not finite; "
        "the model is of no use"
    )
    change_tensors(tmp_path, {**weights, "from_hidden.weight": torch.full_like(weights["from_hidden.weight"], 3e38)})
    load_checkpoint(tmp_path)  # a sum that overflows is no reason


@pytest.mark.parametrize(
    "name",
    ["timm/hf-hub:evil/model", "timm/hf_hub:evil", "timm/local-dir:/tmp/evil", "timm/../evil", "timm/C:\\evil",
     "/etc/passwd", "../evil", "hf-hub:evil/model", "a b", "", "timm/", "\x1b[2J", "x" * 200],
)  # fmt: skip
def test_names_of_encoders_lead_nowhere(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["encoder"]["name"] = name
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert refusal(tmp_path).startswith(f"{tmp_path} cannot be loaded: encoder name is ")
    with pytest.raises(ValueError, match=r"^recipe: encoder\.name is "):
        recipe_from_dict({"data": {"root": "photos"}, "encoder": {"name": name}})


@pytest.mark.parametrize("place", ["manifest", "tensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "sparse"])
def test_what_is_no_regular_file_is_not_read(
    tmp_path: Path, place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, make_checkpoint())
    path = tmp_path / MANIFEST if place == "manifest" else next(tmp_path.glob("decoder-*"))
    path.unlink()
    make_irregular(path, kind, monkeypatch)
    if place == "tensors":
        manifest = json.loads((tmp_path / MANIFEST).read_text())
        manifest["files"]["decoder"]["bytes"] = path.stat().st_size
        (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    message = refusal(tmp_path)
    if kind == "sparse":
        assert "200,000,000,000 bytes; at most 16,000,000 are read" in message or "needs 400.0 GB of memory" in message
    else:
        assert message == f"{path} is a {kind}; expected a regular file"
