"""Images behind URLs of object stores and web servers, read through fsspec, and tar archives there as they stream by.

What fsspec needs for a kind of URL (s3fs for s3://, gcsfs for gs://, aiohttp for https://) is installed by whoever uses
it. `storage` is what it is told beside the URL, such as a key or an endpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from captioner.files import one_line, printable
from captioner.images.archives.tar import ArchiveError, list_members
from captioner.images.finding import ARCHIVES, is_hidden
from captioner.images.kinds import EXTENSIONS
from captioner.images.opening import MAX_BYTES
from captioner.images.sources import Source

Storage = Mapping[str, Any]
TRIES = 3
WAIT_SECONDS = 0.5  # before the second try, and twice that before the third
SHARD = ".tar"  # what an archive at a URL is called: compressed ones cannot be read as they come
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError)  # another try says the same


def open_storage(url: str, storage: Storage) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it; raise ValueError where it cannot be had."""
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url, **storage)
    except (ImportError, ValueError) as error:  # of a missing package, or a protocol that nobody knows
        raise ValueError(f"{printable(url)}: {one_line(error)}") from None
    return system, path


def find_urls(url: str, storage: Storage) -> Iterator[str]:
    """Yield the URLs of the images and archives that a URL stands for: one, a pattern, or all below a folder."""
    if url.lower().endswith((*EXTENSIONS, *ARCHIVES)) and not set(url) & set("*?["):
        yield url  # not looked for: a hundred million requests would take longer than to read them
        return
    system, path = open_storage(url, storage)
    if set(path) & set("*?["):
        found: Iterator[str] = (
            each for each in sorted(system.glob(path)) if not each.rpartition("/")[2].startswith(".")
        )
    elif system.isdir(path):
        found = (
            f"{folder.rstrip('/')}/{name}"
            for folder, _, names in system.walk(path)
            for name in sorted(names)
            if not name.startswith(".") and name.lower().endswith((*EXTENSIONS, *ARCHIVES))
        )
    elif system.exists(path):
        found = iter([path])
    else:
        raise ValueError(f"{printable(url)}: no such file or folder")
    for each in found:
        yield system.unstrip_protocol(each)


def fetch_image(url: str, storage: Storage) -> Source:
    """Return an image with its contents, or with why there are none once they were asked for TRIES times."""
    system, path = open_storage(url, storage)
    for attempt in range(TRIES):
        try:
            contents = system.cat_file(path, start=0, end=MAX_BYTES + 1)
            break
        except Exception as error:  # each store has its own
            if isinstance(error, _LASTING) or attempt + 1 == TRIES:
                return Source(url, Path(url), problem=reason_of(error))
            time.sleep(WAIT_SECONDS * 2**attempt)
    if len(contents) > MAX_BYTES:
        return Source(url, Path(url), problem=f"more than {MAX_BYTES / 1e6:.0f} MB, which is the most that is read")
    return Source(url, Path(url), contents=contents)


def stream_shard(url: str, storage: Storage) -> Iterator[Source]:
    """Yield the images in a tar archive at a URL with their contents, in one pass.

    A damaged or missing archive is yielded itself, with the reason, after what could be read. What the store or the
    network says otherwise is raised, since the same archive may be read whole another time.
    """
    if not url.lower().endswith(SHARD):
        yield Source(url, Path(url), problem=f"an archive at a URL must be a {SHARD}, which is read as it comes")
        return
    system, path = open_storage(url, storage)
    try:
        with system.open(path, "rb") as file:
            for member in list_members(file, getattr(file, "size", None)):
                if is_hidden(member.name) or not member.name.lower().endswith(tuple(EXTENSIONS)):
                    continue
                name, problem = f"{url}/{member.name}", member.problem
                if problem is None and member.size > MAX_BYTES:
                    problem = f"{member.size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:.0f} MB are read"
                if problem is not None:
                    yield Source(name, Path(url), problem=problem)
                    continue
                file.seek(member.offset)
                yield Source(name, Path(url), contents=file.read(member.size))
    except ArchiveError as error:
        yield Source(url, Path(url), problem=str(error))
    except _LASTING as error:
        yield Source(url, Path(url), problem=reason_of(error))


def reason_of(error: Exception) -> str:
    """Return what a store says is wrong, without the name of the file."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return os.strerror(error.errno).lower() if error.errno else one_line(error)
    return f"cannot be read: {one_line(error)}"
