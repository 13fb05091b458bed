"""Why an image failed: `errors.jsonl` has its name in `file_name`, and the reason does not repeat it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers.tar_files import write_tar
from helpers.toy_captioner import make_toy, use_toys, write_images
from PIL import Image

from captioner.captioning.captioner import Captioner
from captioner.cli import main
from captioner.model.encoders.encoder import Encoder


def write_bad_images(folder: Path) -> None:
    """Write one image of each kind that cannot be captioned; `locked.jpg` is refused by the system."""
    good = write_images(folder, 1)[0].read_bytes()
    for name, contents in (
        ("empty.jpg", b""),
        ("text.jpg", b"junk"),
        ("cut.jpg", good[:-20]),
        ("head.png", b"\x89PNG\r\n\x1a\n"),
        ("locked.jpg", good),
        ("empty.tar", b""),
        ("text.zip", b"junk"),
        ("packed.tar.gz", b"\x1f\x8b"),
    ):
        (folder / name).write_bytes(contents)
    Image.new("1", (10_000, 10_000)).save(folder / "bomb.png")
    with (folder / "sparse.jpg").open("wb") as file:
        file.truncate(10**12)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    write_tar(folder / "bad.tar", {"member.jpg": b"junk", "cut.jpg": good[:-20], "empty.jpg": b""})
    with zipfile.ZipFile(folder / "bad.zip", "w") as archive:
        archive.writestr("member.jpg", b"junk")
        archive.writestr("damaged.jpg", good)
    whole = (folder / "bad.zip").read_bytes()
    (folder / "bad.zip").write_bytes(whole.replace(b"PK\3\4", b"XXXX"))


def test_no_reason_repeats_the_name(
    tmp_path: Path, lite0: Encoder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_toys({"0": Captioner(make_toy(lite0), device="cpu")}, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_bad_images(tmp_path / "photos")
    open_file = os.open

    def refuse_one(path: Any, *arguments: Any, **settings: Any) -> int:
        if str(path).endswith("locked.jpg"):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *arguments, **settings)

    monkeypatch.setattr(os, "open", refuse_one)
    given = [
        "missing.jpg",
        f"{'long' * 80}.jpg",
        "https://example.org/cat.jpg",
        "photos/packed.tar.gz",
        "photos/pipe.jpg",
    ]
    assert main(["caption", "photos", *given, "--out", "out", "--model", "0"]) == 1
    errors = [json.loads(line) for line in (tmp_path / "out" / "errors.jsonl").read_text().splitlines()]
    reasons = {error["file_name"]: error["error"] for error in errors}
    assert len(reasons) == len(errors) == 20
    assert reasons["photos/locked.jpg"] == "permission denied"
    assert "megapixels" in reasons["photos/bomb.png"]
    for name, reason in reasons.items():
        assert reason
        assert os.path.basename(name) not in reason
        assert name.split("/")[0] not in reason
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("captioner: ")]
    assert sorted(said) == sorted(f"captioner: {name}: {reason}" for name, reason in reasons.items())
