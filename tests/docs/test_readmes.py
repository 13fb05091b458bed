"""What the READMEs promise: every command and program in them runs, every link leads somewhere, quotations are true."""

from __future__ import annotations

import configparser
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.bundled_models import load_bundled_once
from helpers.documents import Block, documents, read_blocks, read_commands, split_pipe, write_world
from helpers.photo_folders import ROOT

import captioner.evaluation.metrics.judge
from captioner.cli import main, make_parser
from captioner.model.encoders import int8

READMES = [path for path in documents() if path.name == "README.md"]
pytestmark = pytest.mark.timeout(1200)  # of many commands, on however busy a machine
# Commands that are not run here, by how they start, and why; their options are checked.
NOT_RUN = {
    "python experiments/benchmarks/": "takes minutes, and measures the machine",
    "python experiments/study.py": "trains a dozen models and more",
    "captioner evaluate runs/lectures-study/": "needs trainings of the study; other models are evaluated",
    "captioner evaluate mixed-best": "needs what a script writes; other models are evaluated",
    "python experiments/glimpse_variance.py": "needs a run; tests/experiments runs it",
    "python experiments/search_settings.py": "needs the region cache of a data set",
    "python experiments/shared_images.py": "needs the region caches of two data sets",
    "python experiments/match_words.py": "needs a model and its captions; tests/experiments runs it",
    "python experiments/mix_weights.py": "needs two models; tests/experiments runs it",
    "python experiments/keep_results.py": "needs a run and its evaluation; tests/experiments runs it",
    "python experiments/translation/": "needs parallel text; tests/experiments/translation runs them",
    "torchrun --nproc-per-node=2 --max-restarts=3": "needs a data set; tests/training trains in two processes",
    "torchrun --nnodes=2": "needs two machines",
    "srun torchrun": "needs SLURM",
    "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "is for several machines",
    "captioner evaluate flickr8k-soft data/flickr8k --split val --calibrate": "needs images; tests/evaluation runs it",
    "captioner export flickr8k-soft calibrated": "needs what the one before writes",
    "captioner export coco-fast page --web": "needs npm and a network; tests/web opens such pages",
    "captioner export runs/finetune page --web": "needs onnxruntime-web; tests/web opens such pages",
    "captioner cluster": "starts a cluster; tests/test_ray.py does too",
    "captioner serve": "does not end; the server that curl asks is one",
    "pip install": "installs; its extras are looked up",
    "make": "sets up everything; its targets are looked up",
}
# Trainings that are run, shortened; of the others the settings are read, and tests/experiments takes a step of each.
TRAINED = {"tiny": ["epochs=2", "validation.every=2"], "finetune": ["epochs=1"]}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a checkout with photographs and data sets, to stand in; Java, which is slow, has other tests."""
    monkeypatch.chdir(write_world(tmp_path / "checkout"))
    load_bundled_once(monkeypatch)
    monkeypatch.setattr(captioner.evaluation.metrics.judge, "find_jars", lambda: None)
    return tmp_path / "checkout"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, for commands that go on from a training of a data set."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    features = folder.parent / "features"
    settings = [f"data.root={ROOT / 'data' / 'examples'}", f"data.features={features}", *TRAINED["tiny"]]
    assert main(["train", "tiny", *settings, "--run", str(folder), "--quiet"]) == 0
    return folder


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_the_commands_of_a_readme_run(path: Path, world: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [each for block in read_blocks(path) if block.language == "sh" for each in read_commands(block)]
    asked = [each for each in commands if re.search(r"(^|\| )curl ", each)]
    for command in commands:
        if why_not(command):
            check_options(command)
        elif command not in asked:
            run(command, trained, monkeypatch)
    if asked:
        with_server(asked)


def why_not(command: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if f"{command} ".startswith(start)), None)


def run(command: str, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *before, arguments = split_pipe(command)
    if before:
        listed = subprocess.run(before[0], stdout=subprocess.PIPE, check=True).stdout
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listed)))
    if arguments[0] == "torchrun":
        subprocess.run([sys.executable, "-m", "torch.distributed.run", *arguments[1:]], check=True)
        return
    program, *arguments = arguments
    assert program == "captioner", f"{command} is neither run nor listed as not run"
    if arguments[0] == "train" and "--show" not in arguments:
        recipe = Path(arguments[1]).stem
        assert main([*arguments, "--show"]) == 0, command
        if recipe not in TRAINED:
            shutil.copytree(trained, Path("runs") / recipe, dirs_exist_ok=True)
            return
        arguments += TRAINED[recipe]
    if arguments[0] == "export" and not Path(arguments[1]).exists():
        shutil.copytree(trained, arguments[1])
    assert main(arguments) == 0, command


def check_options(command: str) -> None:
    """Check as much of a command as can be known without running it."""
    arguments = shlex.split(command)
    if arguments[0] == "captioner":
        make_parser().parse_args(arguments[1:])
    elif arguments[0] == "python":
        script = (ROOT / arguments[1]).read_text()
        assert not [option for option in arguments if option.startswith("--") and f'"{option}"' not in script], command
    elif arguments[0] == "make":
        subprocess.run(["make", "--dry-run", *arguments[1:]], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    elif arguments[0] == "pip":
        config = configparser.ConfigParser()
        config.read(ROOT / "setup.cfg")
        extras = re.findall(r"[\w]+", arguments[-1])
        assert set(extras) <= set(config["options.extras_require"]), command
    elif "captioner" in arguments:  # as a module, under torchrun
        rest = arguments[arguments.index("captioner") + 1 :]
        make_parser().parse_known_args(rest[1:] if rest[0] == "--" else rest)


def with_server(commands: list[str]) -> None:
    """Send requests to a server of one bundled model."""
    server = subprocess.Popen(
        [sys.executable, "-m", "captioner", "serve", "--model", "flickr8k-soft", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))
        for command in commands:
            asked = command.replace("http://127.0.0.1:8000", found[0])
            assert asked != command
            request = ["bash", "-o", "pipefail", "-c", f"{asked} --silent --show-error --fail"]
            subprocess.run(request, stdout=subprocess.DEVNULL, check=True)
    finally:
        server.terminate()
        server.wait()


def programs() -> Iterator[tuple[Path, Block]]:
    for path in READMES:
        for block in read_blocks(path):
            if block.language == "python":
                yield path, block


@pytest.mark.parametrize(
    ("path", "block"), list(programs()), ids=lambda value: name_of(value) if isinstance(value, Path) else value.heading
)
def test_the_programs_of_a_readme_run(path: Path, block: Block, world: Path) -> None:
    if "exported" in block.text:
        assert main(["export", "coco-fast", "exported", "--onnx"]) == 0
    if "features/" in block.text:
        assert main(["features", "data/flickr8k", "--encoder", "efficientnet-lite0", "--quiet"]) == 0
    exec(compile(block.text, str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{name_of(path)}: {target} is not there"
        if anchor:
            assert anchor in anchors(found), f"{name_of(path)}: no heading for {target}"


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_test_that_is_named_is_there(path: Path) -> None:
    named = {name.lstrip("/") for name in re.findall(r"[\w/]*\btest_\w+\.py\b", path.read_text())}
    there = [f"/{name_of(test)}" for test in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in named if not any(test.endswith(f"/{name}") for test in there)}


def anchors(path: Path) -> set[str]:
    """Return the names that a code host gives to the headings of a file."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_main_readme_is_short_and_links_to_every_other() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 10_000
    rooms = [path for path in READMES if "pretrained" not in path.parts and path.parent != ROOT]
    assert not [name_of(path) for path in rooms if f"({name_of(path)})" not in text]


def test_every_command_is_in_the_main_readme() -> None:
    text = (ROOT / "README.md").read_text()
    actions = make_parser()._subparsers._group_actions  # type: ignore[union-attr]
    assert not [name for name in actions[0].choices or () if f"`captioner {name}`" not in text]


def test_the_captions_that_are_quoted_are_what_the_models_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(int8, "is_fast", lambda: False)  # in single precision, which every CPU has
    quoted = {(path, block.text) for path in READMES for block in read_blocks(path) if "astronaut.jpg" in block.text}
    assert len(quoted) == 5
    for path, text in quoted:
        model = [] if path.parent == ROOT else ["--model", path.parent.name]
        assert main(["caption", "data/examples", *model]) == 0
        said = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
        lines = (re.split(r"\t| {4}", line, maxsplit=1) for line in text.splitlines())
        assert {os.path.basename(name): caption for name, caption in lines} == {
            os.path.basename(name): caption for name, caption in said.items()
        }, path


def test_the_list_of_what_is_not_run_is_no_longer_than_it_must_be() -> None:
    blocks = [block for path in READMES for block in read_blocks(path) if block.language == "sh"]
    commands = [command for block in blocks for command in read_commands(block)]
    assert not [start for start in NOT_RUN if not any(f"{command} ".startswith(start) for command in commands)]
