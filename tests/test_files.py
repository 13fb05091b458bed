from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from captioner.files import digest, sync_folder, write_whole


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


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    data = b"\x00\r\n\xff\n"
    write_whole(tmp_path / "tensors", data)
    assert (tmp_path / "tensors").read_bytes() == data
    assert digest(tmp_path / "tensors") == digest(data)
    assert digest(data) != digest(data[:-1])


def test_a_folder_is_synced_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync_folder(tmp_path)
    assert synced == [tmp_path.stat().st_ino]

    def fail_with(code: int) -> None:
        def fail(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)

    fail_with(errno.EINVAL)
    sync_folder(tmp_path)
    fail_with(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
