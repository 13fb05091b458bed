"""Images and shards behind URLs: found, fetched and streamed, with reasons where they cannot be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from helpers.tar_files import write_tar

from captioner.images import remote
from captioner.images.remote import fetch_image, find_urls, stream_shard


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with images, a shard, a hidden file and a text."""
    for name in ("b/2.jpg", "b/10.jpg", "a.png", "b/.hidden.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    write_tar(tmp_path / "shard.tar", {"1.jpg": b"one", "1.txt": b"text", ".2.jpg": b"hidden", "d/3.jpg": b"three"})
    return f"file://{tmp_path}"


def test_folders_patterns_and_files(store: str) -> None:
    assert [url.removeprefix(store) for url in find_urls(store, {})] == [
        "/a.png",
        "/shard.tar",
        "/b/10.jpg",
        "/b/2.jpg",
    ]
    assert [url.removeprefix(store) for url in find_urls(f"{store}/b/*.jpg", {})] == ["/b/10.jpg", "/b/2.jpg"]
    # One that is named is not looked for: fetching it says whether it is there.
    assert list(find_urls(f"{store}/gone.jpg", {})) == [f"{store}/gone.jpg"]
    assert list(find_urls(f"{store}/notes.txt", {})) == [f"{store}/notes.txt"]


@pytest.mark.parametrize("url", ["file:///nowhere/folder", "nonsense://a/folder"])
def test_what_is_not_there_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=f"^{url}: "):
        list(find_urls(url, {}))


def test_fetched_or_with_a_reason(store: str) -> None:
    assert fetch_image(f"{store}/a.png", {}).contents == b"a.png"
    assert fetch_image(f"{store}/gone.jpg", {}).problem == "no such file"


def test_an_image_that_is_too_large_is_not_held(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_BYTES", 4)
    assert fetch_image(f"{store}/a.png", {}).contents is None
    assert "the most that is read" in str(fetch_image(f"{store}/a.png", {}).problem)
    problems = [source.problem for source in stream_shard(f"{store}/shard.tar", {})]
    assert problems[0] is None
    assert "at most" in str(problems[1])


class _Unsteady(MemoryFileSystem):
    """A store that answers every third request only."""

    protocol = "unsteady"
    cachable = False
    asked = 0

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        type(self).asked += 1
        if self.asked % 3:
            raise ConnectionError("reset by peer")
        return b"contents"


def test_a_store_is_asked_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.0)
    fsspec.register_implementation("unsteady", _Unsteady, clobber=True)
    assert fetch_image("unsteady://a.jpg", {}).contents == b"contents"
    assert _Unsteady.asked == 3
    monkeypatch.setattr(remote, "TRIES", 2)
    assert fetch_image("unsteady://a.jpg", {}).problem == "cannot be read: reset by peer"


def test_a_shard_is_read_in_one_pass(store: str) -> None:
    found = {source.name.removeprefix(store): source.contents for source in stream_shard(f"{store}/shard.tar", {})}
    assert found == {"/shard.tar/1.jpg": b"one", "/shard.tar/d/3.jpg": b"three"}


def test_a_damaged_shard_is_named_after_what_could_be_read(store: str, tmp_path: Path) -> None:
    whole = (tmp_path / "shard.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: whole.index(b"d/3.jpg") + 100])
    *images, last = stream_shard(f"{store}/cut.tar", {})
    assert [source.contents for source in images] == [b"one"]
    assert last.name == f"{store}/cut.tar"
    assert "truncated" in str(last.problem)
    (missing,) = stream_shard(f"{store}/gone.tar", {})
    assert missing.problem == "no such file"
    (compressed,) = stream_shard(f"{store}/shard.tar.gz", {})
    assert "must be a .tar" in str(compressed.problem)


def test_a_broken_connection_is_not_taken_for_a_damaged_shard(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise ConnectionError("reset by peer")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.open", lambda *_, **__: Broken())
    with pytest.raises(ConnectionError):
        list(stream_shard(f"{store}/shard.tar", {}))
