"""The files of the static page, and where its runtime comes from; tests of the page itself are in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from helpers.toy_captioner import make_toy, save_toy

from captioner.cli import main
from captioner.model.encoders.encoder import Encoder
from captioner.model.onnx.export import OnnxModel, to_onnx
from captioner.web import static_page
from captioner.web.assets import read_asset
from captioner.web.static_page import PAGE, WORKER, write_page
from captioner.web.static_page_runtime import VERSION, Runtime, find_runtime

RUNTIME = Runtime(b"export const env = {};", bytes(range(256)) * 40)
NAMES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


@pytest.fixture
def model(lite0: Encoder) -> OnnxModel:
    return to_onnx(make_toy(lite0), "toy")


def write_runtime(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, contents in zip(NAMES, (RUNTIME.script, RUNTIME.wasm), strict=True):
        (folder / name).write_bytes(contents)
    return folder


def about_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="about">(.*?)</script>', page, re.DOTALL)
    assert found
    about: dict[str, object] = json.loads(found[1])
    return about


def test_the_parts_make_up_the_files(model: OnnxModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_page, "PART", 1 << 16)
    names = write_page(model, RUNTIME, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == set(names)
    about = about_of((tmp_path / PAGE).read_text(encoding="utf-8"))
    found: dict[str, bytes] = {}
    for part in about["files"]:  # type: ignore[attr-defined]
        script = (tmp_path / part["path"]).read_bytes()
        match = re.fullmatch(rb'captionerPart\("([A-Za-z0-9+/=]*)"\);\n', script)
        assert match
        assert len(script) == part["size"] <= (1 << 16) + 20
        found[part["file"]] = found.get(part["file"], b"") + base64.b64decode(match[1], validate=True)
    unpacked = {file: gzip.decompress(contents) for file, contents in found.items()}
    assert unpacked == {"runtime.mjs": RUNTIME.script, "runtime.wasm": RUNTIME.wasm, **model.graphs}
    assert about["bytes"] == sum((tmp_path / name).stat().st_size for name in names[1:])
    assert about["model"] == model.about


def test_a_page_takes_the_place_of_another_and_of_nothing_else(
    model: OnnxModel, lite0: Encoder, tmp_path: Path
) -> None:
    first = write_page(model, RUNTIME, tmp_path)
    (tmp_path / "model" / "notes.js").write_text("mine")
    second = write_page(to_onnx(make_toy(lite0, 1), "other"), RUNTIME, tmp_path)
    changed = set(first) - set(second)
    assert {name.split("-")[0] for name in changed} == {"model/start", "model/step"}  # the encoder is the same
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {*second, "model/notes.js"}
    again = {name: (tmp_path / name).read_bytes() for name in second}
    write_page(to_onnx(make_toy(lite0, 1), "other"), RUNTIME, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in second} == again


def test_no_script_ends_the_page_early() -> None:
    for name in (*WORKER, *static_page.SCRIPTS):
        assert "</script" not in read_asset(name)
        assert "<!--" not in read_asset(name)


def test_a_word_like_a_tag_stays_a_word(lite0: Encoder, tmp_path: Path) -> None:
    model = to_onnx(make_toy(lite0), "</script><b>toy")
    write_page(model, RUNTIME, tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "</script><b>" not in page
    assert about_of(page)["model"] == model.about


@pytest.mark.parametrize("place", [".", "dist", "package/dist", "node_modules/onnxruntime-web/dist"])
def test_a_runtime_is_found_in_its_folder(place: str, tmp_path: Path) -> None:
    write_runtime(tmp_path / "runtime" / place)
    assert find_runtime(tmp_path / "runtime") == RUNTIME


def test_the_command_says_what_it_wrote(lite0: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runtime(tmp_path / "runtime")
    toy = save_toy(tmp_path / "toy", lite0)
    assert main(["export", str(toy), str(tmp_path / "page"), "--web", "--runtime", str(tmp_path / "runtime")]) == 0
    size = sum(path.stat().st_size for path in (tmp_path / "page").rglob("*") if path.is_file())
    assert capsys.readouterr().out.strip().endswith(f", {size / 1e6:.1f} MB")
    assert (tmp_path / "page" / "index.html").is_file()


def test_an_unknown_model_is_told_before_npm_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.web.static_page_runtime.find_runtime", lambda *_: pytest.fail("npm was asked"))
    assert main(["export", "coco-bst", str(tmp_path / "page"), "--web"]) == 1
    assert capsys.readouterr().err.startswith("captioner: model is 'coco-bst'; choose from coco-best, ")


def test_numbers_are_explained_as_on_the_served_page() -> None:
    static, served = read_asset("static_page.html"), read_asset("serve.html")
    for pattern in (r'<details class="explain">.*?</details>', r"<abbr\s.*?</abbr>"):
        [explained] = re.findall(pattern, served, re.DOTALL)
        assert explained in static


def test_a_folder_without_a_runtime_is_named(
    lite0: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = save_toy(tmp_path / "toy", lite0)
    assert main(["export", str(toy), str(tmp_path / "page"), "--web", "--runtime", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path} has no {NAMES[0]} and {NAMES[1]}; expected an unpacked npm package onnxruntime-web" in error
    assert not (tmp_path / "page").exists()


def test_without_npm_the_remedy_is_one_line(
    lite0: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = save_toy(tmp_path / "toy", lite0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["export", str(toy), str(tmp_path / "page"), "--web"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("captioner: npm is missing")
    assert f"`npm pack onnxruntime-web@{VERSION}`" in error
    assert "--runtime" in error
    assert error.count("\n") == 1


def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], code: int = 0) -> list[list[str]]:
    """Put a program in the place of npm that packs some of the runtime's files; return the calls of it."""
    calls: list[list[str]] = []
    folder = write_runtime(tmp_path / "packed")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        target = Path(command[command.index("--pack-destination") + 1])
        if code == 0:
            with tarfile.open(target / "onnxruntime-web.tgz", "w:gz") as archive:
                for name in files:
                    archive.add(folder / name, f"package/dist/{name}")
        return subprocess.CompletedProcess(command, code, "", "npm error code ENOTCACHED\nnpm error much more\n")

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", run)
    return calls


def test_npm_fetches_the_tested_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_npm(tmp_path, monkeypatch, NAMES)
    assert find_runtime() == RUNTIME
    assert calls[0][:3] == ["npm", "pack", f"onnxruntime-web@{VERSION}"]
    assert "--prefer-offline" in calls[0]
    assert not Path(calls[0][calls[0].index("--pack-destination") + 1]).exists()


def test_what_npm_cannot_do_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, NAMES, code=1)
    with pytest.raises(
        ValueError, match=r"npm cannot fetch onnxruntime-web \(ENOTCACHED\); run `npm pack .* --runtime"
    ):
        find_runtime()


def test_a_package_without_the_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, NAMES[:1])
    with pytest.raises(ValueError, match=r"has no package/dist/ort-wasm-simd-threaded\.wasm"):
        find_runtime()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--runtime", "."], "--runtime is for the page of --web"),
        (["--onnx", "--scores", "x.json"], "--scores is for a checkpoint"),
        (["--web", "--size", "96"], "--size is for a checkpoint"),
        (["--onnx", "--web"], "not allowed with argument --onnx"),
    ],
)
def test_wrong_usage(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "coco-fast", "nowhere", *arguments]) == 2
    assert reason in capsys.readouterr().err
