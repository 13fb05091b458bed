from __future__ import annotations

import os
from pathlib import Path

import pytest

from captioner.files import digest, write_whole


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.json"
    write_whole(path, "première")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, "second")
    assert path.read_text(encoding="utf-8") == "première"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, "third")
    assert path.read_text(encoding="utf-8") == "third"


def test_digest_tells_contents_apart(tmp_path: Path) -> None:
    contents = {"a": b"one", "b": b"two", "c": b"one", "large": bytes(3 << 20), "larger": bytes((3 << 20) + 1)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    digests = {name: digest(tmp_path / name) for name in contents}
    assert digests["a"] == digests["c"]
    assert len(set(digests.values())) == 4
